"""Python's classes of the native engine's errors, by the names of their kinds (``recsys::KindName``)."""

from __future__ import annotations

from collections.abc import Mapping

from recsys import errors
from serve.errors import ERROR_KINDS

ERROR_OF_KIND: Mapping[str, type[Exception]] = {
    **{kind.name: kind.error for kind in ERROR_KINDS},
    "artifact_not_found": errors.ArtifactNotFoundError,
    "foreign_file": errors.ForeignFileError,
    "manifest": errors.ManifestError,
    "newer_format": errors.NewerVersionError,
    "missing_part": errors.MissingPartError,
    "part_size": errors.PartSizeError,
    "checksum": errors.ChecksumError,
    "target": errors.TargetError,
    "rows_memory": errors.RowsMemoryError,
    "delta": errors.DeltaError,
    "library": errors.ArtifactError,
    "listen": OSError,
    "config": ValueError,
    "internal": RuntimeError,
}
