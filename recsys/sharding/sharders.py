"""Sharders, which turn a float collection and a plan into a sharded one for training.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from recsys.base.table_modules import TableModules
from recsys.configs import BaseEmbeddingConfig, DataType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection, takes_weights
from recsys.errors import PlanError
from recsys.kernels.training import (
    KernelConfig,
    ShardConfig,
    TrainingLookup,
    check_shard,
    pools_by_slot,
    training_lookup,
)
from recsys.optim.fused import FusedOptimizer
from recsys.optim.fused_config import FusedConfig
from recsys.optim.in_backward import fused_config_of, mark_in_backward
from recsys.sharding.first_weights import fill, keep_equal
from recsys.sharding.fused_params import UVM_CACHING_RATIO, FusedParams
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.layout import REPLICATED, Group, Layout, Slot, make_layout
from recsys.sharding.plan.plan import (
    COMPUTE_KERNELS,
    DATA_PARALLEL,
    SHARDING_TYPES,
    ParameterSharding,
    ShardMetadata,
    check_plan,
)
from recsys.sharding.plan.sharding_types import table_wise
from recsys.sharding.sharded import (
    ShardedCollection,
    ShardedEmbeddingBagCollection,
    ShardedEmbeddingCollection,
)
from recsys.sharding.table_shards import FusedTables, TableShards
from recsys.sharding.transport.group_transport import CommsConfig, GroupTransport
from recsys.sharding.transport.hierarchical import tables_by_host
from recsys.sharding.transport.inputs import PairIds
from recsys.sharding.transport.quantized_comms import CodecsRegistry, CommOp, comms_of

M = TypeVar("M", bound=nn.Module)

_LOGGER = logging.getLogger(__name__)
_DENSE = "dense"

#: A shard on this rank: its place in the table, its kernel, and its position among the kernel's shards.
_Held = tuple[ShardMetadata, TrainingLookup, int]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A float collection to shard.

    Attributes:
        tables: The tables.
        params: The sharding of each table.
        weights: The float weight of each table, possibly on the meta device.
        kernels: The kernel of each table.
        env: The ranks.
        is_weighted: Whether lookups take weights.
    """

    tables: Sequence[BaseEmbeddingConfig]
    params: Mapping[str, ParameterSharding]
    weights: Mapping[str, nn.Parameter]
    kernels: Mapping[str, KernelConfig]
    env: ShardingEnv
    is_weighted: bool

    @property
    def classes(self) -> list[tuple[KernelConfig, DataType]]:
        """The distinct pairs of kernel and data type, in the order of the tables."""
        found: list[tuple[KernelConfig, DataType]] = []
        for table in self.tables:
            if (self.kernels[table.name], table.data_type) not in found:
                found.append((self.kernels[table.name], table.data_type))
        return found

    @property
    def class_of(self) -> dict[str, int]:
        """The position in ``classes`` of each table."""
        classes = self.classes
        return {t.name: classes.index((self.kernels[t.name], t.data_type)) for t in self.tables}

    @property
    def mixed(self) -> frozenset[str]:
        """The tables whose kernel pools each slot by itself."""
        class_of, found = self.class_of, set[str]()
        for i, (kernel, _) in enumerate(self.classes):
            members = [table for table in self.tables if class_of[table.name] == i]
            shards = [
                _shard_config(table, where) for table in members for where in self.params[table.name].shards
            ]
            if not self.is_weighted and pools_by_slot(shards, kernel, self.env.device):
                found.update(table.name for table in members)
        return frozenset(found)


