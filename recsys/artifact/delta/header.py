"""The header of a delta: the artifact that it fits, and the sections of rows, mappings and dense weights.

Shape letters: D embedding dimension, N rows or raw IDs of a delta, K raw IDs that lose their rows.

The header is untrusted JSON: every field is checked when it is read. ``recsys.artifact.delta.file`` describes the file
around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from recsys.artifact.loaded_rows import DIGEST_DIGITS
from recsys.artifact.targets import DENSE_DTYPES
from recsys.base.json_checks import (
    ALWAYS,
    a_list,
    check_format_version,
    check_once,
    digits,
    hex_digits,
    one_of,
    read_record,
    record_to_json,
    whole,
    wrong,
)
from recsys.configs import DataType
from recsys.errors import ForeignFileError
from recsys.rows.format import RowFormat, stored_type

FORMAT = "recsys-delta"
#: Incremented when readers of the previous version cannot read new files. Deltas without dense weights are written as
#: version 1, those with them, of a single step and without mappings as version 2, which earlier releases read.
FORMAT_VERSION = 3
_WITHOUT_DENSE, _WITHOUT_MAPPINGS = 1, 2
#: The first offset of sections, and their alignment.
PREAMBLE_BYTES = 64
SECTION_ALIGNMENT_BYTES = 64
_NUMBER_BYTES = 8
_MAX_DIMS = 16
# The end of the year 9999.
_MAX_SECONDS = 253402300800


@dataclass(frozen=True, kw_only=True)
class DeltaSection:
    """Bytes of the file: where they begin, a multiple of 64, and their digest."""

    offset_bytes: Annotated[int, whole]
    sha256: Annotated[str, digits(64)]


@dataclass(frozen=True, kw_only=True)
class TableDelta:
    """The rows of one table that change.

    Attributes:
        name: The table's name, as in the manifest.
        num_embeddings: The rows of the table, without an additional row of zeros, as in the manifest.
        embedding_dim: The dimension of its vectors, as in the manifest.
        data_type: The data type of its stored rows, as in the manifest.
        num_rows: The number of changed rows, N.
        rows: The section of the rows, ``[N, row_bytes]`` uint8: whole rows as in ``recsys.rows.format`` at
            alignment 1.
        numbers: The section of their numbers, ``[N]`` int64, ascending, each once.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: Annotated[DataType, stored_type]
    num_rows: int
    rows: DeltaSection
    numbers: DeltaSection

    @property
    def row_format(self) -> RowFormat:
        """The format of a whole row."""
        return RowFormat(data_type=self.data_type, dim=self.embedding_dim)

    @property
    def section_bytes(self) -> dict[str, int]:
        """The sizes of its sections, in the order of the file."""
        return {
            "rows": self.num_rows * self.row_format.row_bytes(),
            "numbers": self.num_rows * _NUMBER_BYTES,
        }


@dataclass(frozen=True, kw_only=True)
class DenseDelta:
    """A dense weight that changes.

    Attributes:
        name: The path of the tensor in the graphs of the artifact, outside embedding collections. Each target and form
            that has it gets it.
        dtype: Its type: float64, float32, float16, bfloat16, int64, int32, int16, int8 or uint8.
        shape: Its shape.
        values: The section of its numbers, row-major.
    """

    name: str
    dtype: Annotated[str, one_of(tuple(DENSE_DTYPES))]
    shape: tuple[int, ...]
    values: DeltaSection

    @property
    def num_bytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * DENSE_DTYPES[self.dtype].itemsize

    @property
    def section_bytes(self) -> dict[str, int]:
        """The sizes of its sections, in the order of the file."""
        return {"values": self.num_bytes}


@dataclass(frozen=True, kw_only=True)
class MappingDelta:
    """The raw IDs of a managed table whose rows change.

    Attributes:
        name: The table's name, as in the manifest.
        num_rows: The rows of the table.
        num_ids: The number of raw IDs that come or move, N, at most ``num_rows``.
        num_evicted: The number of raw IDs that lose their rows, K.
        raw_ids: The section of the raw IDs that come or move, ``[N]`` int64, ascending, each once.
        rows: The section of their rows, ``[N]`` int64, each once.
        evicted: The section of the raw IDs that own no row any more, ``[K]`` int64, ascending, none of ``raw_ids``.
    """

    name: str
    num_rows: int
    num_ids: Annotated[int, whole]
    num_evicted: Annotated[int, whole]
    raw_ids: DeltaSection
    rows: DeltaSection
    evicted: DeltaSection

    @property
    def section_bytes(self) -> dict[str, int]:
        """The sizes of its sections, in the order of the file."""
        num_bytes = _NUMBER_BYTES * self.num_ids
        return {"raw_ids": num_bytes, "rows": num_bytes, "evicted": _NUMBER_BYTES * self.num_evicted}


