"""The rows file: blocks that lie side by side without a gap keep apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from export.tables.rows_file import write_rows
from export.tables.tables import StoredModel
from recsys.configs import DataType
from recsys.rows.layout import BLOCK_ALIGNMENT_BYTES
from recsys.rows.quantize import StoredTable, memory_writer, plan_blob, store_table


def test_a_block_that_ends_where_the_next_one_starts(tmp_path: Path) -> None:
    table = StoredTable(
        name="t", num_embeddings=8, embedding_dim=16, data_type=DataType.FP32, column_cuts=((0, 8), (8, 16))
    )
    layout = plan_blob([table])
    assert layout.blocks[0].num_bytes % BLOCK_ALIGNMENT_BYTES == 0
    stored = StoredModel(
        tables={}, policies={}, stored={"t": table}, layout=plan_blob([table]), plans={}, envs={}
    )
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    digests, _ = write_rows(tmp_path / "rows", stored, {"t": weight}, lambda *_: None)
    expected = torch.zeros(layout.num_bytes, dtype=torch.uint8)
    store_table(weight, table, layout, memory_writer(expected))
    data = expected.numpy().tobytes()
    assert (tmp_path / "rows").read_bytes() == data
    for block, digest in zip(layout.blocks, digests, strict=True):
        end = block.offset_bytes + block.num_bytes
        assert digest == hashlib.sha256(data[block.offset_bytes : end]).hexdigest()
