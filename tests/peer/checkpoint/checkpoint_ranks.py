"""A TorchRec model on the ranks of a process group, and the checkpoints that it writes there; the same model of ours.

Imported by spawned ranks: torchrec is imported where it is used.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed._shard.sharded_tensor import ShardedTensor

from recsys import DataType, EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

#: Name, rows, columns, type and how TorchRec cuts it.
TABLES = [
    ("tw", 20, 16, "FP32", "table_wise"),
    ("rw", 21, 16, "FP32", "row_wise"),
    ("cw", 22, 32, "FP32", "column_wise"),
    ("dp", 10, 8, "FP32", "data_parallel"),
    ("half_rw", 31, 16, "FP16", "row_wise"),
    ("half_cw", 13, 16, "FP16", "column_wise"),
]


class Ranker(nn.Module):
    """Pools all features and scores them."""

    def __init__(self, ebc: nn.Module) -> None:
        super().__init__()
        self.ebc = ebc
        self.over = nn.Linear(sum(dim for _, _, dim, _, _ in TABLES), 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Scores ``[B]``."""
        return self.over(self.ebc(features).values()).squeeze(1)


def make() -> nn.Module:
    """The model, of our modules."""
    return Ranker(
        EmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name=name,
                    num_embeddings=rows,
                    embedding_dim=dim,
                    feature_names=[f"f_{name}"],
                    data_type=DataType(data_type),
                )
                for name, rows, dim, data_type, _ in TABLES
            ]
        )
    )


def write(rank: int, world_size: int, folder: Path) -> dict[str, Tensor]:
    """On each rank: train TorchRec's model for two steps, write its checkpoints; rank 0 gives all of its weights."""
    warnings.simplefilter("ignore")
    import torch.distributed.checkpoint as dcp

    model, optimizer = _trained(rank, world_size)
    state = model.state_dict()
    torch.save(state, folder / f"rank{rank}.pt")
    torch.save(
        {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}, folder / f"nested{rank}.pth"
    )
    dcp.save(state, checkpoint_id=folder / "flat")
    dcp.save({"model": state, "optimizer": optimizer, "epoch": 3}, checkpoint_id=folder / "nested")
    prefixed = {f"_dmp_wrapped_module.module.{name}": value for name, value in state.items()}
    dcp.save({"state_dict": prefixed}, checkpoint_id=folder / "prefixed")
    return {name: _gathered(value, rank) for name, value in state.items()}


def _trained(rank: int, world_size: int) -> tuple[nn.Module, dict[str, Any]]:
    import torchrec
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed import sharding_plan
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.types import ShardingEnv, ShardingPlan
    from torchrec.modules import embedding_configs as configs

    torch.manual_seed(7)
    cpu = torch.device("cpu")
    ebc = torchrec.EmbeddingBagCollection(
        device=cpu,
        tables=[
            configs.EmbeddingBagConfig(
                name=name,
                num_embeddings=rows,
                embedding_dim=dim,
                feature_names=[f"f_{name}"],
                data_type=configs.DataType[data_type],
            )
            for name, rows, dim, data_type, _ in TABLES
        ],
    )
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1}
    )
    makers = {
        "table_wise": sharding_plan.table_wise(rank=1),
        "row_wise": sharding_plan.row_wise(),
        "column_wise": sharding_plan.column_wise(ranks=[1, 0]),
        "data_parallel": sharding_plan.data_parallel(),
    }
    plan = sharding_plan.construct_module_sharding_plan(
        ebc,
        {name: makers[kind] for name, _, _, _, kind in TABLES},
        sharder=sharder,
        local_size=world_size,
        world_size=world_size,
        device_type="cpu",
    )
    for sharding in plan.values():
        # The one that has optimizer state to write.
        if sharding.sharding_type != "data_parallel":
            sharding.compute_kernel = "fused"
    model = DistributedModelParallel(
        Ranker(ebc),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=cpu,
        plan=ShardingPlan(plan={"ebc": plan}),
        sharders=[sharder],
    )
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + rank)
        ids = [torch.randint(rows, (4,), generator=generator) for _, rows, _, _, _ in TABLES]
        kjt = torchrec.KeyedJaggedTensor(
            keys=[f"f_{name}" for name, *_ in TABLES],
            values=torch.cat(ids),
            lengths=torch.full((4 * len(TABLES),), 1, dtype=torch.int32),
        )
        model(kjt).sum().backward()
    return model, model.fused_optimizer.state_dict()


def _gathered(value: Any, rank: int) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return value.detach()
    whole = torch.full(value.size(), torch.nan, dtype=value.dtype) if rank == 0 else None
    value.gather(0, whole)
    return torch.empty(0) if whole is None else whole
