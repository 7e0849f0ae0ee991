"""DistributedModelParallel: tables sharded over ranks, the rest of the model replicated.

Shape letters: B batch, W world size.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from recsys.base.allocator import tune_malloc
from recsys.errors import PlanError
from recsys.find_collections import find_collections
from recsys.managed import ManagedCollisionCollection
from recsys.managed.embedding import BaseManagedCollisionEmbeddingCollection
from recsys.optim.combined import CombinedOptimizer
from recsys.optim.keyed import KeyedOptimizer
from recsys.planner.planner import EmbeddingShardingPlanner, topology_here
from recsys.sharding.mappings import divide_mappings
from recsys.sharding.materialize import materialize
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.sharders import ModuleSharder, get_default_sharders
from recsys.sharding.table_shards import TableShards

_HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}


class DataParallelWrapper(ABC):
    """Wraps what is not sharded, so that its gradients are averaged over the ranks."""

    @abstractmethod
    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Replace ``dmp._dmp_wrapped_module``, whose tables are sharded, by the wrapped model."""


class DefaultDataParallelWrapper(DataParallelWrapper):
    """Wraps it in ``DistributedDataParallel``; arguments as there, except those below.

    Args:
        bucket_cap_mb: As there.
        static_graph: As there; True lets parameters stay unused, always the same ones.
        find_unused_parameters: As there.
        allreduce_comm_precision: ``fp16``, or ``bf16`` under NCCL: the dtype of gradients between ranks; float32 by
            default.
        params_to_ignore: Further parameters that are not averaged, by name.
        ddp_kwargs: Further arguments.

    Raises:
        ValueError: Another precision.
    """

    def __init__(
        self,
        bucket_cap_mb: int = 25,
        static_graph: bool = True,
        find_unused_parameters: bool = False,
        allreduce_comm_precision: str | None = None,
        params_to_ignore: list[str] | None = None,
        ddp_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if allreduce_comm_precision not in (None, *_HOOKS):
            raise ValueError(
                f"allreduce_comm_precision: got {allreduce_comm_precision!r}, expected one of {list(_HOOKS)}"
            )
        self._options = {
            "bucket_cap_mb": bucket_cap_mb,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
            "gradient_as_bucket_view": True,
            **(ddp_kwargs or {}),
        }
        self._precision = allreduce_comm_precision
        self._ignored = set(params_to_ignore or ())

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Wrap the model, unless there is one rank, or nothing to average."""
        module = dmp.module
        ignored = self._ignored | {
            f"{path}.{name}" if path else name
            for path, part in module.named_modules()
            if isinstance(part, TableShards)
            for name, _ in part.named_parameters()
        }
        ignored |= {name for name, _ in module.named_buffers()}
        dense = [p for name, p in module.named_parameters() if name not in ignored and p.requires_grad]
        if not dense or env.world_size == 1:
            return
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sorted(ignored))
        wrapped = DistributedDataParallel(
            module,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=env.process_group,
            **self._options,
        )
        if self._precision is not None:
            wrapped.register_comm_hook(env.process_group, _HOOKS[self._precision])
        dmp._dmp_wrapped_module = wrapped


class DistributedModelParallel(nn.Module):
    """A model over the ranks of a process group, each with a batch of its own.

    The sharders' collections are sharded by a plan, in place: the given module becomes the sharded one. The
    rest is wrapped in ``DistributedDataParallel``. Mappings of raw IDs are sharded with the rows of their tables where
    they have buckets for that (``recsys.sharding.mappings``), else replicated. Names in ``state_dict`` and
    ``named_parameters`` are those of the unsharded model.

    Args:
        module: The model; tables on the meta device are created shard by shard, other layers on the rank's
            device.
        env: The ranks; all of the default process group if None. One rank without a group gets one of its own.
        device: This rank's device; the env's if None.
        plan: The placement; the planner makes one if None.
        sharders: A sharder for each kind of collection; ``get_default_sharders()`` if None.
        init_data_parallel: Whether to wrap the rest now; if not, call ``init_data_parallel()`` before the first step.
        init_parameters: Whether to initialize other layers on the meta device, by their ``reset_parameters``.
        data_parallel_wrapper: Wraps the rest; ``DefaultDataParallelWrapper()`` if None.
        model_tracker_configs: None: there are no trackers.

    For training in host memory, glibc's malloc is set to keep freed memory, for the whole process
    (``recsys.base.allocator``), unless ``RECSYS_MALLOC=default`` is in the environment.

    Raises:
        PlanError: The plan names collections that the model lacks, or does not fit; several ranks have no group.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's)
        self,
        module: nn.Module,
        env: ShardingEnv | None = None,
        device: torch.device | None = None,
        plan: ShardingPlan | None = None,
        sharders: Sequence[ModuleSharder[Any]] | None = None,
        init_data_parallel: bool = True,
        init_parameters: bool = True,
        data_parallel_wrapper: DataParallelWrapper | None = None,
        model_tracker_configs: object | None = None,
    ) -> None:
        super().__init__()
        if model_tracker_configs is not None:
            raise ValueError("model_tracker_configs: got some, expected None: there are no trackers")
        env = env or ShardingEnv.from_process_group(cast(dist.ProcessGroup, dist.group.WORLD), device)
        if env.process_group is None:
            env = env.with_group(device)
        group = cast(dist.ProcessGroup, env.process_group)
        if env.device.type == "cpu" and os.environ.get("RECSYS_MALLOC") != "default":
            tune_malloc()
        self.env = env
        self.device = torch.device(device) if device is not None else env.device
        sharders = list(sharders) if sharders is not None else get_default_sharders()
        found = _collections(module, sharders)
        if plan is None:
            ranks = topology_here(group, self.device.type, env.local_world_size)
            plan = EmbeddingShardingPlanner(ranks).collective_plan(module, sharders, group)
        plan = _of_tables(plan, module)
        unknown = sorted(set(plan.plan) - set(found))
        if unknown:
            raise PlanError(f"plan: got unknown collections {unknown}, expected {sorted(found)}")
        self.plan = plan
        for path, (collection, sharder) in found.items():
            sharded = sharder.shard(collection, plan.of(path), env, self.device, path)
            module = _replaced(module, path, sharded)
        divide_mappings(module, env)
        materialize(module, self.device, initializes=init_parameters)
        _decide_together(module, group)
        self._sharded = {p: m for p, m in module.named_modules() if isinstance(m, ShardedCollection)}
        self._dmp_wrapped_module: nn.Module = module
        self._data_parallel_wrapper = data_parallel_wrapper or DefaultDataParallelWrapper()
        self._is_wrapped = False
        if init_data_parallel:
            self.init_data_parallel()
        fused = [(path, cast(KeyedOptimizer, part.fused_optimizer)) for path, part in self._sharded.items()]
        self._fused_optimizer = CombinedOptimizer(list(fused))

    def init_data_parallel(self) -> None:
        """Wrap what is not sharded, once."""
        if not self._is_wrapped:
            self._data_parallel_wrapper.wrap(self, self.env, self.device)
            self._is_wrapped = True

    @property
    def module(self) -> nn.Module:
        """The model without its wrapper."""
        wrapped = self._dmp_wrapped_module
        return cast(nn.Module, wrapped.module) if isinstance(wrapped, DistributedDataParallel) else wrapped

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        return self._dmp_wrapped_module(*args, **kwargs)

    def sharded_modules(self) -> dict[str, ShardedCollection]:
        """Return the sharded collections by path."""
        return dict(self._sharded)

    @property
    def fused_optimizer(self) -> KeyedOptimizer:
        """The optimizer of all tables trained in the backward pass, with the model's names."""
        return self._fused_optimizer

    def state_dict(  # type: ignore[override]
        self, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return the model's state dict, with ShardedTensors for sharded tables."""
        into: dict[str, Any] = OrderedDict() if destination is None else destination
        state: dict[str, Any] = self.module.state_dict(destination=into, prefix=prefix, keep_vars=keep_vars)
        return state

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], prefix: str = "", strict: bool = True, *, assign: bool = False
    ) -> Any:
        """Load a state dict of the model: sharded under the same plan, or of the unsharded model.

        Args:
            state_dict: The state.
            prefix: What its names begin with; others are left out.
            strict: As ``nn.Module.load_state_dict``.
            assign: As ``nn.Module.load_state_dict``.

        Raises:
            RuntimeError: As ``nn.Module.load_state_dict``.
        """
        named = {n.removeprefix(prefix): value for n, value in state_dict.items() if n.startswith(prefix)}
        return self.module.load_state_dict(named, strict=strict, assign=assign)

    def sparse_grad_parameter_names(
        self, destination: list[str] | None = None, prefix: str = ""
    ) -> list[str]:
        """Return the parameters with sparse gradients, for ``KeyedOptimizer.init_state``: none."""
        del prefix
        return [] if destination is None else destination

    def bare_named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the model's parameters, each once; for sharded tables, this rank's shards."""
        return self.named_parameters(prefix, recurse)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the model's parameters; for sharded tables, this rank's shards."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's buffers: as of the unsharded model, none of sharded collections."""
        of_collections = {id(buffer) for part in self._sharded.values() for buffer in part.buffers()}
        for name, buffer in self.module.named_buffers(prefix, recurse, remove_duplicate):
            if id(buffer) not in of_collections:
                yield name, buffer


