"""The file format of a delta: some rows of some tables, written as a stream, validated when read.

Shape letters: D embedding dimension, N rows or raw IDs of a delta, K raw IDs that lose their rows.

All numbers are little-endian. A file has a preamble of 64 bytes, sections of raw bytes at multiples of 64, and a header
at the end, because digests and sizes are known only then. The preamble:

* bytes 0 to 15: ``recsys-delta``, then the bytes 0D 0A 1A 0A, which transfers of text change
* 16 to 23: where the header starts, uint64; the file ends with the header
* 24 to 31: bytes of the header, uint64
* 32 to 63: SHA-256 of the header

The header is JSON in UTF-8: ``format`` (``recsys-delta``), ``format_version`` and the fields of
``recsys.artifact.delta.header.DeltaHeader``. The version is 3 with ``mappings`` or ``replaces``, 2 with ``dense``, else
1. Readers refuse higher versions, and ignore fields that they do not know. The delta's digest is the first 12
hexadecimal digits of the header's SHA-256.

Sections are in the order of the fields ``tables``, ``mappings`` and ``dense``, and in each entry in the order of its
fields. The header names a section by ``offset_bytes`` and ``sha256``. Where the artifact cuts a table by columns, each
of its blocks takes the row's scale and bias (the first 4 bytes; none for FP32 and FP16) and its own columns' codes.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from recsys.artifact.delta.header import (
    SECTION_ALIGNMENT_BYTES,
    DeltaHeader,
    DeltaSection,
    DenseDelta,
    MappingDelta,
    TableDelta,
)
from recsys.artifact.loaded_rows import DIGEST_DIGITS
from recsys.artifact.targets import DENSE_DTYPES
from recsys.base.files import parse_json
from recsys.configs import DataType
from recsys.errors import (
    ArtifactNotFoundError,
    ChecksumError,
    ForeignFileError,
    ManifestError,
    PartSizeError,
)
from recsys.managed.changes import MappingChange
from recsys.rows.format import SCALE_BIAS_BYTES, RowFormat
from recsys.rows.quantize import CHUNK_ROWS, StoredTable

MAGIC = b"recsys-delta\r\n\x1a\n"
_PREAMBLE = struct.Struct("<16sQQ32s")
# Enough for about 100 000 tables; no larger header is read into memory.
_MAX_HEADER_BYTES = 1 << 26


class DeltaFile:
    """An open delta; a context manager. The header is checked on opening, each table when it is read.

    Args:
        path: The file.

    Attributes:
        header: The header.
        digest: The state that it leaves: the digest of the header, which holds the digests of all other parts; of a
            compacted chain that of its last delta.

    Raises:
        ArtifactError: The file cannot be used; the subclass says why.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = Path(path).name
        self._file = _opened(Path(path))
        try:
            size = os.fstat(self._file.fileno()).st_size
            self.header, self.digest = read_header(self._read_at, size, self._name)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> DeltaFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _read_at(self, offset_bytes: int, num_bytes: int) -> bytes:
        self._file.seek(offset_bytes)
        return self._file.read(num_bytes)

    def read(self, table: TableDelta) -> tuple[Tensor, Tensor]:
        """Return one table's changes, after all checks.

        Args:
            table: The table of the header.

        Returns:
            ``[N]`` int64, ascending numbers of rows; ``[N, row_bytes]`` uint8, those rows.

        Raises:
            ChecksumError: Bytes have changed.
            PartSizeError: The file was truncated since it was opened.
            ManifestError: The numbers are not ascending rows of the table, or a row is not finite.
        """
        row_bytes = table.row_format.row_bytes()
        what = f"delta {self._name!r}, table {table.name!r}"
        numbers = torch.empty(table.num_rows, dtype=torch.int64)
        rows = torch.empty(table.num_rows, row_bytes, dtype=torch.uint8)
        for section, tensor in ((table.numbers, numbers), (table.rows, rows)):
            self._read_section(section, tensor, what)
        if int(numbers[0]) < 0 or int(numbers[-1]) >= table.num_embeddings or not _ascends(numbers):
            raise ManifestError(
                f"{what}: got numbers of rows from {int(numbers[0])} to {int(numbers[-1])}, expected ascending ones "
                f"from 0 to {table.num_embeddings - 1}, each once"
            )
        for first in range(0, table.num_rows, CHUNK_ROWS):
            if not _are_finite(rows[first : first + CHUNK_ROWS], table.row_format):
                raise ManifestError(f"{what}: got a row that is not finite, expected finite numbers")
        return numbers, rows

    def read_mapping(self, mapping: MappingDelta) -> MappingChange:
        """Return the change of a managed table's mapping, after all checks that need no mapping.

        Raises:
            ChecksumError: Bytes have changed.
            PartSizeError: The file was truncated since it was opened.
            ManifestError: Raw IDs do not ascend, one is in both lists, or rows are not rows of the table, each once.
        """
        what = f"delta {self._name!r}, mapping of table {mapping.name!r}"
        raw_ids, rows = (torch.empty(mapping.num_ids, dtype=torch.int64) for _ in range(2))
        evicted = torch.empty(mapping.num_evicted, dtype=torch.int64)
        for section, tensor in ((mapping.raw_ids, raw_ids), (mapping.rows, rows), (mapping.evicted, evicted)):
            self._read_section(section, tensor, what)
        for key, ids in (("raw_ids", raw_ids), ("evicted", evicted)):
            if not _ascends(ids):
                raise ManifestError(f"{what}: got {key} out of order, expected ascending raw IDs, each once")
        if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < mapping.num_rows:
            raise ManifestError(
                f"{what}: got rows from {int(rows.min())} to {int(rows.max())}, expected 0 to {mapping.num_rows - 1}"
            )
        if torch.unique(rows).numel() != rows.numel():
            raise ManifestError(f"{what}: got a row of two raw IDs, expected each row once")
        if bool(torch.isin(evicted, raw_ids, assume_unique=True).any()):
            raise ManifestError(f"{what}: got a raw ID that is evicted and gets a row, expected one of both")
        return MappingChange(raw_ids=raw_ids, rows=rows, evicted=evicted)

    def read_dense(self, weight: DenseDelta) -> Tensor:
        """Return a dense weight in host memory, after all checks.

        Raises:
            ChecksumError: Bytes have changed.
            PartSizeError: The file was truncated since it was opened.
            ManifestError: A number is not finite.
        """
        what = f"delta {self._name!r}, dense weight {weight.name!r}"
        data = torch.empty(weight.num_bytes, dtype=torch.uint8)
        self._read_section(weight.values, data, what)
        tensor = data.view(DENSE_DTYPES[weight.dtype]).view(weight.shape)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ManifestError(f"{what}: got a number that is not finite, expected finite numbers")
        return tensor

    def _read_section(self, section: DeltaSection, tensor: Tensor, what: str) -> None:
        """Fill a contiguous tensor with a section's bytes, and check them."""
        data = tensor.numpy().data.cast("B")
        self._file.seek(section.offset_bytes)
        if self._file.readinto(data) != len(data):  # type: ignore[attr-defined]
            raise PartSizeError(f"{what}: the file ends early")
        if hashlib.sha256(data).hexdigest() != section.sha256:
            raise ChecksumError(f"{what}: the checksum does not match; it was changed or damaged")


