"""TorchRec's side of the training comparison: its own DistributedModelParallel over the same process group.

TorchRec is imported where it is used: it is no dependency of anything but this comparison.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata

from benchmarks.trainers.case import (
    DENSE_LAYERS,
    FUSED_PARAMS,
    NUM_DENSE,
    OVER_LAYERS,
    Side,
    TrainingCase,
)
from recsys.sharding.plan.plan import ParameterSharding


def peer_side(case: TrainingCase) -> Side:
    """TorchRec's sharded model on this rank, with row-wise Adagrad in the backward pass."""
    with warnings.catch_warnings():
        # TorchRec 1.8 imports what its own dependencies have deprecated.
        warnings.simplefilter("ignore")
        torchrec = import_module("torchrec")
        sharder = import_module("torchrec.distributed.embeddingbag").EmbeddingBagCollectionSharder
        parallel = import_module("torchrec.distributed.model_parallel")
    model = parallel.DistributedModelParallel(
        _unsharded(case, torchrec),
        device=torch.device("cpu"),
        plan=_plan(case),
        sharders=[sharder(fused_params=FUSED_PARAMS)],
    )
    return Side(model, torchrec.KeyedJaggedTensor, case)


def _unsharded(case: TrainingCase, torchrec: Any) -> nn.Module:
    tables = [
        torchrec.EmbeddingBagConfig(
            name=table.name,
            embedding_dim=table.embedding_dim,
            num_embeddings=table.num_embeddings,
            feature_names=table.feature_names,
        )
        for table in case.tables()
    ]
    collection: nn.Module = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
    if not case.dlrm:
        return collection
    dlrm: nn.Module = import_module("torchrec.models.dlrm").DLRM(
        collection, NUM_DENSE, list(DENSE_LAYERS), list(OVER_LAYERS), torch.device("cpu")
    )
    return dlrm


def _plan(case: TrainingCase) -> Any:
    types = import_module("torchrec.distributed.types")
    tables = {
        name: types.ParameterSharding(
            sharding_type=sharding.sharding_type,
            compute_kernel="fused",
            ranks=list(sharding.ranks),
            sharding_spec=EnumerableShardingSpec(_shards(sharding)),
        )
        for name, sharding in case.plan(dist.get_world_size()).items()
    }
    return types.ShardingPlan({case.path: types.EmbeddingModuleShardingPlan(tables)})


def _shards(sharding: ParameterSharding) -> list[ShardMetadata]:
    return [
        ShardMetadata(
            shard_offsets=list(shard.shard_offsets),
            shard_sizes=list(shard.shard_sizes),
            placement=f"rank:{shard.rank}/cpu",
        )
        for shard in sharding.shards
    ]
