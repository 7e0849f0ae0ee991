"""The layout of stored rows: the places of each table's rows in a blob or an artifact's rows file.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from recsys.configs import DataType
from recsys.rows.format import HOST_ROW_ALIGNMENT, RowFormat, align_rows, cut_columns

#: FBGEMM 1.8 aligns each table to a cache line pair.
BLOCK_ALIGNMENT_BYTES = 128
#: The INT4 and INT2 kernels read past the last row for some widths, up to 64 bytes: keep twice that readable.
TAIL_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class RowBlock:
    """Columns ``[column_start, column_end)`` of rows ``[row_start, row_end)`` of a table.

    Attributes:
        table: The table's name, unique within the blob.
        offset_bytes: Where the block starts.
        row_alignment: In bytes.
    """

    table: str
    data_type: DataType
    row_start: int
    row_end: int
    column_start: int
    column_end: int
    offset_bytes: int
    row_alignment: int = HOST_ROW_ALIGNMENT

    @property
    def num_rows(self) -> int:
        """Rows in the block."""
        return self.row_end - self.row_start

    @property
    def row_format(self) -> RowFormat:
        """The format of the block's rows."""
        return RowFormat(data_type=self.data_type, dim=self.column_end - self.column_start)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_format.row_bytes(self.row_alignment)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes

    def rows(self, blob: Tensor) -> Tensor:
        """Return a view of the block's rows, ``[num_rows, row_bytes]``."""
        return blob[self.offset_bytes : self.offset_bytes + self.num_bytes].view(
            self.num_rows, self.row_bytes
        )


@dataclass(frozen=True, kw_only=True)
class BlobLayout:
    """All blocks of a blob, in the order of their offsets."""

    blocks: tuple[RowBlock, ...]

    @property
    def row_alignment(self) -> int:
        """The alignment of all rows in bytes: the lookup takes one for all its tables."""
        return self.blocks[0].row_alignment if self.blocks else HOST_ROW_ALIGNMENT

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of the blob, including the readable tail."""
        end = max((block.offset_bytes + block.num_bytes for block in self.blocks), default=0)
        return _aligned(end) + TAIL_BYTES

    @cached_property
    def table_bytes(self) -> dict[str, int]:
        """Bytes of each table's rows, by name, without what aligns blocks."""
        found: Counter[str] = Counter()
        for block in self.blocks:
            found[block.table] += block.num_bytes
        return dict(found)

    @cached_property
    def _by_column(self) -> dict[tuple[str, int], list[RowBlock]]:
        found: dict[tuple[str, int], list[RowBlock]] = {}
        for block in self.blocks:
            found.setdefault((block.table, block.column_start), []).append(block)
        return found

    def find(self, table: str, column_start: int, row_start: int) -> RowBlock:
        """Return the block that holds a row of a table's columns from ``column_start``.

        Raises:
            KeyError: The block does not exist.
        """
        for block in self._by_column[table, column_start]:
            if block.row_start <= row_start < block.row_end:
                return block
        raise KeyError(f"no block of table {table!r} at column {column_start}, row {row_start}")

    def offset_of(self, table: str, column_start: int, row_start: int) -> int:
        """Return the offset in the blob of a row of a table's column block, in bytes."""
        block = self.find(table, column_start, row_start)
        return block.offset_bytes + (row_start - block.row_start) * block.row_bytes


def _aligned(offset: int) -> int:
    return -(-offset // BLOCK_ALIGNMENT_BYTES) * BLOCK_ALIGNMENT_BYTES


def lay_out(blocks: Sequence[RowBlock]) -> BlobLayout:
    """Arrange blocks consecutively (their own offsets are ignored)."""
    placed: list[RowBlock] = []
    offset = 0
    for block in blocks:
        placed.append(replace(block, offset_bytes=offset))
        offset = _aligned(offset + placed[-1].num_bytes)
    return BlobLayout(blocks=tuple(placed))


def block_rows(rows: Tensor, embedding_dim: int, block: RowBlock) -> Tensor:
    """Return a block's part of whole rows: its columns, at its alignment.

    Args:
        rows: ``[R, row_bytes]`` uint8, whole rows at alignment 1; any of the block's table.
        embedding_dim: The embedding dim of the table.
        block: Which columns.

    Returns:
        ``[R, row_bytes of the block]`` uint8, contiguous.
    """
    columns = (block.column_start, block.column_end)
    fmt = RowFormat(data_type=block.data_type, dim=embedding_dim)
    cut = rows if columns == (0, embedding_dim) else cut_columns(rows, fmt, *columns)
    return align_rows(cut, block.row_format, block.row_alignment).contiguous()


def copy_blocks(source: BlobLayout, source_blob: Tensor, target: BlobLayout, device: torch.device) -> Tensor:
    """Return a new blob on a device with the rows of the target's blocks, padded to their alignment.

    Args:
        source: Holds every row of the target's column blocks, at alignment 1.
        source_blob: ``[source.num_bytes]`` uint8 in host memory.
        target: The layout of the new blob.
        device: The device of the new blob.

    Returns:
        ``[target.num_bytes]`` uint8.
    """
    blob = torch.zeros(target.num_bytes, dtype=torch.uint8, device=device)
    for block in target.blocks:
        whole = source.find(block.table, block.column_start, block.row_start)
        rows = whole.rows(source_blob)[block.row_start - whole.row_start : block.row_end - whole.row_start]
        block.rows(blob)[:] = align_rows(rows, block.row_format, block.row_alignment).to(device)
    return blob
