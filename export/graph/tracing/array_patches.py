"""What stands for functions of NumPy, and for old constructors of torch, where these do not take placeholders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import fx

from export.graph.tracing.placeholders import known

# Functions of NumPy that take sizes.
_SIZED = ("arange", "zeros", "ones", "full", "eye")
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
def arrays_patched() -> Iterator[None]:
    """Let code that makes tensors by way of NumPy take placeholders, as ``np.tile(np.arange(5), [x.size(0), 1])``."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(np, "tile", _tile(np.tile)))
        for name in _SIZED:
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


def _of_known_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        return original(*map(known, args), **{name: known(value) for name, value in kwargs.items()})

    return make


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
