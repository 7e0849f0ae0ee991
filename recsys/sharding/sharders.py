"""From a float collection and a plan to a sharded one that trains.

Shape letters: D embedding dim, R rows, W world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.bounds import BoundsCheckMode
from recsys.configs import BaseEmbeddingConfig, DataType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.errors import PlanError
from recsys.optim.fused import FusedOptimizer
from recsys.optim.fused_config import FusedConfig
from recsys.optim.in_backward import copy_in_backward, fused_config_of, mark_in_backward
from recsys.sharding.cuts import table_wise
from recsys.sharding.env import ShardingEnv
from recsys.sharding.features import PairIds
from recsys.sharding.group_transport import CommsConfig, GroupTransport
from recsys.sharding.host_exchange import tables_by_host
from recsys.sharding.initial_rows import fill_rows
from recsys.sharding.layout import HOME, Group, Layout, Slot, make_layout
from recsys.sharding.plan import COMPUTE_KERNELS, SHARDING_TYPES, ParameterSharding, ShardMetadata, check_plan
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
)
from recsys.sharding.table_shards import FusedTables, TableShards
from recsys.training_lookup import KernelConfig, ShardConfig, TrainingLookup, check_shard, training_lookup

_DENSE = "dense"


class CollectionSharder:
    """What the two sharders share.

    Args:
        fused_params: the optimizer in the backward pass and its numbers, by FBGEMM's names; a table's own mark
            (``apply_optimizer_in_backward``) goes before it. FBGEMM's default, SGD, without either.
        comms: in what embeddings and gradients cross between ranks; float32 by default.
        cache_load_factor: for tables of the kernel ``fused_uvm_caching`` the share of rows in the device's cache.
    """

    module_type: ClassVar[type[nn.Module]]
    _sharded_type: ClassVar[type[ShardedCollection]]
    _container: ClassVar[str]

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        comms: CommsConfig | None = None,
        cache_load_factor: float = 0.2,
    ) -> None:
        self._fused = FusedConfig.from_params(fused_params)
        self._comms = comms or CommsConfig()
        self._cache_load_factor = cache_load_factor

    @property
    def fused_config(self) -> FusedConfig:
        """The optimizer of tables that have no mark of their own."""
        return self._fused

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """What a planner may choose from."""
        del compute_device_type
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """The kernels that can train a table of this type on such a device."""
        if sharding_type == "data_parallel":
            return [_DENSE]
        return [_DENSE, "fused"] if compute_device_type == "cpu" else list(COMPUTE_KERNELS)

    def shard(
        self,
        module: nn.Module,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
    ) -> Any:
        """The same tables over the ranks of a process group. Every rank calls it with the same plan.

        Weights are taken from the module; tables on the meta device are initialized shard by shard, to the same
        numbers under every plan.

        A table whose weight has ``requires_grad=False``, on every rank, is frozen: its shards keep their weights, and
        have no optimizer and no state. Set it before: kernels do not follow what becomes of a shard's
        ``requires_grad`` later.

        Args:
            module: the float collection; not needed afterwards.
            params: for each table how it is cut.
            env: the ranks.
            device: this rank's; the env's by default.

        Raises:
            PlanError: the plan does not fit the tables or the ranks.
            ValueError: a kernel does not take a table or its optimizer.
        """
        if env.process_group is None:
            raise PlanError(
                "env: got the devices of one process, expected ShardingEnv.from_process_group: one process trains "
                "over a group of one rank"
            )
        if device is not None and torch.device(device) != env.device:
            env = ShardingEnv.from_process_group(env.process_group, device, env.local_world_size)
        tables: list[BaseEmbeddingConfig] = _tables(module)
        check_plan(tables, params, env.world_size)
        weights = {
            table.name: module.get_parameter(f"{self._container}.{table.name}.weight") for table in tables
        }
        kernels = {t.name: self._kernel(t.name, params[t.name], weights[t.name]) for t in tables}
        _check_shards(tables, params, kernels, env.device)
        classes: list[tuple[KernelConfig, DataType]] = []
        for table in tables:
            if (kernels[table.name], table.data_type) not in classes:
                classes.append((kernels[table.name], table.data_type))
        class_of = {t.name: classes.index((kernels[t.name], t.data_type)) for t in tables}
        sequence = self._sharded_type.sequence
        by_host = frozenset[str]() if sequence else tables_by_host(params, env)
        calls = {name: 2 * number + (name in by_host) for name, number in class_of.items()}
        layout = make_layout(tables, params, env.world_size, kernels=calls)
        weighted = isinstance(module, EmbeddingBagCollection) and module.is_weighted()
        transport = GroupTransport(layout, env, self._comms, sequence=sequence, by_host=by_host)
        lookups: list[TrainingLookup] = []
        held: dict[str, list[tuple[ShardMetadata, TrainingLookup, int]]] = {t.name: [] for t in tables}
        for group in layout.groups:
            if group.rank not in (HOME, env.rank):
                continue
            shards, slots = _shards_of(layout, group, params, env.rank)
            configs = [_shard_config(tables[t], where) for t, where in shards]
            kernel = classes[class_of[layout.table_of(group.slots[0]).name]][0]
            lookups.append(training_lookup(configs, slots, group.pooling, kernel, env.device, weighted))
            for i, (t, where) in enumerate(shards):
                held[tables[t].name].append((where, lookups[-1], i))
        pair_ids = PairIds(layout, weighted, {}, BoundsCheckMode.FATAL)
        sharded = self._sharded_type(layout, pair_ids, transport, lookups)
        container = nn.ModuleDict()
        for table in tables:
            mine = sorted(held[table.name], key=lambda shard: (shard[0].columns, shard[0].rows))
            shards_of_table = TableShards(table, params[table.name], env, mine)
            _fill(shards_of_table, weights[table.name])
            if params[table.name].is_replicated:
                _keep_equal(shards_of_table, env)
            if kernels[table.name].fused is None and kernels[table.name].trained:
                for parameter in shards_of_table.parameters():
                    copy_in_backward(weights[table.name], parameter)
            container[table.name] = shards_of_table
        sharded.add_module(self._container, container)
        _attach_optimizer(sharded, self._container, [kernel for kernel, _ in classes], class_of)
        return sharded

    def _kernel(self, name: str, sharding: ParameterSharding, weight: Tensor) -> KernelConfig:
        chosen = sharding.compute_kernel or (_DENSE if sharding.is_replicated else "fused")
        if sharding.is_replicated and chosen != _DENSE:
            raise PlanError(
                f"plan[{name!r}].compute_kernel: got {chosen!r} for a data_parallel table, expected 'dense': its "
                "gradients are averaged before they are used"
            )
        if chosen == _DENSE:
            return KernelConfig(name=_DENSE, fused=None, trained=weight.requires_grad)
        # A frozen table takes SGD, which has no state.
        fused = (fused_config_of(weight) or self._fused) if weight.requires_grad else FusedConfig()
        return KernelConfig(
            name=chosen,
            fused=fused,
            cache_load_factor=self._cache_load_factor,
            trained=weight.requires_grad,
        )


class EmbeddingBagCollectionSharder(CollectionSharder):
    """Shards an ``EmbeddingBagCollection`` into a ``ShardedEmbeddingBagCollection``."""

    module_type = EmbeddingBagCollection
    _sharded_type = ShardedEmbeddingBagCollection
    _container = "embedding_bags"


class EmbeddingCollectionSharder(CollectionSharder):
    """Shards an ``EmbeddingCollection`` into a ``ShardedEmbeddingCollection``."""

    module_type = EmbeddingCollection
    _sharded_type = ShardedEmbeddingCollection
    _container = "embeddings"


def get_default_sharders() -> list[CollectionSharder]:
    """One sharder for each kind of collection, with FBGEMM's default optimizer."""
    return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def _tables(module: nn.Module) -> list[BaseEmbeddingConfig]:
    if isinstance(module, EmbeddingBagCollection):
        return list(module.embedding_bag_configs())
    if isinstance(module, EmbeddingCollection):
        return list(module.embedding_configs())
    raise PlanError(
        f"module: got {type(module).__name__}, expected an EmbeddingBagCollection or EmbeddingCollection"
    )


