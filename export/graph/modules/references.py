"""References from the attributes of modules to each other, when modules are copied.

A module may hold another one outside of its submodules: in a list, as the object of a bound method, in the closure of a
function. A copied module refers to the copies.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import nn

_EARLIER = "_copied_from"
_NOT_ATTRIBUTES = {"_parameters", "_buffers", "_modules", _EARLIER}
_MOST_DEPTH = 8
# The most items of a list that are searched for modules; longer lists hold data.
_MOST_ITEMS = 10_000


class _Earlier(tuple[nn.Module, ...]):
    """The modules that a module is a copy of, which is copied itself without them."""

    __slots__ = ()

    def __deepcopy__(self, _: object) -> _Earlier:
        return self


class Copies:
    """The copies of some modules."""

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
