"""A training script as users of TorchRec write them: deep imports, and the keywords of TorchRec's constructors.

Each rank writes its losses as JSON: torchrun train_dlrm.py --out FOLDER
"""

import argparse
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torchrec
import torchrec.distributed as trec_dist
from torch import nn
from torchrec import EmbeddingBagCollection, KeyedJaggedTensor
from torchrec.datasets.utils import Batch
from torchrec.distributed import TrainPipelineSparseDist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import (
    DistributedModelParallel,
    get_default_sharders,
)
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import (
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardedTensor, ShardingType
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

BATCH_SIZE, NUM_DENSE, DIM = 16, 4, 8
ROWS = {"user": 64, "item": 48, "shop": 24, "hour": 12}
SHARDING = {
    "user": ShardingType.TABLE_WISE,
    "item": ShardingType.TABLE_COLUMN_WISE,
    "shop": ShardingType.COLUMN_WISE,
    "hour": ShardingType.DATA_PARALLEL,
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6)
    return parser.parse_args()


def make_model(device: torch.device) -> nn.Module:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{key}",
            embedding_dim=DIM,
            num_embeddings=rows,
            feature_names=[key],
            pooling=torchrec.PoolingType.MEAN if key == "shop" else torchrec.PoolingType.SUM,
        )
        for key, rows in ROWS.items()
    ]
    return DLRMTrain(
        DLRM(
            embedding_bag_collection=EmbeddingBagCollection(tables=tables, device=device),
            dense_in_features=NUM_DENSE,
            dense_arch_layer_sizes=[16, DIM],
            over_arch_layer_sizes=[16, 1],
            dense_device=device,
        )
    )


def load_weights(model: DistributedModelParallel) -> None:
    """Load weights that depend on their names alone, whatever the plan and the number of ranks."""
    state = model.state_dict()
    for name, value in state.items():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        weight = torch.rand(value.size(), generator=generator) * 0.4 - 0.2
        if isinstance(value, ShardedTensor):
            for shard in value.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.detach().copy_(weight[row : row + rows, column : column + columns])
        else:
            value.detach().copy_(weight)
    model.load_state_dict(state)


def batches(rank: int, steps: int) -> Iterator[Batch]:
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        lengths = torch.randint(0, 4, (len(ROWS) * BATCH_SIZE,), generator=generator)
        per_key = lengths.view(len(ROWS), -1).sum(1).tolist()
        values = [
            torch.randint(0, rows, (count,), generator=generator)
            for rows, count in zip(ROWS.values(), per_key, strict=True)
        ]
        yield Batch(
            dense_features=torch.rand(BATCH_SIZE, NUM_DENSE, generator=generator),
            sparse_features=KeyedJaggedTensor.from_lengths_sync(
                keys=list(ROWS), values=torch.cat(values), lengths=lengths
            ),
            labels=torch.randint(0, 2, (BATCH_SIZE,), generator=generator),
        )


def main() -> None:
    args = parse_args()
    dist.init_process_group(backend="gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")

    model = make_model(device)
    apply_optimizer_in_backward(
        torchrec.optim.RowWiseAdagrad,
        model.model.sparse_arch.parameters(),
        optimizer_kwargs={"lr": 0.1, "eps": 1e-6},
    )

    planner = EmbeddingShardingPlanner(
        topology=Topology(
            world_size=world_size,
            local_world_size=get_local_size(world_size),
            compute_device=device.type,
        ),
        batch_size=BATCH_SIZE,
        storage_reservation=HeuristicalStorageReservation(percentage=0.1),
        constraints={
            f"t_{key}": ParameterConstraints(
                sharding_types=[sharding_type.value],
                compute_kernels=[
                    EmbeddingComputeKernel.DENSE.value
                    if sharding_type is ShardingType.DATA_PARALLEL
                    else EmbeddingComputeKernel.FUSED.value
                ],
            )
            for key, sharding_type in SHARDING.items()
        },
    )
    plan = planner.collective_plan(model, get_default_sharders(), dist.GroupMember.WORLD)
    model = DistributedModelParallel(
        module=model,
        env=trec_dist.ShardingEnv.from_process_group(dist.GroupMember.WORLD),
        device=device,
        plan=plan,
    )
    load_weights(model)
    dense_optimizer = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda params: torch.optim.Adagrad(params, lr=0.05),
    )
    optimizer = CombinedOptimizer([model.fused_optimizer, dense_optimizer])

    pipeline = TrainPipelineSparseDist(model, optimizer, device, execute_all_batches=True)
    iterator, losses = batches(rank, args.steps), []
    while True:
        try:
            loss, _, _ = pipeline.progress(iterator)
        except StopIteration:
            break
        losses.append(loss.item())
    (args.out / f"losses_{rank}.json").write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    main()
