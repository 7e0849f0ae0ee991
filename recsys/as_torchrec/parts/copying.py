"""Copies of modules on a device, by TorchRec's names."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from recsys.modules.copying import CopyMixIn


def copy_to_device(module: nn.Module, current_device: torch.device, to_device: torch.device) -> nn.Module:
    """Return a copy of a module, with the tensors of one device moved to another.

    Modules inside that say themselves how they are copied (``CopyMixIn``) are asked. Tensors on other devices are
    copied and stay there; what was shared is shared in the copy.

    Args:
        module: The module; it is not changed.
        current_device: The device whose tensors are moved; without a number, all of its kind.
        to_device: Where they go.
    """
    return _Move(torch.device(current_device), torch.device(to_device)).module(copy.deepcopy(module))


class CopyableMixin(nn.Module):
    """A module with a method that copies it to a device."""

    def copy(self, device: torch.device) -> nn.Module:
        """Return a copy whose CPU tensors are on a device."""
        return copy_to_device(self, current_device=torch.device("cpu"), to_device=device)


class _Move:
    """Moves modules in place; each module and tensor once."""

    def __init__(self, current: torch.device, to: torch.device) -> None:
        self._current = current
        self._to = to
        self._modules: dict[nn.Module, nn.Module] = {}
        self._tensors: dict[Tensor, Tensor] = {}

    def module(self, module: nn.Module) -> nn.Module:
        """Return the module that takes a module's place."""
        if module not in self._modules:
            self._modules[module] = (
                module.copy(self._to) if isinstance(module, CopyMixIn) else self._parts_of(module)
            )
        return self._modules[module]

    def _parts_of(self, module: nn.Module) -> nn.Module:
        held: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in held:
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = self._tensor(tensor)
        for name, child in module.named_children():
            module._modules[name] = self.module(child)
        return module

    def _tensor(self, tensor: Tensor) -> Tensor:
        here = tensor.device.type == self._current.type and self._current.index in (None, tensor.device.index)
        if not here or tensor.device == self._to:
            return tensor
        if tensor not in self._tensors:
            moved = tensor.detach().to(self._to)
            is_parameter = isinstance(tensor, nn.Parameter)
            self._tensors[tensor] = nn.Parameter(moved, tensor.requires_grad) if is_parameter else moved
        return self._tensors[tensor]
