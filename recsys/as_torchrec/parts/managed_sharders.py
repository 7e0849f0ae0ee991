"""Sharders of managed collections by TorchRec's names: they shard the tables inside, and the mappings with them.

Mappings have no sharder of their own here: ``DistributedModelParallel`` shards those with buckets as their tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from recsys.managed import ManagedCollisionEmbeddingBagCollection, ManagedCollisionEmbeddingCollection
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.sharding.mappings import divide_mappings
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ParameterSharding
from recsys.sharding.sharders import (
    BaseEmbeddingSharder,
    EmbeddingBagCollectionSharder,
    EmbeddingCollectionSharder,
)
from recsys.sharding.transport.quantized_comms import CodecsRegistry


class ManagedCollisionCollectionSharder:
    """Has no effect: a mapping is sharded as its table.

    Args:
        qcomm_codecs_registry: Has no effect: raw IDs and rows are sent as they are.
    """

    def __init__(self, qcomm_codecs_registry: CodecsRegistry | None = None) -> None:
        self.qcomm_codecs_registry = qcomm_codecs_registry


class _ShardsTablesInside(BaseEmbeddingSharder[Any]):
    """Shards the tables inside of a managed collection."""

    def shardable_parameters(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the tables' weights by name."""
        return super().shardable_parameters(_tables(module))

    def shard(
        self,
        module: nn.Module,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard the tables, in place, and return the managed collection; tables alone are returned sharded."""
        return _put_back(module, super().shard(_tables(module), params, env, device, module_fqn), env, device)


class ManagedCollisionEmbeddingBagCollectionSharder(_ShardsTablesInside, EmbeddingBagCollectionSharder):
    """Shards the tables inside of a ``ManagedCollisionEmbeddingBagCollection``, and its mappings.

    Args:
        ebc_sharder: Shards the tables; one of the other arguments if None.
        mc_sharder: Has no effect.
        fused_params: As for ``EmbeddingBagCollectionSharder``.
        qcomm_codecs_registry: As there.
    """

    managed_type = ManagedCollisionEmbeddingBagCollection

    def __init__(
        self,
        ebc_sharder: EmbeddingBagCollectionSharder | None = None,
        mc_sharder: ManagedCollisionCollectionSharder | None = None,
        fused_params: dict[str, Any] | None = None,
        qcomm_codecs_registry: CodecsRegistry | None = None,
    ) -> None:
        del mc_sharder
        super().__init__(fused_params, qcomm_codecs_registry)
        vars(self).update(vars(ebc_sharder) if ebc_sharder is not None else {})


class ManagedCollisionEmbeddingCollectionSharder(_ShardsTablesInside, EmbeddingCollectionSharder):
    """Shards the tables inside of a ``ManagedCollisionEmbeddingCollection``, and its mappings.

    Args:
        ec_sharder: Shards the tables; one of the other arguments if None.
        mc_sharder: Has no effect.
        fused_params: As for ``EmbeddingCollectionSharder``.
        qcomm_codecs_registry: As there.
    """

    managed_type = ManagedCollisionEmbeddingCollection

    def __init__(
        self,
        ec_sharder: EmbeddingCollectionSharder | None = None,
        mc_sharder: ManagedCollisionCollectionSharder | None = None,
        fused_params: dict[str, Any] | None = None,
        qcomm_codecs_registry: CodecsRegistry | None = None,
    ) -> None:
        del mc_sharder
        super().__init__(fused_params, qcomm_codecs_registry)
        vars(self).update(vars(ec_sharder) if ec_sharder is not None else {})


def _tables(module: nn.Module) -> Any:
    is_managed = isinstance(module, BaseManagedCollisionEmbeddingCollection)
    return module.embedding_module if is_managed else module


def _put_back(module: nn.Module, sharded: nn.Module, env: ShardingEnv, device: torch.device | None) -> Any:
    if not isinstance(module, BaseManagedCollisionEmbeddingCollection):
        return sharded
    env = env.with_group(device)
    module._embedding_module = sharded
    divide_mappings(module, env)
    if env.world_size > 1:
        module.managed_collision_collection.set_process_group(env.process_group)
    return module
