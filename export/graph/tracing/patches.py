"""What stands for functions of Python, NumPy and torch that do not take placeholders, while a model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.amp.autocast_mode import autocast
from torch.fx import _symbolic_trace as symbolic_trace

from export.graph.tracing.packed import packing_patched
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
# Functions of NumPy that take sizes.
_ARRAYS_OF_SIZES = ("arange", "zeros", "ones", "full", "eye")
# torch.LongTensor(ids) and its kin: the dtypes of what they return.
_OLD_CONSTRUCTORS = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
}


@contextmanager
def patched(root: nn.Module) -> Iterator[None]:
    """Let the code of a model take placeholders where torch.fx alone does not let it, while it is traced."""
    with ExitStack() as stack:
        stack.enter_context(_wrapped_functions_taking_jagged())
        stack.enter_context(_len_of_traced(root))
        stack.enter_context(_arrays_patched())
        stack.enter_context(packing_patched(root))
        stack.enter_context(patch.object(torch._C.ScriptFunction, "__call__", _unscripted()))
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


def _of_known_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes traced sizes, such as the constructor of ``nn.LayerNorm(x.size(-1))``."""

    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        return original(*map(known, args), **{name: known(value) for name, value in kwargs.items()})

    return make


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


def _unscripted() -> Callable[..., Any]:
    """Return a call of functions under ``torch.jit.script``: over placeholders their Python runs."""
    original: Any = torch._C.ScriptFunction.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        of_python: Any = getattr(self, "_torchdynamo_inline", None)
        if of_python is None or _first_proxy([args, kwargs]) is None:
            return original(self, *args, **kwargs)
        return of_python(*args, **kwargs)

    return call


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


@contextmanager
def _arrays_patched() -> Iterator[None]:
    """Let code that makes tensors by way of NumPy take placeholders, as ``np.tile(np.arange(5), [x.size(0), 1])``."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(np, "tile", _tile(np.tile)))
        for name in _ARRAYS_OF_SIZES:
            stack.enter_context(patch.object(np, name, _of_known_sizes(getattr(np, name))))
        for name, dtype in _OLD_CONSTRUCTORS.items():
            stack.enter_context(patch.object(torch, name, _constructor(getattr(torch, name), dtype)))
        yield


def _tile(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def tile(A: Any, reps: Any) -> Any:
        counts = reps if isinstance(reps, (list, tuple)) else (reps,)
        if not any(isinstance(count, fx.Proxy) for count in counts) or isinstance(A, fx.Proxy):
            return original(A, reps)
        # A method of torch's that takes traced sizes.
        return torch.from_numpy(np.ascontiguousarray(A)).tile(tuple(counts))

    return tile


def _constructor(original: Any, dtype: torch.dtype) -> Any:
    """Return an old constructor that converts a traced tensor; it stays a class for ``isinstance``."""

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], fx.Proxy) and not kwargs:
                return args[0].to(dtype)
            return original(*args, **kwargs)

    return Kind(original.__name__, (), {})