class ModuleSharder(ABC, Generic[M]):
    """Shards modules of one type.

    Args:
        qcomm_codecs_registry: The dtypes of embeddings between ranks (``get_qcomm_codecs_registry``).
    """

    def __init__(self, qcomm_codecs_registry: CodecsRegistry | None = None) -> None:
        self._qcomm_codecs_registry = qcomm_codecs_registry

    @property
    @abstractmethod
    def module_type(self) -> type[M]:
        """The type of the modules."""

    @property
    def qcomm_codecs_registry(self) -> CodecsRegistry | None:
        """The dtypes of embeddings between ranks, as given."""
        return self._qcomm_codecs_registry

    @abstractmethod
    def shard(
        self,
        module: M,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Return the sharded module."""

    def shardable_parameters(self, module: M) -> dict[str, nn.Parameter]:
        """Return the parameters that are sharded, by name."""
        return dict(module.named_parameters())

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Return the sharding types that a planner may choose."""
        del compute_device_type
        return [DATA_PARALLEL]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Return the kernels that can train a table of this type on such a device."""
        del sharding_type, compute_device_type
        return [_DENSE]

    def storage_usage(self, tensor: Tensor, compute_device_type: str, compute_kernel: str) -> dict[str, int]:
        """Return the bytes of a table's rows by the kind of memory that holds them, ``hbm`` or ``ddr``."""
        on_host = compute_device_type == "cpu" or "uvm" in compute_kernel
        return {"ddr" if on_host else "hbm": tensor.numel() * tensor.element_size()}


class BaseEmbeddingSharder(ModuleSharder[M]):
    """The base of the sharders of collections.

    Args:
        fused_params: The optimizer in the backward pass and its numbers, by FBGEMM's names; a table's own
            mark (``apply_optimizer_in_backward``) takes precedence. Without either, FBGEMM's default, SGD. Tables
            with the kernel ``dense`` have none of these, as in TorchRec: another optimizer trains them. Also the
            cache of tables with the kernel ``fused_uvm_caching``, by FBGEMM's names: ``cache_load_factor``,
            ``cache_algorithm``, ``cache_reserved_memory``, ``cache_precision``, ``prefetch_pipeline``, ``enforce_hbm``,
            ``multipass_prefetch_config``; and ``bounds_check_mode``. A table's settings in the plan take precedence.
        qcomm_codecs_registry: The dtypes of embeddings and gradients between ranks; float32 by default.
        sharded_module_order_overwrite: None: groups of tables are called in the order of the tables.
        comms: The same as a ``CommsConfig``, instead.
        cache_load_factor: For tables with the kernel ``fused_uvm_caching``, the share of rows in the device's
            cache, unless ``fused_params`` or the plan has it.
    """

    _sharded_type: ClassVar[type[ShardedCollection]]
    _container: ClassVar[str]
    _comm_ops: ClassVar[tuple[CommOp, ...]]

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        qcomm_codecs_registry: CodecsRegistry | None = None,
        sharded_module_order_overwrite: list[str] | None = None,
        *,
        comms: CommsConfig | None = None,
        cache_load_factor: float = UVM_CACHING_RATIO,
    ) -> None:
        if sharded_module_order_overwrite is not None:
            raise ValueError(
                "sharded_module_order_overwrite: got some, expected None: groups of tables "
                "are called in the order of the tables"
            )
        super().__init__(qcomm_codecs_registry)
        self._fused_params = None if fused_params is None else dict(fused_params)
        self._params = FusedParams.of({"cache_load_factor": cache_load_factor, **(fused_params or {})})
        self._comms = comms or comms_of(qcomm_codecs_registry, self._comm_ops)

    @property
    def fused_params(self) -> dict[str, Any] | None:
        """The optimizer and the cache, as given."""
        return self._fused_params

    @property
    def fused_config(self) -> FusedConfig:
        """The optimizer of unmarked tables."""
        return self._params.optimizer

    def shardable_parameters(self, module: M) -> dict[str, nn.Parameter]:
        """Return the tables' weights by name."""
        weights = module.get_submodule(self._container)
        return {name: table.get_parameter("weight") for name, table in weights.named_children()}

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Return the sharding types that a planner may choose."""
        del compute_device_type
        return list(SHARDING_TYPES)

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """Return the kernels that can train a table of this type on such a device."""
        if sharding_type == DATA_PARALLEL:
            return [_DENSE]
        return [_DENSE, "fused"] if compute_device_type == "cpu" else list(COMPUTE_KERNELS)

    def shard(
        self,
        module: M,
        params: Mapping[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> Any:
        """Shard the tables over the ranks of a process group. Every rank must call it with the same plan.

        Weights are taken from the module; tables on the meta device are initialized shard by shard, with the
        same values under every plan.

        A table whose weight has ``requires_grad=False``, on every rank, is frozen: its shards keep their
        weights and have no optimizer and no state. Set it before sharding: later changes of a shard's
        ``requires_grad`` have no effect.

        Args:
            module: The float collection; not needed afterwards.
            params: The sharding of each table.
            env: The ranks.
            device: This rank's device; the env's by default.
            module_fqn: The module's path, for TorchRec's traces; not needed.

        Raises:
            PlanError: The plan does not fit the tables or the ranks.
            ValueError: A kernel does not support a table or its optimizer.
        """
        del module_fqn
        source = self._source(module, params, env.with_group(device))
        layout, by_host = self._layout(source)
        lookups, held = _make_lookups(source, layout)
        sharded = self._sharded_type(
            layout,
            PairIds(layout, source.is_weighted, {}, self._params.bounds_check_mode(params)),
            GroupTransport(
                layout, source.env, self._comms, sequence=self._sharded_type.sequence, by_host=by_host
            ),
            lookups,
        )
        tables = TableModules(
            {table.name: _table_shards(source, table, held[table.name]) for table in source.tables}
        )
        sharded.add_module(self._container, tables)
        _attach_optimizer(sharded, self._container, source)
        return sharded

    def _source(
        self, module: nn.Module, params: Mapping[str, ParameterSharding], env: ShardingEnv
    ) -> _Source:
        """Check the collection and its plan, and choose the kernels."""
        tables = _tables(module)
        check_plan(tables, params, env.world_size)
        weights = {
            table.name: module.get_parameter(f"{self._container}.{table.name}.weight") for table in tables
        }
        source = _Source(
            tables=tables,
            params=params,
            weights=weights,
            kernels={t.name: self._kernel(t.name, params[t.name], weights[t.name]) for t in tables},
            env=env,
            is_weighted=takes_weights(module),
        )
        _check_shards(source)
        return source

    def _layout(self, source: _Source) -> tuple[Layout, frozenset[str]]:
        """Lay out the collection; also return the tables whose partial sums are added inside hosts."""
        by_host = frozenset[str]()
        if not self._sharded_type.sequence:
            by_host = tables_by_host(source.params, source.env)
        # Groups are calls of one kernel configuration; sums that are added inside hosts have separate groups.
        calls = {name: 2 * number + (name in by_host) for name, number in source.class_of.items()}
        mixed = () if self._sharded_type.sequence else source.mixed
        size = source.env.world_size
        return make_layout(source.tables, source.params, size, kernels=calls, mixed=mixed), by_host

    def _kernel(self, name: str, sharding: ParameterSharding, weight: Tensor) -> KernelConfig:
        chosen = sharding.compute_kernel or (_DENSE if sharding.is_replicated else "fused")
        if sharding.is_replicated and chosen != _DENSE:
            raise PlanError(
                f"plan[{name!r}].compute_kernel: got {chosen!r} for a data_parallel table, expected 'dense': its "
                "gradients are averaged before they are used"
            )
        if chosen == _DENSE:
            return KernelConfig(name=_DENSE, fused=None, trained=weight.requires_grad)
        # A frozen table gets SGD, which has no state.
        fused = (fused_config_of(weight) or self.fused_config) if weight.requires_grad else FusedConfig()
        return self._params.kernel(chosen, fused, sharding, trained=weight.requires_grad)


class EmbeddingBagCollectionSharder(BaseEmbeddingSharder[EmbeddingBagCollection]):
    """Shards an ``EmbeddingBagCollection`` into a ``ShardedEmbeddingBagCollection``."""

    _sharded_type = ShardedEmbeddingBagCollection
    _container = "embedding_bags"
    _comm_ops = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)

    @property
    def module_type(self) -> type[EmbeddingBagCollection]:
        """``EmbeddingBagCollection``."""
        return EmbeddingBagCollection


class EmbeddingCollectionSharder(BaseEmbeddingSharder[EmbeddingCollection]):
    """Shards an ``EmbeddingCollection`` into a ``ShardedEmbeddingCollection``.

    Args:
        fused_params: As ``EmbeddingBagCollectionSharder``.
        qcomm_codecs_registry: As there.
        use_index_dedup: Has no effect: whether IDs that occur twice in a batch are sent twice changes no output.
        comms: As there.
        cache_load_factor: As there.
    """

    _sharded_type = ShardedEmbeddingCollection
    _container = "embeddings"
    _comm_ops = (CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL,)

    def __init__(
        self,
        fused_params: Mapping[str, Any] | None = None,
        qcomm_codecs_registry: CodecsRegistry | None = None,
        use_index_dedup: bool = False,
        *,
        comms: CommsConfig | None = None,
        cache_load_factor: float = UVM_CACHING_RATIO,
    ) -> None:
        del use_index_dedup
        super().__init__(
            fused_params, qcomm_codecs_registry, comms=comms, cache_load_factor=cache_load_factor
        )

    @property
    def module_type(self) -> type[EmbeddingCollection]:
        """``EmbeddingCollection``."""
        return EmbeddingCollection


def get_default_sharders() -> list[ModuleSharder[Any]]:
    """Return one sharder for each kind of collection, with FBGEMM's default optimizer."""
    return [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]