def read_header(read: Callable[[int, int], bytes], size: int, name: str) -> tuple[DeltaHeader, str]:
    """Read and check the header of a delta, wherever it lies.

    Args:
        read: Returns the bytes from an offset on, a number of them at most: ``read(offset_bytes, num_bytes)``.
        size: The bytes of the delta.
        name: Its name, for errors.

    Returns:
        The header and its digest, which is the state of the rows after the delta.

    Raises:
        ArtifactError: It is no whole delta; the subclass says why.
    """
    preamble = read(0, _PREAMBLE.size)
    if not preamble or not MAGIC.startswith(preamble[: len(MAGIC)]):
        raise ForeignFileError(f"delta: {name!r} is no delta: it does not begin as one")
    if len(preamble) < _PREAMBLE.size:
        raise PartSizeError(
            f"delta {name!r}: got {size} bytes, expected {_PREAMBLE.size} at least; it is cut off"
        )
    _, start, num_bytes, digest = _PREAMBLE.unpack(preamble)
    if start < _PREAMBLE.size or num_bytes > _MAX_HEADER_BYTES:
        raise ManifestError(f"delta {name!r}: its first 64 bytes are damaged, or it was never finished")
    if start + num_bytes != size:
        raise PartSizeError(f"delta {name!r}: got {size} bytes, expected {start + num_bytes}")
    header = read(start, num_bytes)
    if hashlib.sha256(header).digest() != digest:
        raise ChecksumError(
            f"delta {name!r}: its header's checksum does not match; it was changed or damaged"
        )
    found = DeltaHeader.from_json(parse_json(header, "delta header", ManifestError), start)
    own = hashlib.sha256(header).hexdigest()[:DIGEST_DIGITS]
    return found, found.replaces[-1] if found.replaces else own


