"""Quantization of float tables to a blob of stored rows, in memory or in a file, a few rows at a time.

Shape letters: D embedding dim, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from recsys.base.json_checks import ALWAYS
from recsys.configs import DataType
from recsys.rows.format import (
    HOST_ROW_ALIGNMENT,
    RowFormat,
    dequantize_rows,
    quantize_rows,
    row_error_bounds,
    stored_type,
)
from recsys.rows.layout import BlobLayout, RowBlock, block_rows, lay_out

#: Rows converted at a time: 4 MiB of floats at width 64.
CHUNK_ROWS = 1 << 14

# The largest relative error ‖row − stored row‖ / ‖row‖ that a row may have: about five times what rows of
# normally distributed numbers show (0.7 %, 8 % and 45 % at width 64). Rows that fp16 scale and bias cannot hold
# (very small numbers; a narrow range far from zero) lie far above it. Measured in
# tests/recsys/rows/test_quantize.py.
MAX_RELATIVE_ERRORS = {DataType.INT8: 0.05, DataType.INT4: 0.4, DataType.INT2: 2.0, DataType.FP16: 0.05}


@dataclass(frozen=True, kw_only=True)
class StoredTable:
    """A table to store.

    Attributes:
        name: Unique within the blob.
        column_cuts: First column and end of each block; one block for all columns if empty.
        zero_row: Whether to store an additional row of zeros after the last (for ID policy ZERO).
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: Annotated[DataType, stored_type]
    column_cuts: tuple[tuple[int, int], ...] = ()
    zero_row: Annotated[bool, ALWAYS] = False

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """The column blocks."""
        return self.column_cuts or ((0, self.embedding_dim),)

    @property
    def row_format(self) -> RowFormat:
        """The size of a whole row."""
        return RowFormat(data_type=self.data_type, dim=self.embedding_dim)

    @property
    def num_rows(self) -> int:
        """Number of stored rows."""
        return self.num_embeddings + self.zero_row


def plan_blob(tables: Iterable[StoredTable], row_alignment: int = HOST_ROW_ALIGNMENT) -> BlobLayout:
    """Return one block for each column block of each table.

    Raises:
        ValueError: A cut is no multiple of what the row format allows.
    """
    blocks = []
    for table in tables:
        multiple = table.row_format.dim_multiple
        for start, end in table.cuts:
            if start % multiple or (end % multiple and end != table.embedding_dim):
                raise ValueError(
                    f"table {table.name!r}: got columns cut at {start}:{end}, expected multiples of {multiple} "
                    f"for {table.data_type.value} rows"
                )
            blocks.append(
                RowBlock(
                    table=table.name,
                    data_type=table.data_type,
                    row_start=0,
                    row_end=table.num_rows,
                    column_start=start,
                    column_end=end,
                    offset_bytes=0,
                    row_alignment=row_alignment,
                )
            )
    return lay_out(blocks)


@dataclass
class QuantizationError:
    """The quantization error of a table.

    Attributes:
        signal: Sum of the squares of the float numbers.
        noise: Sum of the squares of the differences.
        max_abs: The largest difference.
    """

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in dB; infinite for a lossless row type."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf


#: Writes bytes ``[n, row_bytes]`` at an offset.
Writer = Callable[[int, Tensor], None]


def store_table(
    weight: Tensor,
    table: StoredTable,
    layout: BlobLayout,
    write: Writer,
    on_rows: Callable[[int], None] | None = None,
) -> QuantizationError:
    """Quantize a table and write its blocks.

    Args:
        weight: ``[R, D]`` float, in host memory.
        table: The table to store.
        layout: The places of its blocks.
        write: Writes the rows.
        on_rows: Called with the number of rows after each chunk, for progress.

    Raises:
        ValueError: The shapes differ, or a row cannot be stored faithfully; names the table and the row.
    """
    if tuple(weight.shape) != (table.num_embeddings, table.embedding_dim):
        raise ValueError(
            f"table {table.name!r}: got weights {list(weight.shape)}, "
            f"expected {[table.num_embeddings, table.embedding_dim]}"
        )
    blocks = [layout.find(table.name, start, 0) for start, _ in table.cuts]
    error = QuantizationError()
    for first in range(0, table.num_embeddings, CHUNK_ROWS):
        chunk = weight[first : first + CHUNK_ROWS].detach().to(torch.float32)
        rows = stored_rows(chunk, table, first, error)
        _write_rows(rows, first, table, blocks, write)
        if on_rows is not None:
            on_rows(len(chunk))
    if table.zero_row:
        zeros = quantize_rows(torch.zeros(1, table.embedding_dim), table.data_type)
        _write_rows(zeros, table.num_embeddings, table, blocks, write)
    return error


