"""The header of a delta: the artifact that it fits, and the sections of each table's rows.

Shape letters: D embedding dim, N rows of a delta.

The header is untrusted JSON: every field is checked when it is read. ``docs/deltas.md`` describes each field
for readers in other languages, ``recsys.artifact.delta_file`` the file around it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from recsys.artifact.loaded_rows import DIGEST_DIGITS
from recsys.configs import DataType
from recsys.errors import ForeignFileError, ManifestError
from recsys.json_checks import a_list, check_format_version, choice, count, json_field, text, whole, wrong
from recsys.rows.format import SPARSE_TYPE_CODES, RowFormat

FORMAT = "recsys-delta"
#: Incremented when readers of the previous version cannot read new files.
FORMAT_VERSION = 1
#: The first offset of sections, and their alignment.
PREAMBLE_BYTES = 64
SECTION_ALIGNMENT_BYTES = 64
_NUMBER_BYTES = 8
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
        embedding_dim: The embedding dim of the table.
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
class DeltaHeader:
    """The header of a delta.

    Attributes:
        model: The model's name, for display.
        artifact: The digest of the artifact that it fits.
        base: The state that it was made from: the artifact's digest, or that of the delta before.
        num_dense_left: Number of dense weights that had also changed; a delta does not change them.
        tables: The changed tables.
    """

    model: str
    artifact: str
    base: str
    num_dense_left: int = 0
    tables: tuple[TableDelta, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "model": self.model,
            "artifact": self.artifact,
            "base": self.base,
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
        names = [table.name for table in tables]
        doubled = sorted(name for name, times in Counter(names).items() if times > 1)
        if doubled:
            raise ManifestError(f"delta.tables: got {doubled[:8]} more than once, expected each once")
        return cls(
            model=text(data, "model", "delta"),
            artifact=_hex(data, "artifact", "delta", DIGEST_DIGITS),
            base=_hex(data, "base", "delta", DIGEST_DIGITS),
            num_dense_left=whole(data, "num_dense_left", "delta"),
            tables=tuple(tables),
        )


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
    return DeltaSection(offset_bytes=start, sha256=_hex(found, "sha256", at, 64)), start + num_bytes


def _hex(data: Any, key: str, at: str, num_digits: int) -> str:
    value = text(data, key, at)
    if len(value) != num_digits or set(value) - set("0123456789abcdef"):
        raise wrong(at, key, value, f"{num_digits} hexadecimal digits")
    return value