def _collections(
    module: nn.Module, sharders: Sequence[ModuleSharder[Any]]
) -> dict[str, tuple[nn.Module, ModuleSharder[Any]]]:
    """Return each collection by path, with the sharder of its exact type.

    A sharder with a ``managed_type`` shards the collections inside of managed ones of this type alone.
    """
    of_managed = {s.managed_type: s for s in sharders if hasattr(s, "managed_type")}
    sharder_of = {s.module_type: s for s in sharders if not hasattr(s, "managed_type")}
    inside = {
        id(part.embedding_module): of_managed[type(part)]
        for part in module.modules()
        if isinstance(part, BaseManagedCollisionEmbeddingCollection) and type(part) in of_managed
    }
    found: dict[str, tuple[nn.Module, ModuleSharder[Any]]] = {}
    for path, part in find_collections(module, tuple(s.module_type for s in sharders), PlanError).items():
        sharder = inside.get(id(part)) or sharder_of.get(type(part))
        if sharder is not None:
            found[path] = (part, sharder)
    return found


def _of_tables(plan: ShardingPlan, module: nn.Module) -> ShardingPlan:
    """Return a plan with the paths of collections, also where it has those of managed ones around them."""
    return ShardingPlan(
        plan={
            f"{path}._embedding_module".removeprefix(".")
            if isinstance(_at(module, path), BaseManagedCollisionEmbeddingCollection)
            else path: tables
            for path, tables in plan.plan.items()
        }
    )