def _shards_of(
    layout: Layout, group: Group, params: Mapping[str, ParameterSharding], rank: int
) -> tuple[list[tuple[int, ShardMetadata]], list[int]]:
    """A group's shards (table and place in it), each once, and for each slot the position of its shard."""
    of_slots = [(layout.pairs[s.pair].table, _place(layout, s, params, rank)) for s in group.slots]
    shards = list(dict.fromkeys(of_slots))
    return shards, [shards.index(shard) for shard in of_slots]


def _place(layout: Layout, slot: Slot, params: Mapping[str, ParameterSharding], rank: int) -> ShardMetadata:
    table = layout.table_of(slot)
    shards = table_wise(table, rank).shards if slot.rank == HOME else params[table.name].shards
    return next(s for s in shards if (s.columns, s.rows[0]) == (slot.columns, slot.row_start))


def _shard_config(table: BaseEmbeddingConfig, where: ShardMetadata) -> ShardConfig:
    num_rows, num_columns = where.shard_sizes
    return ShardConfig(
        table=table.name, num_rows=num_rows, num_columns=num_columns, data_type=table.data_type
    )


def _check_shards(
    tables: Sequence[BaseEmbeddingConfig],
    params: Mapping[str, ParameterSharding],
    kernels: Mapping[str, KernelConfig],
    device: torch.device,
) -> None:
    """Of all ranks, so that all refuse: one that went on would wait for the others."""
    for table in tables:
        for shard in params[table.name].shards:
            check_shard(_shard_config(table, shard), kernels[table.name], device)


@torch.no_grad()
def _fill(table: TableShards, weight: Tensor) -> None:
    if weight.is_meta:
        for where, shard in table.local_weights():
            fill_rows(table.config, where, shard)
    else:
        table.set_weight(weight.detach(), table.config.name)


def _keep_equal(table: TableShards, env: ShardingEnv) -> None:
    """A table that every rank holds starts from rank 0's numbers, and moves by the mean of the ranks' gradients."""
    group = env.process_group
    assert group is not None
    if env.world_size == 1:
        return
    parameter = next(table.parameters())
    dist.broadcast(parameter.detach(), src=dist.get_global_rank(group, 0), group=group)
    if not parameter.requires_grad:
        return

    def average(changed: Tensor) -> None:
        assert changed.grad is not None
        dist.all_reduce(changed.grad, group=group)
        changed.grad /= env.world_size

    parameter.register_post_accumulate_grad_hook(average)  # type: ignore[no-untyped-call]


def _attach_optimizer(
    sharded: ShardedCollection, container: str, kernels: list[KernelConfig], class_of: Mapping[str, int]
) -> None:
    tables: Mapping[str, TableShards] = dict(sharded.get_submodule(container).named_children())  # type: ignore[arg-type]
    made = []
    for i, kernel in enumerate(kernels):
        if kernel.fused is None or not kernel.trained:
            continue
        members = [tables[name] for name, number in class_of.items() if number == i]
        made.append(FusedTables(kernel.fused, container, members))
    sharded.trained_tables = tables
    sharded.fused_optimizer = FusedOptimizer(made)
    for table in tables.values():
        if table.is_fused:
            for parameter in table.parameters():
                mark_in_backward(parameter, sharded.fused_optimizer)