def _seconds(data: Any, key: str, at: str) -> float:
    value = data[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_SECONDS:
        raise wrong(at, key, value, "seconds since the epoch")
    return float(value)


def _replaced(data: Any, key: str, at: str) -> tuple[str, ...]:
    found = [hex_digits({"digest": item}, "digest", to, DIGEST_DIGITS) for to, item in a_list(data, key, at)]
    check_once(found, f"{at}.{key}")
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class DeltaHeader:
    """The header of a delta.

    Attributes:
        model: The model's name, for display.
        artifact: The artifact that it fits: the first 12 hexadecimal digits of the SHA-256 of its ``manifest.json`` (of
            a single file: among its extra files).
        base: The state that it was made from: ``artifact``, or the digest of the delta before.
        created_s: When it was made, in seconds since the epoch; 0 if not known.
        num_dense_left: Number of dense weights that had also changed, and that the delta leaves as they are.
        tables: The changed tables, each once.
        mappings: The managed tables whose raw IDs change, each once.
        dense: The changed dense weights, each once.
        replaces: Of a compacted chain, the digests of its deltas in order. The state after it is that of the last, and
            it fits the states of the others too.
    """

    model: str
    artifact: Annotated[str, digits(DIGEST_DIGITS)]
    base: Annotated[str, digits(DIGEST_DIGITS)]
    created_s: Annotated[float, _seconds] = 0.0
    num_dense_left: Annotated[int, whole, ALWAYS] = 0
    tables: Annotated[tuple[TableDelta, ...], ALWAYS] = ()
    mappings: tuple[MappingDelta, ...] = ()
    dense: tuple[DenseDelta, ...] = ()
    replaces: Annotated[tuple[str, ...], _replaced] = ()

    @property
    def bases(self) -> tuple[str, ...]:
        """The states that it can be applied in: a compacted chain also in the middle of it."""
        return (self.base, *self.replaces[:-1])

    @property
    def format_version(self) -> int:
        """The first version of the format whose readers apply all of it."""
        if self.mappings or self.replaces:
            return FORMAT_VERSION
        return _WITHOUT_MAPPINGS if self.dense else _WITHOUT_DENSE

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {
            "format": FORMAT,
            "format_version": self.format_version,
            **record_to_json(self),
        }

    @classmethod
    def from_json(cls, data: Any, end: int) -> DeltaHeader:
        """Read an untrusted header.

        Args:
            data: The JSON.
            end: The end of the sections.

        Raises:
            ForeignFileError: It is not the header of a delta.
            NewerVersionError: A later release wrote it.
            ManifestError: Names the field.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ForeignFileError(f"delta: its format is not {FORMAT!r}; this is no delta")
        check_format_version(data, FORMAT_VERSION, "delta")
        header = read_record(cls, data, "delta")
        start = PREAMBLE_BYTES
        for i, table in enumerate(header.tables):
            at = f"delta.tables[{i}]"
            start = _check_sections(table, at, start, end)
            if table.num_rows > table.num_embeddings:
                raise wrong(at, "num_rows", table.num_rows, f"at most the table's {table.num_embeddings}")
        for i, mapping in enumerate(header.mappings):
            at = f"delta.mappings[{i}]"
            # A compacted chain may evict more raw IDs than there are rows.
            if mapping.num_ids > mapping.num_rows:
                raise wrong(at, "num_ids", mapping.num_ids, f"at most the table's {mapping.num_rows} rows")
            start = _check_sections(mapping, at, start, end)
        for i, weight in enumerate(header.dense):
            at, dims = f"delta.dense[{i}]", weight.shape
            if len(dims) > _MAX_DIMS or any(dim >= 1 << 48 for dim in dims):
                raise wrong(at, "shape", list(dims), f"at most {_MAX_DIMS} dimensions below 2**48")
            start = _check_sections(weight, at, start, end)
        check_once([table.name for table in header.tables], "delta.tables")
        check_once([mapping.name for mapping in header.mappings], "delta.mappings")
        check_once([weight.name for weight in header.dense], "delta.dense")
        return header


def _check_sections(change: TableDelta | MappingDelta | DenseDelta, at: str, start: int, end: int) -> int:
    """Check that the sections of a change are in ``[start, end)``; return the end of its last one."""
    for name, num_bytes in change.section_bytes.items():
        offset = getattr(change, name).offset_bytes
        if offset % SECTION_ALIGNMENT_BYTES or not start <= offset <= end - num_bytes:
            raise wrong(
                f"{at}.{name}",
                "offset_bytes",
                offset,
                f"a multiple of {SECTION_ALIGNMENT_BYTES} from {start} on, with {num_bytes} bytes up to {end}",
            )
        start = offset + num_bytes
    return start