def stored_rows(chunk: Tensor, table: StoredTable, first: int, error: QuantizationError) -> Tensor:
    """Quantize some rows, and measure the error.

    Args:
        chunk: ``[R, D]`` float32, in host memory.
        table: Their table.
        first: The number of the first row.
        error: The error of these rows is added to it.

    Returns:
        ``[R, row_bytes]`` uint8, whole rows at alignment 1.

    Raises:
        ValueError: A row cannot be stored faithfully; names the table and the row.
    """
    _check_finite(chunk, table, first)
    try:
        rows = quantize_rows(chunk, table.data_type, first)
    except ValueError as wrong:
        raise ValueError(f"table {table.name!r}, {wrong}") from None
    _measure(error, chunk, rows, table, first)
    return rows


def _check_finite(chunk: Tensor, table: StoredTable, first: int) -> None:
    """Check that rows hold numbers.

    Raises:
        ValueError: Some do not; names the table, the first such row, and how many there are.
    """
    if chunk.sum().isfinite():  # one pass; a sum beyond float32's range is looked at more closely
        return
    bad = ~chunk.isfinite().all(dim=1)
    if not bad.any():
        return
    row = int(bad.nonzero()[0])
    kinds = [
        kind for kind, found in (("NaN", chunk[row].isnan()), ("infinity", chunk[row].isinf())) if found.any()
    ]
    raise ValueError(
        f"table {table.name!r}, row {first + row}: got {' and '.join(kinds)}, expected finite numbers "
        f"({int(bad.sum())} of {len(chunk)} rows are so from row {first} on): no type of rows serves them. The "
        "training has diverged: export a checkpoint from before, or set such rows first, such as by "
        "torch.nan_to_num_(weight, 0, 0, 0)"
    )


def _write_rows(
    rows: Tensor, first: int, table: StoredTable, blocks: Sequence[RowBlock], write: Writer
) -> None:
    for block in blocks:
        write(block.offset_bytes + first * block.row_bytes, block_rows(rows, table.embedding_dim, block))


def _measure(error: QuantizationError, chunk: Tensor, rows: Tensor, table: StoredTable, first: int) -> None:
    if table.data_type is DataType.FP32:
        error.signal += float(chunk.square().sum())
        return
    difference = dequantize_rows(rows, table.row_format).sub_(chunk)
    largest = difference.abs().amax(dim=1)
    bounds = row_error_bounds(rows, table.row_format)
    noise, signal = difference.square_().sum(dim=1), chunk.square().sum(dim=1)
    error.signal += float(signal.sum(dtype=torch.float64))
    error.noise += float(noise.sum(dtype=torch.float64))
    error.max_abs = max(error.max_abs, float(largest.max()))
    relative = (noise / signal.clamp(min=torch.finfo(torch.float32).tiny)).sqrt()
    relative = torch.where(largest > bounds, torch.inf, relative)
    worst = int(relative.argmax())
    if float(relative[worst]) > MAX_RELATIVE_ERRORS[table.data_type]:
        raise ValueError(
            f"table {table.name!r}, row {first + worst}: its numbers (from {float(chunk[worst].min()):g} to "
            f"{float(chunk[worst].max()):g}) cannot be held by {table.data_type.value} rows with fp16 scale and "
            f"bias: the error reaches {float(largest[worst]):g}; store the table as FP32 or FP16"
        )


def memory_writer(blob: Tensor) -> Writer:
    """Return a writer into a uint8 tensor."""

    def write(offset: int, rows: Tensor) -> None:
        blob[offset : offset + rows.numel()] = rows.view(-1)

    return write


def recut(
    layout: BlobLayout, blob: Tensor, cuts: Mapping[str, Sequence[tuple[int, int]]]
) -> tuple[BlobLayout, Tensor]:
    """Return the same rows with other column blocks; layout and blob must hold whole tables.

    Raises:
        ValueError: A cut is no multiple of what the row format allows.
    """
    tables = [
        StoredTable(
            name=block.table,
            num_embeddings=block.num_rows,
            embedding_dim=block.row_format.dim,
            data_type=block.data_type,
            column_cuts=tuple(cuts[block.table]),
        )
        for block in layout.blocks
    ]
    target = plan_blob(tables, layout.row_alignment)
    new_blob = torch.zeros(target.num_bytes, dtype=torch.uint8)
    write = memory_writer(new_blob)
    for table, source in zip(tables, layout.blocks, strict=True):
        blocks = [target.find(table.name, start, 0) for start, _ in table.cuts]
        packed = source.rows(blob)[:, : source.row_format.row_bytes()]
        _write_rows(packed, 0, table, blocks, write)
    return target, new_blob
