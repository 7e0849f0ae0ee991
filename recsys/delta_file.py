"""The file of a delta: some rows of some tables, written as a stream and trusted by nobody.

Shape letters: D embedding dim, N rows of a delta.

All numbers are little-endian. A preamble of 64 bytes, sections of raw bytes at multiples of 64, and a header at the
end, because digests and sizes are known last:

======  =====  ===============================================================
offset  bytes  what
======  =====  ===============================================================
0       16     ``recsys-delta``, CR LF, Ctrl-Z, LF: what transfers of text change
16      8      where the header starts, uint64; the file ends with the header
24      8      bytes of the header, uint64
32      32     SHA-256 of the header
======  =====  ===============================================================

The header is JSON (``docs/deltas.md`` has its fields). For each table it names two sections: ``rows``, ``[N,
row_bytes]`` uint8 in the format of ``recsys.rows`` at alignment 1, all columns; and ``numbers``, ``[N]`` int64, which
rows they are, ascending.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from recsys.checked import a_list, choice, count, known_fields, text, whole, wrong
from recsys.configs import DataType
from recsys.errors import (
    ArtifactNotFoundError,
    ChecksumError,
    ForeignFileError,
    ManifestError,
    NewerVersionError,
    PartSizeError,
)
from recsys.loaded_rows import DIGEST_DIGITS
from recsys.rows import SCALE_BIAS_BYTES, SPARSE_TYPE_CODES, RowFormat
from recsys.store import CHUNK_ROWS, StoredTable

FORMAT = "recsys-delta"
#: Raised by one when a reader of the last version could not read what is written now.
FORMAT_VERSION = 1
MAGIC = b"recsys-delta\r\n\x1a\n"
_PREAMBLE = struct.Struct("<16sQQ32s")
_ALIGNMENT_BYTES = 64
# Some 100 000 tables; nothing larger is read into memory before its digest is known.
_MAX_HEADER_BYTES = 1 << 26
_DATA_TYPES = tuple(t.value for t in SPARSE_TYPE_CODES)
_NUMBER_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Section:
    """Bytes of the file."""

    offset_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TableDelta:
    """The rows of one table that change.

    Attributes:
        name: the table's, as in the manifest.
        num_embeddings: of the table, without a row of zeros behind the last.
        embedding_dim: of the table.
        data_type: of its stored rows.
        num_rows: how many change.
        rows: where they are.
        numbers: where it says which rows they are.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: DataType
    num_rows: int
    rows: Section
    numbers: Section

    @property
    def row_format(self) -> RowFormat:
        """Of whole rows."""
        return RowFormat(data_type=self.data_type, dim=self.embedding_dim)


