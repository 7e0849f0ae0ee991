"""How a module is copied to a device, and caches of modules, by TorchRec's names."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import torch
from torch import nn


class CacheMixin:
    """Has computed values that can be dropped."""

    @abstractmethod
    def clear_cache(self) -> None:
        """Drop them."""


class CopyMixIn:
    """Says itself how it is copied to a device."""

    @abstractmethod
    def copy(self, device: torch.device) -> nn.Module:
        """Return the module on a device."""


class ModuleCopyMixin(CopyMixIn):
    """Is moved to the device."""

    def copy(self, device: torch.device) -> nn.Module:
        """Return the module, moved to a device."""
        return cast(nn.Module, cast(Any, self).to(device))


class ModuleNoCopyMixin(CopyMixIn):
    """Stays where it is."""

    def copy(self, device: torch.device) -> nn.Module:
        """Return the module unchanged."""
        del device
        return cast(nn.Module, self)
