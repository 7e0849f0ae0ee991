"""Memory comes back: a process that swaps versions again and again holds as much as after the first swaps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

pytestmark = pytest.mark.slow

NUM_SWAPS = 8
# Less than the 32 MiB from which on malloc maps a piece of its own (recsys/base/allocator.py): what it would keep.
NUM_ROWS, DIM = 300_000, 64
# INT8 rows: scale and bias, then one byte a value.
TABLE_BYTES = NUM_ROWS * (DIM + 4)


class Wide(nn.Module):
    """One table of 20 MB."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingBagConfig(
            name="users", embedding_dim=DIM, num_embeddings=NUM_ROWS, feature_names=["user"]
        )
        self.tables = EmbeddingBagCollection(tables=[table])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled: Tensor = self.tables(features).values().sum(dim=1)
        return pooled


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's smaps")
@pytest.mark.parametrize(
    ("single_file", "keep"),
    [
        pytest.param(False, "keep", id="mapped-keep-previous"),
        pytest.param(False, "drop", id="mapped"),
        pytest.param(True, "drop", id="private"),
    ],
)
def test_memory_comes_back(tmp_path: Path, single_file: bool, keep: str) -> None:
    """Mapped rows, which processes share, and a single file's, which lie in the process's own memory."""
    torch.manual_seed(0)
    artifact = tmp_path / "artifact"
    config = ExportConfig(name="wide", targets=(("cpu",),), single_file=single_file)
    export_model(Wide().eval(), artifact, config)
    arguments = [artifact, tmp_path / "models", str(NUM_SWAPS), keep]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.serve.children.swap_memory", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for kind in ("rss", "private"):
        sizes = [memory[kind] for memory in found]
        # The first swaps fill allocators and caches, and what a load has used meanwhile goes back with the next swap. A
        # version that stayed would add a table to all that come after it.
        first, last = min(sizes[1:4]), min(sizes[-3:])
        if single_file:
            # malloc keeps a piece now and then, and uses it again; a version that stayed would make it four tables.
            assert last - first < 2 * TABLE_BYTES, (kind, sizes)
        else:
            assert last < 1.02 * first, (kind, sizes)