def _make_lookups(source: _Source, layout: Layout) -> tuple[list[TrainingLookup], dict[str, list[_Held]]]:
    """Make the kernels of this rank's groups; also return each table's shards in them."""
    tables, env = source.tables, source.env
    lookups: list[TrainingLookup] = []
    held: dict[str, list[_Held]] = {table.name: [] for table in tables}
    for group in layout.groups:
        if group.rank not in (REPLICATED, env.rank):
            continue
        shards, slots = _shards_of(layout, group, source.params, env.rank)
        configs = [_shard_config(tables[t], where) for t, where in shards]
        kernel = source.kernels[layout.table_of(group.slots[0]).name]
        lookups.append(
            training_lookup(configs, slots, group.poolings, kernel, env.device, source.is_weighted)
        )
        for i, (t, where) in enumerate(shards):
            held[tables[t].name].append((where, lookups[-1], i))
    return lookups, held


def _table_shards(source: _Source, table: BaseEmbeddingConfig, held: Sequence[_Held]) -> TableShards:
    """Make a table's shards on this rank, with their initial weights."""
    sharding, kernel = source.params[table.name], source.kernels[table.name]
    in_order = sorted(held, key=lambda shard: (shard[0].columns, shard[0].rows))
    shards = TableShards(table, sharding, source.env, in_order)
    fill(shards, source.weights[table.name])
    if sharding.is_replicated:
        keep_equal(shards, source.env)
    if kernel.fused is None and kernel.trained and fused_config_of(source.weights[table.name]) is not None:
        _LOGGER.info(
            "table %r: its optimizer in the backward pass is left out, because the kernel is dense; another "
            "optimizer must have its weight (in_backward_optimizer_filter yields it)",
            table.name,
        )
    return shards


