"""What stands for functions of Python and torch while a model is traced, where these do not take placeholders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch.amp.autocast_mode import autocast
from torch.fx import _symbolic_trace as symbolic_trace

from export.graph.tracing.array_patches import arrays_patched
from export.graph.tracing.placeholders import known
from export.graph.tracing.source_location import is_of_model
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor

# Methods of tensors that take sizes and no other tensors: torch.fx does not see traced ones.
_SIZED = (
    *("expand", "repeat", "tile", "view", "reshape", "narrow", "repeat_interleave", "unflatten", "roll"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
)
# Those of torch that have a constructor of their own.
_LAYERS = tuple(
    {
        layer: None
        for layer in vars(nn).values()
        if isinstance(layer, type)
        and issubclass(layer, nn.Module)
        and layer is not nn.Module
        and "__init__" in vars(layer)
    }
)
_JAGGED = (JaggedTensor, KeyedJaggedTensor, KeyedTensor)


@contextmanager
def patched(root: nn.Module) -> Iterator[None]:
    """Let the code of a model take placeholders where torch.fx alone does not let it, while it is traced."""
    with ExitStack() as stack:
        stack.enter_context(_wrapped_functions_taking_jagged())
        stack.enter_context(_len_of_traced(root))
        stack.enter_context(arrays_patched())
        for name in ("finfo", "iinfo"):
            stack.enter_context(patch.object(torch, name, _of_dtype(getattr(torch, name))))
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch.object(torch, name, _constant(getattr(torch, name))))
        for name in _SIZED:
            stack.enter_context(_taking_sizes(name))
        stack.enter_context(patch.object(autocast, "__enter__", _refusing(autocast.__enter__)))
        for layer in _LAYERS:
            stack.enter_context(patch.object(layer, "__init__", _of_known_sizes(layer.__init__)))
        yield


def _of_known_sizes(original: Callable[..., None]) -> Callable[..., None]:
    """Return the constructor of a layer that takes traced sizes, such as ``nn.LayerNorm(x.size(-1))``."""

    @wraps(original)
    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *map(known, args), **{name: known(value) for name, value in kwargs.items()})

    return init


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
    return getattr(getattr(type(module), "forward", None), "__globals__", None)


def _len(value: Any) -> Any:
    if isinstance(value, fx.Proxy):
        return value.tracer.create_proxy("call_function", len, (value,), {})
    return len(value)


def _of_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.finfo`` or ``torch.iinfo`` that takes a traced tensor's dtype."""

    def info(*args: Any, **kwargs: Any) -> Any:
        args = tuple(arg.tracer.dtype(arg) if isinstance(arg, fx.Proxy) else arg for arg in args)  # type: ignore[attr-defined]
        kwargs = {
            name: arg.tracer.dtype(arg) if isinstance(arg, fx.Proxy) else arg  # type: ignore[attr-defined]
            for name, arg in kwargs.items()
        }
        return original(*args, **kwargs)

    return info


def _constant(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``torch.tensor`` or ``torch.as_tensor`` that takes a traced tensor's dtype and device.

    A constant lies on the device of the graph anyway.
    """

    @wraps(original)
    def make(data: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        kwargs = {name: value for name, value in kwargs.items() if not isinstance(value, fx.Proxy)}
        made = original(data, *args, **kwargs)
        return made.to(dtype.tracer.dtype(dtype)) if isinstance(dtype, fx.Proxy) else made  # type: ignore[attr-defined]

    return make


@contextmanager
def _taking_sizes(name: str) -> Iterator[None]:
    """Let a method of constant tensors take traced sizes, such as ``torch.arange(10).expand(x.size(0), 10)``."""
    original = getattr(Tensor, name)
    is_own = name in vars(Tensor)

    @wraps(original)
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        size = _first_proxy([args, kwargs])
        if size is None or isinstance(self, fx.Proxy):
            return original(self, *args, **kwargs)
        return size.tracer.create_proxy("call_method", name, (self, *args), kwargs)

    setattr(Tensor, name, call)
    try:
        yield
    finally:
        if is_own:
            setattr(Tensor, name, original)
        else:
            delattr(Tensor, name)


def _first_proxy(value: Any) -> fx.Proxy | None:
    if isinstance(value, (list, tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return next((one for one in map(_first_proxy, parts) if one is not None), None)
    return value if isinstance(value, fx.Proxy) else None


def _refusing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def enter(self: autocast) -> Any:
        if self._enabled and self.device == "cpu":
            raise TypeError(f"torch.autocast to {self.fast_dtype} does not reach the graph")
        return original(self)

    return enter


def _called_or_recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    recorded = symbolic_trace._create_wrapped_func(function)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = function if has_jagged(args) or has_jagged(kwargs) else recorded
        return chosen(*args, **kwargs)

    return call


def has_jagged(value: Any) -> bool:
    """Return whether our data types are among some arguments."""
    if isinstance(value, (list, tuple)):
        return any(has_jagged(part) for part in value)
    if isinstance(value, dict):
        return any(has_jagged(part) for part in value.values())
    return isinstance(value, _JAGGED)