def _at(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _replaced(module: nn.Module, path: str, new: nn.Module) -> nn.Module:
    if not path:
        return new
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, new)
    return module


def _decide_together(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Set the group over which ranks agree on the rows of raw IDs in managed collections."""
    managed = [part for part in module.modules() if isinstance(part, ManagedCollisionCollection)]
    if not managed or dist.get_world_size(group) == 1:
        return
    if "gloo" not in dist.get_backend(group):
        # The mapping is in host memory.
        group = dist.new_group(dist.get_process_group_ranks(group), backend="gloo")
    for collection in managed:
        collection.set_process_group(group)


def get_module(module: nn.Module) -> nn.Module:
    """Return what ``DistributedModelParallel`` wraps; other wrappers stay."""
    while isinstance(module, DistributedModelParallel):
        module = module._dmp_wrapped_module
    return module


def get_unwrapped_module(module: nn.Module) -> nn.Module:
    """Return the model without ``DistributedModelParallel``, DDP and FSDP around it."""
    while True:
        if isinstance(module, DistributedModelParallel):
            module = module._dmp_wrapped_module
        elif isinstance(module, (DistributedDataParallel, FullyShardedDataParallel)):
            module = module.module
        else:
            return module


def get_unsharded_module_names(model: nn.Module) -> list[str]:
    """Return the names of the topmost modules that hold no sharded collection, beside such that do."""
    names: list[str] = []
    _collect_unsharded(model, "", names)
    return names


def _collect_unsharded(module: nn.Module, prefix: str, names: list[str]) -> bool:
    """Return whether a module holds a sharded collection; if so, add the names of its children that do not."""
    if isinstance(module, ShardedCollection):
        return True
    found: list[str] = []
    unsharded = [
        prefix + name
        for name, child in module.named_children()
        if not _collect_unsharded(child, f"{prefix}{name}.", found)
    ]
    holds = len(unsharded) < len(list(module.named_children()))
    if holds:
        names += [*unsharded, *found]
    return holds