def _tables(module: nn.Module) -> list[BaseEmbeddingConfig]:
    if isinstance(module, EmbeddingBagCollection):
        return list(module.embedding_bag_configs())
    if isinstance(module, EmbeddingCollection):
        if module.need_indices():
            raise PlanError(
                "need_indices: got True, expected False: a sharded collection returns rows without their IDs, which "
                "the batch holds"
            )
        return list(module.embedding_configs())
    raise PlanError(
        f"module: got {type(module).__name__}, expected an EmbeddingBagCollection or EmbeddingCollection"
    )


def _shards_of(
    layout: Layout, group: Group, params: Mapping[str, ParameterSharding], rank: int
) -> tuple[list[tuple[int, ShardMetadata]], list[int]]:
    """Return a group's shards (table and place in it), each once, and for each slot the position of its shard."""
    of_slots = [(layout.pairs[s.pair].table, _place(layout, s, params, rank)) for s in group.slots]
    shards = list(dict.fromkeys(of_slots))
    return shards, [shards.index(shard) for shard in of_slots]


def _place(layout: Layout, slot: Slot, params: Mapping[str, ParameterSharding], rank: int) -> ShardMetadata:
    table = layout.table_of(slot)
    shards = table_wise(table, rank).shards if slot.rank == REPLICATED else params[table.name].shards
    return next(s for s in shards if (s.columns, s.rows[0]) == (slot.columns, slot.row_start))


def _shard_config(table: BaseEmbeddingConfig, where: ShardMetadata) -> ShardConfig:
    num_rows, num_columns = where.shard_sizes
    return ShardConfig(
        table=table.name, num_rows=num_rows, num_columns=num_columns, data_type=table.data_type
    )


def _check_shards(source: _Source) -> None:
    """Check the shards of all ranks, so that all ranks raise and none waits for the others."""
    for table in source.tables:
        for shard in source.params[table.name].shards:
            check_shard(_shard_config(table, shard), source.kernels[table.name], source.env.device)


def _attach_optimizer(sharded: ShardedCollection, container: str, source: _Source) -> None:
    """Set the collection's optimizer, which controls those in its kernels."""
    tables: Mapping[str, TableShards] = dict(sharded.get_submodule(container).named_children())  # type: ignore[arg-type]
    class_of = source.class_of
    made = []
    for i, (kernel, _) in enumerate(source.classes):
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
