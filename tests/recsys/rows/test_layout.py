"""Where rows lie in a blob, and how they are copied to another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recsys import DataType
from recsys.rows.format import dequantize_rows, quantize_rows
from recsys.rows.layout import BLOCK_ALIGNMENT_BYTES, TAIL_BYTES, BlobLayout, RowBlock, copy_blocks, lay_out
from tests.support.helpers import STORED_TYPES


def block(table: str, kind: DataType, rows: int, dim: int) -> RowBlock:
    return RowBlock(
        table=table, data_type=kind, row_start=0, row_end=rows, column_start=0, column_end=dim, offset_bytes=0
    )


BLOCKS = [block(kind.name, kind, 5 + i, 20) for i, kind in enumerate(STORED_TYPES)]


def test_blocks_are_aligned_and_do_not_overlap() -> None:
    layout = lay_out(BLOCKS)
    end = 0
    for placed in layout.blocks:
        assert placed.offset_bytes % BLOCK_ALIGNMENT_BYTES == 0
        assert placed.offset_bytes >= end
        end = placed.offset_bytes + placed.num_bytes
    assert layout.num_bytes >= end + TAIL_BYTES - BLOCK_ALIGNMENT_BYTES
    assert layout.num_bytes >= end + 64  # what the INT4 and INT2 kernels may read past the last row


def test_an_empty_layout() -> None:
    assert BlobLayout(blocks=()).num_bytes == TAIL_BYTES
    assert BlobLayout(blocks=()).row_alignment == 1


def test_blocks_are_found_by_table_column_and_row() -> None:
    first = block("t", DataType.INT8, 10, 8)
    layout = lay_out(
        [
            replace(first, row_end=6),
            replace(first, row_start=6),
            replace(first, column_start=8, column_end=12),
        ]
    )
    assert layout.find("t", 0, 5) is layout.blocks[0]
    assert layout.find("t", 0, 6) is layout.blocks[1]
    assert layout.find("t", 8, 9) is layout.blocks[2]
    assert layout.offset_of("t", 0, 8) == layout.blocks[1].offset_bytes + 2 * 12
    for missing in (("u", 0, 0), ("t", 4, 0), ("t", 0, 10)):
        with pytest.raises(KeyError):
            layout.find(*missing)


@pytest.mark.parametrize("alignment", [1, 16])
def test_copied_rows_are_the_same_numbers(alignment: int) -> None:
    source = lay_out(BLOCKS)
    blob = torch.zeros(source.num_bytes, dtype=torch.uint8)
    weights = {b.table: torch.randn(b.num_rows, 20) for b in BLOCKS}
    for placed in source.blocks:
        placed.rows(blob)[:] = quantize_rows(weights[placed.table], placed.data_type)
    wanted = [replace(b, row_start=2, row_end=4, row_alignment=alignment) for b in BLOCKS[::-1]]
    target = lay_out(wanted)
    copied = copy_blocks(source, blob, target, torch.device("cpu"))
    assert copied.shape == (target.num_bytes,)
    for placed in target.blocks:
        numbers = dequantize_rows(placed.rows(copied), placed.row_format)
        whole = source.find(placed.table, 0, 0)
        assert torch.equal(numbers, dequantize_rows(whole.rows(blob), whole.row_format)[2:4])
