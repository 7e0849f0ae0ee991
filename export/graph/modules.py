"""The module tree of a user's model, and replacement of modules in it.

Copies hold plain weights. ``torch.nn.utils.parametrize`` (weight norm, spectral norm, orthogonal), the older
``weight_norm`` and ``spectral_norm``, and ``torch.nn.utils.prune`` compute a weight each time it is read. An exported
weight does not change, so it is computed once, as in eval mode.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from recsys.embedding import EmbeddingCollection, with_indices

M = TypeVar("M", bound=nn.Module)
# Where a module keeps the hooks that run before and after its forward.
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
# What tells of a collection's tables; forward may ask for it.
_TELLING = (
    *("embedding_configs", "embedding_bag_configs", "embedding_dim", "embedding_names"),
    *("embedding_names_by_table", "is_weighted", "need_indices"),
    # Their float weights, where forward reads them.
    *("embedding_bags", "embeddings"),
)

_EARLIER = "_copied_from"
_NOT_ATTRIBUTES = {"_parameters", "_buffers", "_modules", _EARLIER}
_MOST_DEPTH = 8
# The most items of a list that are searched for modules; longer lists hold data.
_MOST_ITEMS = 10_000
# Hooks before a forward that compute a weight; what each computes, and the names of what it computes it from.
_COMPUTING: tuple[tuple[type[Any], Callable[[Any, nn.Module], Tensor], tuple[str, ...]], ...] = (
    (WeightNorm, lambda hook, module: hook.compute_weight(module), ("{}_g", "{}_v")),
    (
        SpectralNorm,
        lambda hook, module: hook.compute_weight(module, do_power_iteration=False),
        ("{}_orig", "{}_u", "{}_v"),
    ),
    (prune.BasePruningMethod, lambda hook, module: hook.apply_mask(module), ("{}_orig", "{}_mask")),
)


def replace_modules(model: nn.Module, replacements: Mapping[str, nn.Module]) -> nn.Module:
    """Return a copy of the module tree in eval mode with some modules replaced.

    Parameters and buffers are shared with the model, which is not changed. New modules get the hooks of those that they
    replace, tell of their tables, and give the IDs with the rows where those did (``need_indices``). What attributes
    refer to by other ways than as submodules, such as bound methods, is that of the copy. Weights that layers compute,
    such as under weight norm, are computed.

    Args:
        model: Any module.
        replacements: New modules by path.
    """
    by_module = {id(model.get_submodule(path)): new for path, new in replacements.items()}
    copies = Copies()
    new = _copied(model, by_module, copies)
    copies.refer_to_copies()
    return new


def has_hooks(module: nn.Module) -> bool:
    """Return whether anything runs before or after a module's ``forward``."""
    return any(getattr(module, name) for name in _HOOKS)


def with_hooks_of(module: nn.Module, new: M) -> M:
    """Return a module's replacement with its hooks."""
    for name in _HOOKS:
        getattr(new, name).update(getattr(module, name))
    return new


def _telling(module: nn.Module, new: nn.Module) -> nn.Module:
    for name in _TELLING:
        if hasattr(module, name) and not hasattr(new, name):
            new.__dict__[name] = getattr(module, name)
    return new


def _giving_indices(module: nn.Module, new: nn.Module) -> nn.Module:
    if isinstance(new, EmbeddingCollection) or not isinstance(module, EmbeddingCollection):
        return new
    tables = module.embedding_configs()
    if module.need_indices() and not getattr(new, "_gives_indices", False):

        def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
            return with_indices(found, tables, *args, **kwargs)

        new.register_forward_hook(add, prepend=True, with_kwargs=True)
        new.__dict__["_gives_indices"] = True
    return new


