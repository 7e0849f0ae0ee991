"""Run as a process by ``test_source_shards``: writes sharded checkpoints, or exports them.

Prints the process's largest resident set in bytes.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, init_from_local_shards

from export.pipeline import export_model
from export.source.load import Source, load_model
from recsys import EmbeddingBagCollection
from recsys.configs import EmbeddingBagConfig

DIM, NUM_TABLES, NUM_ROWS = 64, 8, 100_000
TABLE_BYTES = NUM_ROWS * DIM * 4
MODEL_BYTES = NUM_TABLES * TABLE_BYTES
#: Where each table is cut in two by rows or by columns.
ROW_CUT, COLUMN_CUT = 50_000, 24


def make(num_rows: int = NUM_ROWS) -> nn.Module:
    """Eight tables, 205 MB."""
    return EmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=f"t{i}", num_embeddings=num_rows, embedding_dim=DIM, feature_names=[f"f{i}"]
            )
            for i in range(NUM_TABLES)
        ]
    )


def _sharded(weight: torch.Tensor, at: int) -> ShardedTensor:
    rows, columns = weight.shape
    if at % 2:
        parts = [(weight[:ROW_CUT], [0, 0]), (weight[ROW_CUT:], [ROW_CUT, 0])]
    else:
        parts = [(weight[:, :COLUMN_CUT], [0, 0]), (weight[:, COLUMN_CUT:], [0, COLUMN_CUT])]
    shards = [Shard.from_tensor_and_offsets(part.contiguous(), where, 0) for part, where in parts]
    return init_from_local_shards(shards, rows, columns)


def _write(path: Path) -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    weights = make().state_dict()
    state = {name: _sharded(weight, i) for i, (name, weight) in enumerate(weights.items())}
    dcp.save({"model": state}, checkpoint_id=path / "dcp")
    (path / "ranks").mkdir()
    torch.save(state, path / "ranks" / "rank0.pt")
    torch.save(make(10).state_dict(), path / "small.pt")
    dist.destroy_process_group()


def main(mode: str, path: Path) -> None:
    """Modes: ``write`` the checkpoints; ``small``, ``dcp``: export one of them; ``ranks``: load them."""
    torch.set_num_threads(1)
    if mode == "write":
        _write(path)
        return
    arguments = {"num_rows": 10} if mode == "small" else {}
    model = load_model(
        Source(
            path=path / ("small.pt" if mode == "small" else mode),
            factory=f"{__spec__.name}:make" if __spec__ else None,
            arguments=arguments,
            scratch=path,
        )
    )
    if mode != "ranks":
        export_model(model, path / f"{mode}.artifact")
    # Not getrusage: a process starts with the largest resident set of the one that started it.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