@dataclass(frozen=True, kw_only=True)
class DeltaHeader:
    """What a delta says of itself.

    Attributes:
        model: the model's name, for people.
        artifact: the digest of the artifact that it fits.
        base: the state that it was made from: that digest, or of the delta before.
        num_dense_left: dense weights that had changed too, and that stay as they are.
        tables: those that change.
    """

    model: str
    artifact: str
    base: str
    num_dense_left: int = 0
    tables: tuple[TableDelta, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data that ``from_json`` reads back."""
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
        """Read a header; trusts nothing.

        Args:
            data: the JSON.
            end: where the sections end.

        Raises:
            ForeignFileError: it is no delta's.
            NewerVersionError: a later release wrote it.
            ManifestError: names the field.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ForeignFileError(f"delta: its format is not {FORMAT!r}; this is no delta")
        version = count(data, "format_version", "delta")
        if version > FORMAT_VERSION:
            raise NewerVersionError(
                f"delta: got format version {version}, expected at most {FORMAT_VERSION}; install a newer release"
            )
        known_fields(
            data,
            "delta",
            ("format", "format_version", "model", "artifact", "base", "num_dense_left", "tables"),
        )
        tables: list[TableDelta] = []
        at_bytes = _PREAMBLE.size
        for at, item in a_list(data, "tables", "delta"):
            table, at_bytes = _table_from_json(item, at, at_bytes, end)
            tables.append(table)
        names = [table.name for table in tables]
        doubled = (
            sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        )
        if doubled:
            raise ManifestError(f"delta.tables: got {doubled[:8]} more than once, expected each once")
        return cls(
            model=text(data, "model", "delta"),
            artifact=_hex(data, "artifact", "delta", DIGEST_DIGITS),
            base=_hex(data, "base", "delta", DIGEST_DIGITS),
            num_dense_left=whole(data, "num_dense_left", "delta"),
            tables=tuple(tables),
        )


_TABLE_FIELDS = ("name", "num_embeddings", "embedding_dim", "data_type", "num_rows", "rows", "numbers")


def _table_from_json(data: Any, at: str, start: int, end: int) -> tuple[TableDelta, int]:
    """A table whose sections lie in ``[start, end)``, and where its last one ends."""
    known_fields(data, at, _TABLE_FIELDS)
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


def _section(data: Any, key: str, at: str, bounds: tuple[int, int], num_bytes: int) -> tuple[Section, int]:
    found, at = data.get(key), f"{at}.{key}"
    known_fields(found, at, ("offset_bytes", "sha256"))
    start = whole(found, "offset_bytes", at)
    if start % _ALIGNMENT_BYTES or not bounds[0] <= start <= bounds[1] - num_bytes:
        raise wrong(
            at,
            "offset_bytes",
            start,
            f"a multiple of {_ALIGNMENT_BYTES} from {bounds[0]} on, with {num_bytes} bytes up to {bounds[1]}",
        )
    return Section(offset_bytes=start, sha256=_hex(found, "sha256", at, 64)), start + num_bytes


def _hex(data: Any, key: str, at: str, num_digits: int) -> str:
    value = text(data, key, at)
    if len(value) != num_digits or set(value) - set("0123456789abcdef"):
        raise wrong(at, key, value, f"{num_digits} hexadecimal digits")
    return value


class DeltaFile:
    """A delta that is being read: a context. Its header is checked when it is opened, a table when it is read.

    Args:
        path: the file.

    Attributes:
        header: what it says of itself.
        digest: its name by content: of the header, which holds the digest of everything else.

    Raises:
        ArtifactError: a subclass says what is wrong.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = Path(path).name
        self._file = _opened(Path(path))
        try:
            header, start = self._read_header()
            self.digest = hashlib.sha256(header).hexdigest()[:DIGEST_DIGITS]
            self.header = DeltaHeader.from_json(_parsed(header), start)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> DeltaFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _read_header(self) -> tuple[bytes, int]:
        size = os.fstat(self._file.fileno()).st_size
        preamble = self._file.read(_PREAMBLE.size)
        if not preamble or not MAGIC.startswith(preamble[: len(MAGIC)]):
            raise ForeignFileError(f"delta: {self._name!r} is no delta: it does not begin as one")
        if len(preamble) < _PREAMBLE.size:
            raise PartSizeError(
                f"delta {self._name!r}: got {size} bytes, expected {_PREAMBLE.size} at least; it is cut off"
            )
        _, start, num_bytes, digest = _PREAMBLE.unpack(preamble)
        if start < _PREAMBLE.size or num_bytes > _MAX_HEADER_BYTES:
            raise ManifestError(
                f"delta {self._name!r}: its first 64 bytes are damaged, or it was never finished"
            )
        if start + num_bytes != size:
            raise PartSizeError(f"delta {self._name!r}: got {size} bytes, expected {start + num_bytes}")
        self._file.seek(start)
        header = self._file.read(num_bytes)
        if hashlib.sha256(header).digest() != digest:
            raise ChecksumError(
                f"delta {self._name!r}: its header's checksum does not match; it was changed or damaged"
            )
        return header, start

    def read(self, table: TableDelta) -> tuple[Tensor, Tensor]:
        """One table's changes, all checks made.

        Args:
            table: of the header.

        Returns:
            ``[N]`` int64, ascending numbers of rows; ``[N, row_bytes]`` uint8, those rows.

        Raises:
            ChecksumError: bytes have changed.
            PartSizeError: the file was cut off meanwhile.
            ManifestError: the numbers are no ascending rows of the table, or a row is not finite.
        """
        row_bytes = table.row_format.row_bytes()
        what = f"delta {self._name!r}, table {table.name!r}"
        numbers = torch.empty(table.num_rows, dtype=torch.int64)
        rows = torch.empty(table.num_rows, row_bytes, dtype=torch.uint8)
        for section, tensor in ((table.numbers, numbers), (table.rows, rows)):
            data = tensor.numpy().data.cast("B")
            self._file.seek(section.offset_bytes)
            if self._file.readinto(data) != len(data):  # type: ignore[attr-defined]
                raise PartSizeError(f"{what}: the file ends early")
            if hashlib.sha256(data).hexdigest() != section.sha256:
                raise ChecksumError(f"{what}: the checksum does not match; it was changed or damaged")
        if int(numbers[0]) < 0 or int(numbers[-1]) >= table.num_embeddings or not _ascends(numbers):
            raise ManifestError(
                f"{what}: got numbers of rows from {int(numbers[0])} to {int(numbers[-1])}, expected ascending ones "
                f"from 0 to {table.num_embeddings - 1}, each once"
            )
        for first in range(0, table.num_rows, CHUNK_ROWS):
            if not _are_finite(rows[first : first + CHUNK_ROWS], table.row_format):
                raise ManifestError(f"{what}: got a row that is not finite, expected finite numbers")
        return numbers, rows


def _opened(path: Path) -> BinaryIO:
    if not path.exists():
        raise ArtifactNotFoundError(f"delta: nothing at {path.name!r}")
    if not path.is_file():
        raise ForeignFileError(f"delta: {path.name!r} is no file, and so no delta")
    try:
        return path.open("rb")
    except OSError as error:
        raise ForeignFileError(f"delta: cannot read {path.name!r}: {type(error).__name__}") from None


def _parsed(header: bytes) -> Any:
    try:
        return json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"delta: its header is not readable as JSON: {error}") from None


def _ascends(numbers: Tensor) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _are_finite(rows: Tensor, fmt: RowFormat) -> bool:
    if fmt.is_quantized:
        numbers = rows[:, :SCALE_BIAS_BYTES].contiguous().view(torch.float16)
    else:
        numbers = rows.view(torch.float32 if fmt.data_type is DataType.FP32 else torch.float16)
    return bool(numbers.isfinite().all())


class DeltaWriter:
    """Writes a delta, a few rows at a time; it holds eight bytes for each row of the table at hand.

    Args:
        path: a new file. It becomes a delta when ``finish`` returns; who calls removes it otherwise.
        header: without tables.
    """

    def __init__(self, path: Path, header: DeltaHeader) -> None:
        self._header = header
        self._file = path.open("xb")
        self._file.write(bytes(_PREAMBLE.size))
        self._table: StoredTable | None = None
        self._numbers: list[Tensor] = []
        self._tables: list[TableDelta] = []

    def add(self, table: StoredTable, numbers: Tensor, rows: Tensor) -> None:
        """More rows of a table; those of one table come one after the other.

        Args:
            table: as it is stored.
            numbers: ``[N]`` int64, ascending, above those that were added before.
            rows: ``[N, row_bytes]`` uint8, whole rows at alignment 1.
        """
        if not numbers.numel():
            return
        if self._table is None or self._table.name != table.name:
            self._end_table()
            self._table = table
            self._start, self._digest = self._align(), hashlib.sha256()
        data = rows.contiguous().numpy().data
        self._digest.update(data)
        self._file.write(data)
        self._numbers.append(numbers)

    def _align(self) -> int:
        position = self._file.tell()
        start = -(-position // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._file.write(bytes(start - position))
        return start

    def _end_table(self) -> None:
        if self._table is None:
            return
        numbers = torch.cat(self._numbers)
        start, data = self._align(), numbers.numpy().data
        self._file.write(data)
        self._tables.append(
            TableDelta(
                name=self._table.name,
                num_embeddings=self._table.num_embeddings,
                embedding_dim=self._table.embedding_dim,
                data_type=self._table.data_type,
                num_rows=numbers.numel(),
                rows=Section(offset_bytes=self._start, sha256=self._digest.hexdigest()),
                numbers=Section(offset_bytes=start, sha256=hashlib.sha256(data).hexdigest()),
            )
        )
        self._table, self._numbers = None, []

    def finish(self) -> DeltaHeader:
        """Write the header, and wait until all of it is on the disk."""
        self._end_table()
        self._header = replace(self._header, tables=tuple(self._tables))
        header = (json.dumps(self._header.to_json()) + "\n").encode()
        start = self._align()
        self._file.write(header)
        self._file.seek(0)
        self._file.write(_PREAMBLE.pack(MAGIC, start, len(header), hashlib.sha256(header).digest()))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._header

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()
