"""Tracing of the user's code by torch.fx."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import fx, nn
from torch.fx import _symbolic_trace as symbolic_trace
from torch.fx.proxy import Attribute

from export.graph.place import explained, is_of_model
from export.graph.sizes import OPEN, Sizes
from export.graph.tree import has_hooks
from recsys.errors import ExportError
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_JAGGED = (JaggedTensor, KeyedJaggedTensor, KeyedTensor)
# torch parses their sizes itself, and refuses those of a traced tensor.
_FACTORIES = (torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye)


class _Number:
    """A part of a placeholder: the number that it stands for where Python wants one, if batches agree on it."""

    def __index__(self) -> int:
        found = self._constant()
        if not isinstance(found, int):
            raise TypeError("a number that differs between batches cannot be interpreted as an integer")
        return found

    def __int__(self) -> int:
        return int(float(self))

    def __float__(self) -> float:
        found = self._constant()
        if not isinstance(found, (int, float)):
            raise TypeError("must be real number, not one that differs between batches")
        return float(found)

    def _constant(self) -> Any:
        return self.tracer.sizes.constant(self.node)  # type: ignore[attr-defined]


class _Placeholder(_Number, fx.Proxy):
    def __getattr__(self, k: str) -> Attribute:
        return _PlaceholderAttribute(self, k)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError("'Proxy' object does not support item assignment")


class _PlaceholderAttribute(_Number, Attribute):
    pass


class ModelTracer(fx.Tracer):
    """Traces through everything except torch's layers, so that no other class is left in the graph.

    Args:
        sizes: What is known of the module's sizes.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(autowrap_functions=_FACTORIES)
        self._autowrap_search.append(torch)
        self.sizes = sizes

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Trace a module."""
        graph = super().trace(root, concrete_args)
        self.sizes.remove_asked(graph)
        return graph

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return a node's placeholder."""
        return _Placeholder(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Return what a decision of the model's code is in every batch.

        Raises:
            TraceError: It depends on the batch.
        """
        found = self.sizes.constant(obj.node)
        return super().to_bool(obj) if found is OPEN else bool(found)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Return an iterator over parts whose number is the same in every batch.

        Raises:
            TraceError: It is not.
        """
        count = self.sizes.num_parts(obj.node)
        parts: Any = obj
        return super().iter(obj) if count is None else iter([parts[i] for i in range(count)])

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *more: Any, **named: Any
    ) -> Any:
        """Add a node. A ``squeeze`` without dimensions takes out those that have the size 1 in every batch.

        Raises:
            TypeError: Which these are is open.
        """
        if target in ("squeeze", torch.squeeze) and len(args) == 1 and not kwargs:
            source = args[0]
            dims = self.sizes.single_dims(source.node)
            if dims is None:
                raise TypeError(
                    "squeeze() without dim: which dimensions have the size 1 in every batch is open"
                )
            if not dims:
                return source
            args = (source, dims[0] if len(dims) == 1 else tuple(dims))
        return super().create_proxy(kind, target, args, kwargs, *more, **named)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return an attribute of a module: a placeholder for a parameter, unless the module is run."""
        return attr_val if self.sizes.is_running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        """Return whether a module is a layer of torch, which is not traced through unless hooks run around it."""
        return m.__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS) and not has_hooks(m)

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a layer with our data types, which no node can take, directly: it is traced through."""
        if self.sizes.is_running or _has_jagged(args) or _has_jagged(kwargs):
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)


def trace(root: nn.Module, sizes: Sizes | None = None) -> fx.Graph:
    """Trace a model.

    Args:
        root: The model.
        sizes: What is known of its sizes; None if nothing is.

    Raises:
        ExportError: FX does not support the model's code; the message says what failed, and where.
    """
    try:
        with _wrapped_functions_taking_jagged(), _len_of_traced(root):
            graph = ModelTracer(sizes or Sizes(root, lambda _: {}, {})).trace(root)
    except ExportError:
        raise
    except Exception as error:  # user code can raise anything
        raise ExportError(f"model: cannot be traced by torch.fx: {explained(error)}") from error
    for node in graph.nodes:
        if node.target in _FACTORIES:
            del node.meta[
                "is_wrapped"
            ]  # or generated code would name it to torch.fx.wrap, which takes no dots
    return graph


@contextmanager
def _wrapped_functions_taking_jagged() -> Iterator[None]:
    """Let functions under ``torch.fx.wrap`` run, and be traced through, where they are called with our data types.

    With tensors alone they stay calls in the graph, as the user asked.
    """
    table: dict[Any, dict[str, Any]] = symbolic_trace._wrapped_fns_to_patch
    ours = {key: names for key, names in table.items() if key[1] in names}
    functions = {key: names[key[1]] for key, names in ours.items()}
    try:
        for key, names in ours.items():
            del table[key]
            names[key[1]] = _called_or_recorded(functions[key])
        yield
    finally:
        for key, names in ours.items():
            table[key] = names
            names[key[1]] = functions[key]


@contextmanager
def _len_of_traced(root: nn.Module) -> Iterator[None]:
    """Let ``len`` take traced tensors in the code of a model's modules, where Python wants a number.

    A ``len`` of their own, or under ``torch.fx.wrap``, stays.
    """
    scopes = {id(scope): scope for module in root.modules() if (scope := _scope(module)) is not None}
    own = [scope for scope in scopes.values() if "len" not in scope and is_of_model(scope.get("__file__"))]
    try:
        for scope in own:
            scope["len"] = _len
        yield
    finally:
        for scope in own:
            del scope["len"]


def _scope(module: nn.Module) -> dict[str, Any] | None:
    return getattr(type(module).forward, "__globals__", None)


def _len(value: Any) -> Any:
    if isinstance(value, fx.Proxy):
        return value.tracer.create_proxy("call_function", len, (value,), {})
    return len(value)


def _called_or_recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    recorded = symbolic_trace._create_wrapped_func(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = function if _has_jagged(args) or _has_jagged(kwargs) else recorded
        return chosen(*args, **kwargs)

    return call


def _has_jagged(value: Any) -> bool:
    """Return whether our data types are among some arguments."""
    if isinstance(value, (list, tuple)):
        return any(_has_jagged(part) for part in value)
    if isinstance(value, dict):
        return any(_has_jagged(part) for part in value.values())
    return isinstance(value, _JAGGED)
