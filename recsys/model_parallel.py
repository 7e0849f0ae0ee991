"""DistributedModelParallel: tables sharded over ranks, the rest of the model replicated.

Shape letters: B batch, W world size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from recsys.allocator import tune_malloc
from recsys.embedding import find_collections
from recsys.errors import PlanError
from recsys.managed import ManagedCollisionCollection
from recsys.optim.combined import CombinedOptimizer
from recsys.optim.keyed import KeyedOptimizer
from recsys.planner.planner import EmbeddingShardingPlanner, topology_here
from recsys.sharding.plan.env import ShardingEnv
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.sharders import CollectionSharder, get_default_sharders
from recsys.sharding.table_shards import TableShards


class DistributedModelParallel(nn.Module):
    """A model over the ranks of a process group, each with a batch of its own.

    The sharders' collections are sharded by a plan, in place: the given module becomes the sharded one. The
    rest is wrapped in ``DistributedDataParallel``. Names in ``state_dict`` and ``named_parameters`` are those
    of the unsharded model.

    Args:
        module: The model; tables on the meta device are created shard by shard, other layers on the rank's
            device.
        env: The ranks; all of the default process group if None.
        device: This rank's device; the env's if None.
        plan: The placement; the planner makes one if None.
        sharders: A sharder for each kind of collection; ``get_default_sharders()`` if None.

    For training in host memory, glibc's malloc is set to keep freed memory, for the whole process
    (``recsys.allocator``), unless ``RECSYS_MALLOC=default`` is in the environment.

    Raises:
        PlanError: The plan names collections that the model lacks, or does not fit.
    """

    def __init__(
        self,
        module: nn.Module,
        env: ShardingEnv | None = None,
        device: torch.device | None = None,
        plan: ShardingPlan | None = None,
        sharders: Sequence[CollectionSharder] | None = None,
    ) -> None:
        super().__init__()
        env = env or ShardingEnv.from_process_group(cast(dist.ProcessGroup, dist.group.WORLD), device)
        if env.process_group is None:
            raise PlanError("env: expected ShardingEnv.from_process_group")
        if env.device.type == "cpu" and os.environ.get("RECSYS_MALLOC") != "default":
            tune_malloc()
        self.env = env
        self.device = torch.device(device) if device is not None else env.device
        sharders = list(sharders) if sharders is not None else get_default_sharders()
        found = _collections(module, sharders)
        if plan is None:
            ranks = topology_here(env.process_group, self.device.type, env.local_world_size)
            plan = EmbeddingShardingPlanner(ranks).collective_plan(module, sharders, env.process_group)
        unknown = sorted(set(plan.plan) - set(found))
        if unknown:
            raise PlanError(f"plan: got unknown collections {unknown}, expected {sorted(found)}")
        self.plan = plan
        for path, (collection, sharder) in found.items():
            sharded = sharder.shard(collection, plan.of(path), env, self.device)
            module = _replaced(module, path, sharded)
        _materialize(module, self.device)
        _decide_together(module, env.process_group)
        self._sharded = {p: m for p, m in module.named_modules() if isinstance(m, ShardedCollection)}
        self._dmp_wrapped_module: nn.Module = self._wrapped(module)
        fused = [(path, cast(KeyedOptimizer, part.fused_optimizer)) for path, part in self._sharded.items()]
        self._fused_optimizer = CombinedOptimizer(list(fused))

    def _wrapped(self, module: nn.Module) -> nn.Module:
        ignored = {
            f"{path}.{name}" if path else name
            for path, part in module.named_modules()
            if isinstance(part, TableShards)
            for name, _ in part.named_parameters()
        }
        ignored |= {name for name, _ in module.named_buffers()}
        dense = [p for name, p in module.named_parameters() if name not in ignored and p.requires_grad]
        if not dense or self.env.world_size == 1:
            return module
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, sorted(ignored))
        return DistributedDataParallel(
            module,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            process_group=self.env.process_group,
            gradient_as_bucket_view=True,
        )

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

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the model's state dict, with ShardedTensors for sharded tables."""
        state: dict[str, Any] = self.module.state_dict(*args, **kwargs)
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict of the model: sharded under the same plan, or of the unsharded model.

        Raises:
            RuntimeError: As ``nn.Module.load_state_dict``.
        """
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the model's parameters; for sharded tables, this rank's shards."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's buffers."""
        return self.module.named_buffers(prefix, recurse, remove_duplicate)


def _collections(
    module: nn.Module, sharders: Sequence[CollectionSharder]
) -> dict[str, tuple[nn.Module, CollectionSharder]]:
    """Return each collection by path, with the sharder of its exact type."""
    sharder_of = {sharder.module_type: sharder for sharder in sharders}
    found = find_collections(module, tuple(sharder_of), PlanError)
    return {path: (part, sharder_of[type(part)]) for path, part in found.items() if type(part) in sharder_of}


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


def _materialize(module: nn.Module, device: torch.device) -> None:
    """Initialize layers on the meta device, and move others to the rank's device."""
    # Raw IDs are mapped and batches are routed in host memory; the buffers for that stay there.
    staying = {
        part
        for owner in module.modules()
        if isinstance(owner, (ShardedCollection, ManagedCollisionCollection))
        for part in owner.modules()
    }
    for path, part in module.named_modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if isinstance(part, (TableShards, ShardedCollection)) or not own:
            continue
        if any(tensor.is_meta for tensor in own):
            reset = getattr(part, "reset_parameters", None)
            if reset is None:
                raise ValueError(
                    f"module {path!r}: {type(part).__name__} lies on the meta device and has no reset_parameters(); "
                    "make it on a real device"
                )
            part.to_empty(device=device, recurse=False)
            reset()
        elif device.type != "cpu" and part not in staying:
            for name, tensor in list(part.named_parameters(recurse=False)):
                part.register_parameter(
                    name, nn.Parameter(tensor.detach().to(device), requires_grad=tensor.requires_grad)
                )
            for name, buffer in list(part.named_buffers(recurse=False)):
                part._buffers[name] = buffer.to(device)
