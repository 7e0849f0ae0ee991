"""The file of the manifest: found and read, without torch."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import IO

from recsys.base.files import is_utf8, not_utf8
from recsys.base.remote import RemoteError
from recsys.errors import ArtifactNotFoundError, ForeignFileError

MANIFEST_NAME = "manifest.json"
_EXPECTED = "expected a folder or file that recsys-export wrote"
#: Errors of zipfile for damaged files.
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError)


def read_manifest_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the manifest of a directory or a single file, not yet checked.

    Raises:
        ArtifactError: There is none; the subclass says why.
    """
    where = Path(path)
    if not is_utf8(where):
        raise ForeignFileError(f"artifact: {not_utf8(where)}")
    if not where.exists():
        raise ArtifactNotFoundError(f"artifact: got {where.name!r}, which does not exist; {_EXPECTED}")
    if where.is_dir():
        manifest = where / MANIFEST_NAME
        if not manifest.is_file():
            raise ForeignFileError(
                f"artifact: got the folder {where.resolve().name!r} without {MANIFEST_NAME}; {_EXPECTED} (the models "
                "of a folder: recsys-serve --repository)"
            )
        return manifest.read_bytes()
    if not where.is_file():
        raise ForeignFileError(
            f"artifact: got {where.name!r}, which is neither a file nor a folder; {_EXPECTED}"
        )
    return manifest_of_file(where, where.name)


def manifest_of_file(file: Path | IO[bytes], name: str) -> bytes:
    """Return the manifest of a single file, not yet checked.

    Args:
        file: The file, or where it can be read.
        name: Its name, for messages.

    Raises:
        ForeignFileError: There is none.
        RemoteError: The file lies in a store, which cannot be read.
    """
    try:
        found = extra_file(file, MANIFEST_NAME)
    except RemoteError:
        raise
    except ZIP_ERRORS as error:
        raise ForeignFileError(
            f"artifact: got {name!r}, which is of another kind, or damaged ({type(error).__name__}); {_EXPECTED}"
        ) from None
    if found is None:
        raise ForeignFileError(
            f"artifact: got {name!r}, which holds no manifest; {_EXPECTED} (a checkpoint is exported "
            "first: recsys-export CHECKPOINT)"
        )
    return found


def extra_file(path: Path | IO[bytes], name: str) -> bytes | None:
    """Return an extra file of a TorchScript file; None if it has none of this name, or several.

    Raises:
        ZIP_ERRORS: It is not a zip file, or damaged.
    """
    with zipfile.ZipFile(path) as archive:
        names = [n for n in archive.namelist() if n.endswith(f"/extra/{name}")]
        return archive.read(names[0]) if len(names) == 1 else None