def _opened(path: Path) -> BinaryIO:
    if not path.exists():
        raise ArtifactNotFoundError(
            f"delta: got {path.name!r}, which does not exist; expected a file that recsys-export --delta wrote"
        )
    if not path.is_file():
        raise ForeignFileError(f"delta: {path.name!r} is no file, and so no delta")
    try:
        return path.open("rb")
    except OSError as error:
        raise ForeignFileError(f"delta: cannot read {path.name!r}: {type(error).__name__}") from None


def _ascends(numbers: Tensor) -> bool:
    return bool((numbers[1:] > numbers[:-1]).all())


def _are_finite(rows: Tensor, fmt: RowFormat) -> bool:
    if fmt.is_quantized:
        numbers = rows[:, :SCALE_BIAS_BYTES].contiguous().view(torch.float16)
    else:
        numbers = rows.view(torch.float32 if fmt.data_type is DataType.FP32 else torch.float16)
    return bool(numbers.isfinite().all())


class DeltaWriter:
    """Writes a delta, a few rows at a time; holds eight bytes per row of the current table in memory.

    Args:
        path: A new file. It is a delta once ``finish`` returns; otherwise the caller removes it.
        header: The header without tables.
    """

    def __init__(self, path: Path, header: DeltaHeader) -> None:
        self._header = header
        self._file = path.open("xb")
        self._file.write(bytes(_PREAMBLE.size))
        self._table: StoredTable | None = None
        self._numbers: list[Tensor] = []
        self._tables: list[TableDelta] = []
        self._mappings: list[MappingDelta] = []
        self._dense: list[DenseDelta] = []

    def add(self, table: StoredTable, numbers: Tensor, rows: Tensor) -> None:
        """Add rows of a table; rows of one table must be added consecutively.

        Args:
            table: The stored table.
            numbers: ``[N]`` int64, ascending, above all added before.
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
        start = -(-position // SECTION_ALIGNMENT_BYTES) * SECTION_ALIGNMENT_BYTES
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
                rows=DeltaSection(offset_bytes=self._start, sha256=self._digest.hexdigest()),
                numbers=DeltaSection(offset_bytes=start, sha256=hashlib.sha256(data).hexdigest()),
            )
        )
        self._table, self._numbers = None, []

    def add_mapping(self, table: str, num_rows: int, change: MappingChange) -> None:
        """Add the change of a managed table's mapping, after all rows; one without raw IDs is left out.

        Args:
            table: The table's name, as in the manifest.
            num_rows: Its rows.
            change: The change, in host memory.
        """
        if change.is_empty:
            return
        self._end_table()
        raw_ids, rows, evicted = map(self._section, (change.raw_ids, change.rows, change.evicted))
        self._mappings.append(
            MappingDelta(
                name=table,
                num_rows=num_rows,
                num_ids=change.raw_ids.numel(),
                num_evicted=change.evicted.numel(),
                raw_ids=raw_ids,
                rows=rows,
                evicted=evicted,
            )
        )

    def _section(self, tensor: Tensor) -> DeltaSection:
        """Write a tensor in host memory as a section."""
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        start = self._align()
        self._file.write(data)
        return DeltaSection(offset_bytes=start, sha256=hashlib.sha256(data).hexdigest())

    def add_dense(self, name: str, weight: Tensor) -> None:
        """Add a dense weight, after all rows and mappings.

        Args:
            name: Its path in the graphs.
            weight: In host memory, of one of the types of ``DENSE_DTYPES``.
        """
        self._end_table()
        values = self._section(weight)
        self._dense.append(
            DenseDelta(
                name=name,
                dtype=str(weight.dtype).removeprefix("torch."),
                shape=tuple(weight.shape),
                values=values,
            )
        )

    def finish(self) -> DeltaHeader:
        """Write the header, and wait until the file is on the disk."""
        self._end_table()
        self._header = replace(
            self._header,
            tables=tuple(self._tables),
            mappings=tuple(self._mappings),
            dense=tuple(self._dense),
        )
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
