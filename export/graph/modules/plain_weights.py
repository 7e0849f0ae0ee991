"""Layers whose weights are computed from other tensors, as layers with weights of their own.

``torch.nn.utils.parametrize`` (weight norm, spectral norm, orthogonal), the older ``weight_norm`` and
``spectral_norm``, and ``torch.nn.utils.prune`` compute a weight each time it is read. An exported weight does not
change, so it is computed once, as in eval mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

# Hooks before a forward that compute a weight; what each computes, and the names of what it computes it from.
_HOOKS: tuple[tuple[type[Any], Callable[[Any, nn.Module], Tensor], tuple[str, ...]], ...] = (
    (WeightNorm, lambda hook, module: hook.compute_weight(module), ("{}_g", "{}_v")),
    (
        SpectralNorm,
        lambda hook, module: hook.compute_weight(module, do_power_iteration=False),
        ("{}_orig", "{}_u", "{}_v"),
    ),
    (prune.BasePruningMethod, lambda hook, module: hook.apply_mask(module), ("{}_orig", "{}_mask")),
)


def computes_weights(module: nn.Module) -> bool:
    """Return whether a layer computes weights of its own each time that they are read."""
    return parametrize.is_parametrized(module) or any(
        isinstance(hook, kind) for hook in module._forward_pre_hooks.values() for kind, _, _ in _HOOKS
    )


def shallow_copy(module: nn.Module) -> nn.Module:
    """Return a copy that shares parameters, buffers and modules, in which every weight is plain.

    Args:
        module: Any module, which is not changed.
    """
    if not computes_weights(module):
        new = copy.copy(module)
        _separate(new, module)
        return new
    kind = type(module)
    if parametrize.is_parametrized(module):
        kind = parametrize.type_before_parametrizations(module)
    new = kind.__new__(kind)
    _separate(new, module)
    with torch.no_grad():
        if parametrize.is_parametrized(module):
            _compute_parametrized(module, new)
        for key, hook in list(module._forward_pre_hooks.items()):
            for hooked, compute, sources in _HOOKS:
                if isinstance(hook, hooked):
                    name = _name_of(hook)
                    value = compute(hook, module)
                    for source in sources:
                        new._parameters.pop(source.format(name), None)
                        new._buffers.pop(source.format(name), None)
                    _set(new, name, value)
                    del new._forward_pre_hooks[key]
    if isinstance(new, nn.RNNBase):
        new._flat_weights = [getattr(new, name) for name in new._flat_weights_names]
    return new


def _separate(new: nn.Module, module: nn.Module) -> None:
    """Give a copy dicts of its own."""
    new.__dict__ = {
        **module.__dict__,
        "_parameters": dict(module._parameters),
        "_buffers": dict(module._buffers),
        "_modules": dict(module._modules),
        "_forward_pre_hooks": copy.copy(module._forward_pre_hooks),
    }


def _compute_parametrized(module: nn.Module, new: nn.Module) -> None:
    del new._modules["parametrizations"]
    parametrizations: Any = module.parametrizations
    for name, of in parametrizations.items():
        # Spectral norm estimates on while it trains.
        _set(new, name, _in_eval(of)())


def _in_eval(module: nn.Module) -> nn.Module:
    new = copy.copy(module)
    _separate(new, module)
    new._modules.update(
        {name: _in_eval(child) for name, child in module._modules.items() if child is not None}
    )
    new.training = False
    return new


def _name_of(hook: Any) -> str:
    name: str = hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name
    return name


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    module.__dict__.pop(name, None)
    module._parameters[name] = nn.Parameter(value.detach().contiguous(), requires_grad=False)
