"""The rows file: blocks that lie side by side without a gap keep apart; nothing of it stays cached."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from export.tables import StoredModel, drop_cached, write_rows
from recsys.artifact.parts import ROWS_NAME
from recsys.configs import DataType
from recsys.embedding import EmbeddingBagCollection
from recsys.rows.layout import BLOCK_ALIGNMENT_BYTES
from recsys.rows.quantize import StoredTable, memory_writer, plan_blob, store_table
from tests.support.helpers import bag


def test_a_block_that_ends_where_the_next_one_starts(tmp_path: Path) -> None:
    table = StoredTable(
        name="t", num_embeddings=8, embedding_dim=16, data_type=DataType.FP32, column_cuts=((0, 8), (8, 16))
    )
    layout = plan_blob([table])
    assert layout.blocks[0].num_bytes % BLOCK_ALIGNMENT_BYTES == 0
    stored = StoredModel(
        tables={},
        paths={},
        weighted=(),
        policies={},
        stored={"t": table},
        layout=plan_blob([table]),
        plans={},
        envs={},
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


def test_nothing_of_an_artifact_stays_cached(tmp_path: Path) -> None:
    # Single cached pages, as the verification reads them, would keep servers from mapping huge ones.
    probe = tmp_path / "probe"
    with probe.open("wb") as file:
        file.write(bytes(1 << 16))
        os.fsync(file.fileno())
    drop_cached(probe)
    if _num_cached(probe) != 0:
        pytest.skip("this file system keeps files in memory")
    model = EmbeddingBagCollection([bag("t", 5_000, 32, ["f"])])
    num_cached = []
    # A busy system keeps pages for a moment longer.
    while len(num_cached) < 5 and 0 not in num_cached:
        folder = tmp_path / str(len(num_cached))
        export_model(model, folder, ExportConfig())
        assert (folder / ROWS_NAME).stat().st_size > 40 * mmap.PAGESIZE
        num_cached.append(_num_cached(folder / ROWS_NAME))
    assert num_cached[-1] == 0


def _num_cached(path: Path) -> int:
    """The number of a file's pages that can be read without waiting for the disk."""
    count = 0
    with path.open("rb", buffering=0) as file:
        for start in range(0, path.stat().st_size, mmap.PAGESIZE):
            try:
                os.preadv(file.fileno(), [bytearray(1)], start, os.RWF_NOWAIT)
                count += 1
            except BlockingIOError:
                pass
    return count
