"""Jagged data types, embedding collections, quantized rows, sharding, and training over ranks.

Names are imported on first access: a server does not import training modules, and a client does not import
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.as_torchrec.planner.planner import EmbeddingShardingPlanner
    from recsys.configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
    from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
    from recsys.jagged.keyed import KeyedTensor
    from recsys.jagged.keyed_jagged import KeyedJaggedTensor
    from recsys.jagged.tensor import JaggedTensor
    from recsys.model_parallel import DistributedModelParallel
    from recsys.optim.combined import CombinedOptimizer, OptimizerWrapper
    from recsys.optim.fused import FusedOptimizer
    from recsys.optim.fused_config import EmbOptimType
    from recsys.optim.in_backward import apply_optimizer_in_backward, in_backward_optimizer_filter
    from recsys.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper
    from recsys.optim.rowwise_adagrad import RowWiseAdagrad
    from recsys.planner.cost.constraints import ParameterConstraints
    from recsys.planner.cost.topology import Topology
    from recsys.quant import QuantEmbeddingBagCollection, QuantEmbeddingCollection
    from recsys.sharding.plan.env import ShardingEnv
    from recsys.sharding.plan.plan import ParameterSharding, ShardingPlan, ShardMetadata
    from recsys.sharding.sharded import ShardedEmbeddingBagCollection, ShardedEmbeddingCollection
    from recsys.sharding.sharders import (
        EmbeddingBagCollectionSharder,
        EmbeddingCollectionSharder,
        get_default_sharders,
    )
    from recsys.sharding.transport.awaitable import Awaitable, LazyAwaitable, NoWait
    from recsys.sharding.transport.group_transport import CommsConfig

_LAZY = {
    "recsys.configs": ("DataType", "EmbeddingBagConfig", "EmbeddingConfig", "PoolingType"),
    "recsys.embedding": ("EmbeddingBagCollection", "EmbeddingCollection"),
    "recsys.jagged.keyed": ("KeyedTensor",),
    "recsys.jagged.keyed_jagged": ("KeyedJaggedTensor",),
    "recsys.jagged.tensor": ("JaggedTensor",),
    "recsys.quant": ("QuantEmbeddingBagCollection", "QuantEmbeddingCollection"),
    "recsys.model_parallel": ("DistributedModelParallel",),
    "recsys.optim.combined": ("CombinedOptimizer", "OptimizerWrapper"),
    "recsys.optim.fused": ("FusedOptimizer",),
    "recsys.optim.fused_config": ("EmbOptimType",),
    "recsys.optim.in_backward": ("apply_optimizer_in_backward", "in_backward_optimizer_filter"),
    "recsys.optim.keyed": ("KeyedOptimizer", "KeyedOptimizerWrapper"),
    "recsys.optim.rowwise_adagrad": ("RowWiseAdagrad",),
    "recsys.planner.cost.constraints": ("ParameterConstraints",),
    "recsys.as_torchrec.planner.planner": ("EmbeddingShardingPlanner",),
    "recsys.planner.cost.topology": ("Topology",),
    "recsys.sharding.transport.awaitable": ("Awaitable", "LazyAwaitable", "NoWait"),
    "recsys.sharding.plan.env": ("ShardingEnv",),
    "recsys.sharding.transport.group_transport": ("CommsConfig",),
    "recsys.sharding.plan.plan": ("ParameterSharding", "ShardMetadata", "ShardingPlan"),
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
    if name == "__version__":
        from recsys.base.machine import package_version

        return package_version("recsys-serving") or "unknown"
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    except (ImportError, OSError) as error:
        from recsys.base.stack import unusable_package

        unusable = unusable_package(error)
        if unusable is None:
            raise
        raise unusable from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
