"""The header of a delta: the artifact that it fits, and the sections of rows, mappings and dense weights.

Shape letters: D embedding dimension, N rows or raw IDs of a delta, K raw IDs that lose their rows.

The header is untrusted JSON: every field is checked when it is read. ``docs/export/deltas.md`` describes each field
for readers in other languages, ``recsys.artifact.delta.file`` the file around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from recsys.artifact.loaded_rows import DIGEST_DIGITS
from recsys.artifact.targets import DENSE_DTYPES
from recsys.base.json_checks import (
    a_list,
    check_format_version,
    check_once,
    choice,
    count,
    hex_digits,
    json_field,
    shape,
    text,
    whole,
    wrong,
)
from recsys.configs import DataType
from recsys.errors import ForeignFileError
from recsys.rows.format import SPARSE_TYPE_CODES, RowFormat

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
_DATA_TYPES = tuple(t.value for t in SPARSE_TYPE_CODES)


@dataclass(frozen=True, kw_only=True)
class DeltaSection:
    """Bytes of the file."""

    offset_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TableDelta:
    """The rows of one table that change.

    Attributes:
        name: The table's name, as in the manifest.
        num_embeddings: The rows of the table, without an additional row of zeros.
        embedding_dim: The dimension of its vectors.
        data_type: The data type of its stored rows.
        num_rows: The number of changed rows.
        rows: The section of the rows.
        numbers: The section of their numbers.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: DataType
    num_rows: int
    rows: DeltaSection
    numbers: DeltaSection

    @property
    def row_format(self) -> RowFormat:
        """The format of a whole row."""
        return RowFormat(data_type=self.data_type, dim=self.embedding_dim)


@dataclass(frozen=True, kw_only=True)
class DenseDelta:
    """A dense weight that changes.

    Attributes:
        name: The path of the tensor in the graphs of the artifact.
        dtype: Its type: one of ``DENSE_DTYPES``.
        shape: Its shape.
        values: The section of its numbers, row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: DeltaSection

    @property
    def num_bytes(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * DENSE_DTYPES[self.dtype].itemsize


@dataclass(frozen=True, kw_only=True)
class MappingDelta:
    """The raw IDs of a managed table whose rows change.

    Attributes:
        name: The table's name, as in the manifest.
        num_rows: The rows of the table.
        num_ids: The number of raw IDs that get rows.
        num_evicted: The number of raw IDs that lose them.
        raw_ids: The section of the raw IDs, ``[N]`` int64, ascending.
        rows: The section of their rows, ``[N]`` int64.
        evicted: The section of the raw IDs that lose their rows, ``[K]`` int64, ascending.
    """

    name: str
    num_rows: int
    num_ids: int
    num_evicted: int
    raw_ids: DeltaSection
    rows: DeltaSection
    evicted: DeltaSection


@dataclass(frozen=True, kw_only=True)
class DeltaHeader:
    """The header of a delta.

    Attributes:
        model: The model's name, for display.
        artifact: The digest of the artifact that it fits.
        base: The state that it was made from: the artifact's digest, or that of the delta before.
        created_s: When it was made, in seconds since the epoch; 0 if not known.
        num_dense_left: Number of dense weights that had also changed, and that the delta leaves as they are.
        tables: The changed tables.
        mappings: The managed tables whose raw IDs change.
        dense: The changed dense weights.
        replaces: Of a compacted chain, the digests of its deltas in order; the state after it is that of the last.
    """

    model: str
    artifact: str
    base: str
    created_s: float = 0.0
    num_dense_left: int = 0
    tables: tuple[TableDelta, ...] = ()
    mappings: tuple[MappingDelta, ...] = ()
    dense: tuple[DenseDelta, ...] = ()
    replaces: tuple[str, ...] = ()

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
            "model": self.model,
            "artifact": self.artifact,
            "base": self.base,
            "created_s": self.created_s,
            "num_dense_left": self.num_dense_left,
            "tables": [
                {
                    "name": table.name,
                    "num_embeddings": table.num_embeddings,
                    "embedding_dim": table.embedding_dim,
                    "data_type": table.data_type.value,
                    "num_rows": table.num_rows,
                    "rows": vars(table.rows),
                    "numbers": vars(table.numbers),
                }
                for table in self.tables
            ],
            **({"mappings": [_mapping_to_json(one) for one in self.mappings]} if self.mappings else {}),
            **({"dense": [_dense_to_json(weight) for weight in self.dense]} if self.dense else {}),
            **({"replaces": list(self.replaces)} if self.replaces else {}),
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
        tables: list[TableDelta] = []
        at_bytes = PREAMBLE_BYTES
        for at, item in a_list(data, "tables", "delta"):
            table, at_bytes = _table_from_json(item, at, at_bytes, end)
            tables.append(table)
        check_once([table.name for table in tables], "delta.tables")
        mappings: list[MappingDelta] = []
        for at, item in a_list(data, "mappings", "delta") if "mappings" in data else ():
            mapping, at_bytes = _mapping_from_json(item, at, at_bytes, end)
            mappings.append(mapping)
        check_once([mapping.name for mapping in mappings], "delta.mappings")
        dense: list[DenseDelta] = []
        for at, item in a_list(data, "dense", "delta") if "dense" in data else ():
            weight, at_bytes = _dense_from_json(item, at, at_bytes, end)
            dense.append(weight)
        check_once([weight.name for weight in dense], "delta.dense")
        return cls(
            model=text(data, "model", "delta"),
            artifact=hex_digits(data, "artifact", "delta", DIGEST_DIGITS),
            base=hex_digits(data, "base", "delta", DIGEST_DIGITS),
            created_s=_seconds(data, "created_s"),
            num_dense_left=whole(data, "num_dense_left", "delta"),
            tables=tuple(tables),
            mappings=tuple(mappings),
            dense=tuple(dense),
            replaces=_replaced(data),
        )


def _replaced(data: Any) -> tuple[str, ...]:
    """Return the digests of the deltas that a compacted chain replaces; none of another delta."""
    if "replaces" not in data:
        return ()
    items = a_list(data, "replaces", "delta")
    digests = [hex_digits({"digest": item}, "digest", at, DIGEST_DIGITS) for at, item in items]
    check_once(digests, "delta.replaces")
    return tuple(digests)


def _mapping_to_json(mapping: MappingDelta) -> dict[str, Any]:
    return {
        "name": mapping.name,
        "num_rows": mapping.num_rows,
        "num_ids": mapping.num_ids,
        "num_evicted": mapping.num_evicted,
        "raw_ids": vars(mapping.raw_ids),
        "rows": vars(mapping.rows),
        "evicted": vars(mapping.evicted),
    }


def _mapping_from_json(data: Any, at: str, start: int, end: int) -> tuple[MappingDelta, int]:
    """Return a mapping's change whose sections are in ``[start, end)``, and the end of its last section."""
    num_rows = count(data, "num_rows", at)
    # A compacted chain may evict more raw IDs than there are rows.
    num_ids, num_evicted = (whole(data, key, at) for key in ("num_ids", "num_evicted"))
    if num_ids > num_rows:
        raise wrong(at, "num_ids", num_ids, f"at most the table's {num_rows} rows")
    num_bytes = _NUMBER_BYTES * num_ids
    raw_ids, start = _section(data, "raw_ids", at, (start, end), num_bytes)
    rows, start = _section(data, "rows", at, (start, end), num_bytes)
    evicted, start = _section(data, "evicted", at, (start, end), _NUMBER_BYTES * num_evicted)
    mapping = MappingDelta(
        name=text(data, "name", at),
        num_rows=num_rows,
        num_ids=num_ids,
        num_evicted=num_evicted,
        raw_ids=raw_ids,
        rows=rows,
        evicted=evicted,
    )
    return mapping, start


