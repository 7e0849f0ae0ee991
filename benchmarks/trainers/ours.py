"""Our side of the training comparison: ``recsys.model_parallel`` over the same process group."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from benchmarks.trainers.case import (
    DENSE_LAYERS,
    FUSED_PARAMS,
    NUM_DENSE,
    OVER_LAYERS,
    Side,
    TrainingCase,
)
from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagCollectionSharder,
    KeyedJaggedTensor,
    ShardingEnv,
    ShardingPlan,
)
from recsys.models.dlrm import DLRM


def our_side(case: TrainingCase) -> Side:
    """Our sharded model on this rank, with row-wise Adagrad in the backward pass."""
    collection = EmbeddingBagCollection(case.tables(), device="meta")
    model: nn.Module = collection
    if case.dlrm:
        model = DLRM(collection, NUM_DENSE, DENSE_LAYERS, OVER_LAYERS)
    group = dist.group.WORLD
    assert group is not None
    sharded = DistributedModelParallel(
        model,
        env=ShardingEnv.from_process_group(group),
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={case.path: case.plan(dist.get_world_size())}),
        sharders=[EmbeddingBagCollectionSharder(fused_params=FUSED_PARAMS)],
    )
    return Side(sharded, KeyedJaggedTensor, case)