def _copied(module: nn.Module, by_module: Mapping[int, nn.Module], copies: Copies) -> nn.Module:
    done = copies.of(module)
    if done is not None:
        return done
    if id(module) in by_module:
        new = with_hooks_of(module, by_module[id(module)])
        new = _giving_indices(module, _telling(module, new))
        copies.add(module, new, is_copy=False)
        return new
    if isinstance(module, torch.jit.ScriptModule):
        with torch.no_grad():
            new = copy.deepcopy(module).eval() if module.training else module
        copies.add(module, new, is_copy=False)
        return new
    new = shallow_copy(module)
    copies.add(module, new)
    new.__dict__["_modules"] = {
        name: None if child is None else _copied(child, by_module, copies)
        for name, child in new._modules.items()
    }
    new.training = False
    return new


class _Earlier(tuple[nn.Module, ...]):
    """The modules that a module is a copy of, which is copied itself without them."""

    __slots__ = ()

    def __deepcopy__(self, _: object) -> _Earlier:
        return self


class Copies:
    """The copies of some modules.

    A module may hold another one outside of its submodules: in a list, as the object of a bound method, in the closure
    of a function. A copied module refers to the copies.
    """

    def __init__(self) -> None:
        self._copies: dict[int, nn.Module] = {}
        self._made: list[nn.Module] = []

    def of(self, module: nn.Module) -> nn.Module | None:
        """Return a module's copy; None if it has none."""
        return self._copies.get(id(module))

    def add(self, module: nn.Module, new: nn.Module, *, is_copy: bool = True) -> None:
        """Add the copy of a module, or what replaces it, whose attributes stay as they are."""
        earlier = _Earlier((*module.__dict__.get(_EARLIER, ()), module))
        for one in earlier:
            self._copies.setdefault(id(one), new)
        if new is not module:
            new.__dict__[_EARLIER] = earlier
        if is_copy:
            self._made.append(new)

    def refer_to_copies(self) -> None:
        """Let the attributes and hooks of the copies refer to copies."""
        for module in self._made:
            for name, value in list(module.__dict__.items()):
                if name not in _NOT_ATTRIBUTES:
                    module.__dict__[name] = self._with_copies(value, 0)

    def _with_copies(self, value: Any, depth: int) -> Any:
        """Return a value in which copies stand for modules; the value itself if it refers to none."""
        if depth > _MOST_DEPTH:
            return value
        if isinstance(value, nn.Module):
            return self._copies.get(id(value), value)
        if isinstance(value, MethodType):
            owner = self._with_copies(value.__self__, depth + 1)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if isinstance(value, FunctionType):
            return self._function(value, depth)
        if type(value) is functools.partial:
            parts = [value.func, list(value.args), dict(value.keywords)]
            function, args, keywords = new = [self._with_copies(part, depth + 1) for part in parts]
            same = all(one is other for one, other in zip(new, parts, strict=True))
            return value if same else functools.partial(function, *args, **keywords)
        if type(value) in (list, tuple, dict, OrderedDict) and len(value) > _MOST_ITEMS:
            return value
        if type(value) in (list, tuple):
            items = [self._with_copies(one, depth + 1) for one in value]
            same = all(one is other for one, other in zip(items, value, strict=True))
            return value if same else type(value)(items)
        if type(value) in (dict, OrderedDict):
            pairs = {key: self._with_copies(one, depth + 1) for key, one in value.items()}
            return value if all(pairs[key] is one for key, one in value.items()) else type(value)(pairs)
        return value

    def _function(self, function: FunctionType, depth: int) -> FunctionType:
        cells = function.__closure__ or ()
        try:
            held = [cell.cell_contents for cell in cells]
        except ValueError:  # not bound yet
            return function
        # A function may refer to itself.
        new = [one if one is function else self._with_copies(one, depth + 1) for one in held]
        if all(one is other for one, other in zip(new, held, strict=True)):
            return function
        made = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(
                cell if one is other else CellType(one)
                for cell, one, other in zip(cells, new, held, strict=True)
            ),
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
            setattr(made, name, getattr(function, name))
        return made


def computes_weights(module: nn.Module) -> bool:
    """Return whether a layer computes weights of its own each time that they are read."""
    return parametrize.is_parametrized(module) or any(
        isinstance(hook, kind) for hook in module._forward_pre_hooks.values() for kind, _, _ in _COMPUTING
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
            for hooked, compute, sources in _COMPUTING:
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
