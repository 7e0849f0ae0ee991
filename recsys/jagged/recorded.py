"""The data types under FX: what is made of a graph's own values, and when.

A model that is traced works on batches that hold proxies. Where such a batch leaves the trace, as an output or as an
argument of a call, it becomes a call of its constructor in the graph. Where even the names are not known while tracing,
because they are those of the graph's input, the constructor itself becomes a call in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, cast

import torch
from torch import fx
from torch.fx.node import map_aggregate

from recsys.ops import is_traced


def call_later(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Record a call in the graph of the proxies among its arguments; return its result's proxy."""
    found: list[fx.Proxy] = []

    def note(value: Any) -> Any:
        if isinstance(value, fx.Proxy):
            found.append(value)
        return value

    map_aggregate((args, kwargs), note)
    return found[0].tracer.create_proxy("call_function", function, args, kwargs)


@torch.jit.unused  # TorchScript cannot compile these types; recsys.scripting.scripted has what it reads instead
class Recorded:
    """A data type whose constructor FX can record."""

    # Arguments that the constructor looks into, and their positions: it cannot be called with proxies of them.
    _looked_into: ClassVar[Mapping[str, int]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an object to be constructed, or the proxy of a call that constructs it."""
        for name, position in cls._looked_into.items():
            if is_traced(args[position] if position < len(args) else kwargs.get(name)):
                return cast(Self, call_later(cls, *args, **kwargs))
        return super().__new__(cls)

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments that make the same again."""
        raise NotImplementedError

    def __fx_create_arg__(self, tracer: fx.Tracer) -> fx.Node:
        arguments = {name: value for name, value in self._arguments().items() if value is not None}
        return tracer.create_proxy("call_function", type(self), (), arguments).node
