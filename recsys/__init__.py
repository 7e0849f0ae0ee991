"""The sharded core: jagged data types, embedding collections, quantized rows, sharding, training over ranks.

What only training needs is imported when it is first asked for: a server never does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from recsys.configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged import JaggedTensor
from recsys.keyed import KeyedTensor
from recsys.keyed_jagged import KeyedJaggedTensor
from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection

if TYPE_CHECKING:
    from recsys.model_parallel import DistributedModelParallel
    from recsys.optim.combined import CombinedOptimizer, OptimizerWrapper
    from recsys.optim.fused import FusedOptimizer
    from recsys.optim.fused_config import EmbOptimType
    from recsys.optim.in_backward import apply_optimizer_in_backward, in_backward_optimizer_filter
    from recsys.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper
    from recsys.optim.rowwise_adagrad import RowWiseAdagrad
    from recsys.planner.constraints import ParameterConstraints
    from recsys.planner.planner import EmbeddingShardingPlanner
    from recsys.planner.topology import Topology
    from recsys.sharding.awaitable import Awaitable, LazyAwaitable, NoWait
    from recsys.sharding.env import ShardingEnv
    from recsys.sharding.group_transport import CommsConfig
    from recsys.sharding.plan import ParameterSharding, ShardingPlan, ShardMetadata
    from recsys.sharding.sharded import ShardedEmbeddingBagCollection, ShardedEmbeddingCollection
    from recsys.sharding.sharders import (
        EmbeddingBagCollectionSharder,
        EmbeddingCollectionSharder,
        get_default_sharders,
    )

_LAZY = {
    "recsys.model_parallel": ("DistributedModelParallel",),
    "recsys.optim.combined": ("CombinedOptimizer", "OptimizerWrapper"),
    "recsys.optim.fused": ("FusedOptimizer",),
    "recsys.optim.fused_config": ("EmbOptimType",),
    "recsys.optim.in_backward": ("apply_optimizer_in_backward", "in_backward_optimizer_filter"),
    "recsys.optim.keyed": ("KeyedOptimizer", "KeyedOptimizerWrapper"),
    "recsys.optim.rowwise_adagrad": ("RowWiseAdagrad",),
    "recsys.planner.constraints": ("ParameterConstraints",),
    "recsys.planner.planner": ("EmbeddingShardingPlanner",),
    "recsys.planner.topology": ("Topology",),
    "recsys.sharding.awaitable": ("Awaitable", "LazyAwaitable", "NoWait"),
    "recsys.sharding.env": ("ShardingEnv",),
    "recsys.sharding.group_transport": ("CommsConfig",),
    "recsys.sharding.plan": ("ParameterSharding", "ShardMetadata", "ShardingPlan"),
    "recsys.sharding.sharded": ("ShardedEmbeddingBagCollection", "ShardedEmbeddingCollection"),
    "recsys.sharding.sharders": (
        "EmbeddingBagCollectionSharder",
        "EmbeddingCollectionSharder",
        "get_default_sharders",
    ),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "Awaitable",
    "CombinedOptimizer",
    "CommsConfig",
    "DataType",
    "DistributedModelParallel",
    "EmbOptimType",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingCollectionSharder",
    "EmbeddingConfig",
    "EmbeddingShardingPlanner",
    "FusedOptimizer",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedOptimizer",
    "KeyedOptimizerWrapper",
    "KeyedTensor",
    "LazyAwaitable",
    "NoWait",
    "OptimizerWrapper",
    "ParameterConstraints",
    "ParameterSharding",
    "PoolingType",
    "QuantEmbeddingBagCollection",
    "QuantEmbeddingCollection",
    "RowWiseAdagrad",
    "ShardMetadata",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "ShardingEnv",
    "ShardingPlan",
    "Topology",
    "apply_optimizer_in_backward",
    "get_default_sharders",
    "in_backward_optimizer_filter",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
