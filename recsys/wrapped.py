"""What lies inside of a wrapped model: the model, and its parts without sharded tables."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from recsys.model_parallel import DistributedModelParallel
from recsys.sharding.sharded import ShardedCollection


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