def _dense_to_json(weight: DenseDelta) -> dict[str, Any]:
    return {
        "name": weight.name,
        "dtype": weight.dtype,
        "shape": list(weight.shape),
        "values": vars(weight.values),
    }


def _dense_from_json(data: Any, at: str, start: int, end: int) -> tuple[DenseDelta, int]:
    """Return a dense weight whose section is in ``[start, end)``, and the end of the section."""
    dtype = choice(data, "dtype", at, tuple(DENSE_DTYPES))
    dims = shape(data, "shape", at)
    if len(dims) > _MAX_DIMS or any(dim >= 1 << 48 for dim in dims):
        raise wrong(at, "shape", list(dims), f"at most {_MAX_DIMS} dimensions below 2**48")
    num_bytes = math.prod(dims) * DENSE_DTYPES[dtype].itemsize
    values, start = _section(data, "values", at, (start, end), num_bytes)
    return DenseDelta(name=text(data, "name", at), dtype=dtype, shape=dims, values=values), start


def _table_from_json(data: Any, at: str, start: int, end: int) -> tuple[TableDelta, int]:
    """Return a table whose sections are in ``[start, end)``, and the end of its last section."""
    num_rows = count(data, "num_rows", at)
    fmt = RowFormat(
        data_type=DataType(choice(data, "data_type", at, _DATA_TYPES)), dim=count(data, "embedding_dim", at)
    )
    rows, start = _section(data, "rows", at, (start, end), num_rows * fmt.row_bytes())
    numbers, start = _section(data, "numbers", at, (start, end), num_rows * _NUMBER_BYTES)
    num_embeddings = count(data, "num_embeddings", at)
    if num_rows > num_embeddings:
        raise wrong(at, "num_rows", num_rows, f"at most the table's {num_embeddings}")
    table = TableDelta(
        name=text(data, "name", at),
        num_embeddings=num_embeddings,
        embedding_dim=fmt.dim,
        data_type=fmt.data_type,
        num_rows=num_rows,
        rows=rows,
        numbers=numbers,
    )
    return table, start


def _section(
    data: Any, key: str, at: str, bounds: tuple[int, int], num_bytes: int
) -> tuple[DeltaSection, int]:
    found, at = json_field(data, key, at), f"{at}.{key}"
    start = whole(found, "offset_bytes", at)
    if start % SECTION_ALIGNMENT_BYTES or not bounds[0] <= start <= bounds[1] - num_bytes:
        raise wrong(
            at,
            "offset_bytes",
            start,
            f"a multiple of {SECTION_ALIGNMENT_BYTES} from {bounds[0]} on, with {num_bytes} bytes up to {bounds[1]}",
        )
    return DeltaSection(offset_bytes=start, sha256=hex_digits(found, "sha256", at, 64)), start + num_bytes


def _seconds(data: Any, key: str) -> float:
    """Return a time; 0 where an earlier release wrote none."""
    value = data.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MAX_SECONDS:
        raise wrong("delta", key, value, "seconds since the epoch")
    return float(value)
