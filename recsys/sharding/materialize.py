"""Layers on the meta device become real, and others move to a device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from recsys.managed import ManagedCollisionCollection
from recsys.sharding.sharded import ShardedCollection
from recsys.sharding.table_shards import TableShards


def materialize(module: nn.Module, device: torch.device, *, initializes: bool = True) -> None:
    """Initialize layers on the meta device, and move others to a device. Sharded tables stay where they are.

    A layer on the meta device is initialized by its ``reset_parameters``, or by that of the nearest module around it
    that has one.

    Args:
        module: A model whose tables are sharded.
        device: The device.
        initializes: Whether layers on the meta device are initialized; if not, they stay there.

    Raises:
        ValueError: A layer on the meta device cannot be initialized.
    """
    # Raw IDs are mapped and batches are routed in host memory; the buffers for that stay there.
    staying = {
        part
        for owner in module.modules()
        if isinstance(owner, (ShardedCollection, ManagedCollisionCollection))
        for part in owner.modules()
    }
    resetting: dict[nn.Module, None] = {}
    for path, part in module.named_modules():
        own = _own(part)
        if isinstance(part, (TableShards, ShardedCollection)) or not own:
            continue
        if any(tensor.is_meta for tensor in own):
            if not initializes:
                continue
            resetting[_resetter(module, path)] = None
            part.to_empty(device=device, recurse=False)
        elif device.type != "cpu" and part not in staying:
            for name, tensor in list(part.named_parameters(recurse=False)):
                part.register_parameter(
                    name, nn.Parameter(tensor.detach().to(device), requires_grad=tensor.requires_grad)
                )
            for name, buffer in list(part.named_buffers(recurse=False)):
                part._buffers[name] = buffer.to(device)
    for part in resetting:
        part.reset_parameters()  # type: ignore[operator]


@torch.no_grad()
def init_parameters(module: nn.Module, device: torch.device) -> None:
    """Initialize a module on a device, unless it lies there: what it held before is lost, as in TorchRec.

    Every module in it that has ``reset_parameters`` is initialized, the inner ones first.

    Args:
        module: The module.
        device: The device.
    """
    if all(tensor.device == device for tensor in module.parameters()):
        return
    if any(tensor.is_meta for tensor in module.parameters()):
        module.to_empty(device=device)
    else:
        module.to(device)

    def reset(part: nn.Module) -> None:
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()  # type: ignore[operator]

    module.apply(reset)


def _own(part: nn.Module) -> list[Tensor]:
    return [*part.parameters(recurse=False), *part.buffers(recurse=False)]


def _resetter(module: nn.Module, path: str) -> nn.Module:
    """Return the nearest module around a path, or at it, that has ``reset_parameters``."""
    for around in _upwards(path):
        found = module.get_submodule(around)
        if hasattr(found, "reset_parameters"):
            return found
    raise ValueError(
        f"module {path!r}: {type(module.get_submodule(path)).__name__} lies on the meta device and neither it nor a "
        "module around it has reset_parameters(); make it on a real device"
    )


def _upwards(path: str) -> Iterator[str]:
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path
