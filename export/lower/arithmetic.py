"""Numbers of rows computed one by one, and sums over them.

Shape letters: B rows, D embedding dim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.lower.values import (
    Elementwise,
    ElementwiseKind,
    NotLoweredError,
    Space,
    Value,
    Weight,
    operator,
    path_of,
)
from export.lower.views import dim_of


def weight_value(weight: Tensor, space: Space) -> Weight:
    """Return numbers that are the same for every row; ``Evaluation.lift`` names the path of a dense weight."""
    if weight.dtype is not torch.float32 or weight.numel() == 0:
        raise NotLoweredError(f"it computes with a constant of {weight.dtype}")
    dims = tuple(weight.shape)
    path = path_of(weight)
    return Weight(dims=dims, space=space, path=path, numbers=None if path is not None else weight.detach())


def only_float32(dtype: torch.dtype | None) -> None:
    """Refuse to compute in another type."""
    if dtype not in (None, torch.float32):
        raise NotLoweredError(f"it computes in {dtype}")


def _scaled(value: Value, factor: float) -> Value:
    return Elementwise(
        dims=value.dims,
        space=value.space,
        kind=ElementwiseKind.SCALE,
        operands=[value],
        factor=factor,
    )


def _repeats(first: Value, second: Value) -> int:
    """Return how often each number of the first operand meets one of the second; 0 if they do not fit."""
    a, b = first.dims, second.dims
    if a == b:
        return 1
    if len(a) == len(b) and a and a[-1] == 1 and a[:-1] == b[:-1]:
        return b[-1]
    return 0


def _binary(
    kind: ElementwiseKind, first: Value, second: Value, *, swaps: bool, is_second: bool = False
) -> Value:
    """Return what two values make together.

    Args:
        kind: How.
        first: A value.
        second: Another one.
        swaps: Whether the two may be exchanged.
        is_second: Whether the kernel takes the second first.
    """
    if first.space is not second.space:
        raise NotLoweredError("it computes with rows and contexts")
    orders = [(second, first)] if is_second else [(first, second)]
    orders += [(second, first)] if swaps else []
    for a, b in orders:
        count = _repeats(a, b)
        if count:
            return Elementwise(dims=b.dims, space=b.space, kind=kind, operands=[a, b], count=count)
    raise NotLoweredError("it broadcasts over rows")


def _operands(first: Any, second: Any) -> tuple[Value, Value]:
    """Return two values; numbers that are the same for every row take the other's dims."""
    if isinstance(first, Value) and isinstance(second, Value):
        return first, second
    if isinstance(first, Value):
        return first, _like(second, first)
    return _like(first, second), second


def _like(weight: Any, value: Value) -> Value:
    if not isinstance(weight, Tensor):
        raise NotLoweredError(f"it computes with {type(weight).__name__}")
    found = weight_value(weight, value.space)
    if found.width == value.width and len(value.dims) == 1:
        found.dims = value.dims
    elif found.width == 1 and len(value.dims) == 1:
        found.dims = (1,)
    else:
        raise NotLoweredError("it broadcasts a constant")
    return found


@operator("mul", "multiply", "rmul")
def mul(first: Any, second: Any) -> Value:
    """Return products."""
    if isinstance(second, int | float):
        return _scaled(first, second)
    if isinstance(first, int | float):
        return _scaled(second, first)
    return _binary(ElementwiseKind.MULTIPLY, *_operands(first, second), swaps=True)


@operator("div", "true_divide", "truediv")
def div(first: Any, second: Any) -> Value:
    """Return quotients."""
    if isinstance(second, int | float):
        # As kernels compute it.
        return _scaled(first, float(np.float32(1) / np.float32(second)))
    if not isinstance(first, Value) or not isinstance(second, Value):
        raise NotLoweredError("it divides by a constant tensor")
    return _binary(ElementwiseKind.DIVIDE, first, second, swaps=False, is_second=True)


@operator("add", "radd")
def add(first: Any, second: Any, *, alpha: float = 1) -> Value:
    """Return sums."""
    if alpha != 1 or isinstance(second, int | float):
        raise NotLoweredError("it adds a number")
    return _binary(ElementwiseKind.ADD, *_operands(first, second), swaps=True)


@operator("sub", "subtract")
def sub(first: Any, second: Any, *, alpha: float = 1) -> Value:
    """Return differences."""
    if alpha != 1 or not isinstance(first, Value) or not isinstance(second, Value):
        raise NotLoweredError("it subtracts a constant")
    return _binary(ElementwiseKind.SUBTRACT, first, second, swaps=False)


def _reduced(kind: ElementwiseKind, value: Value, dim: Any, keepdim: bool) -> Value:
    """Return what a reduction over the first dim of each row leaves."""
    over = [dim] if isinstance(dim, int) else list(dim or [])
    if len(over) != 1 or dim_of(value, over[0]) != 1 or not value.dims:
        raise NotLoweredError("it reduces another dimension than the first of a row")
    return Elementwise(
        dims=(*([1] if keepdim else []), *value.dims[1:]),
        space=value.space,
        kind=kind,
        operands=[value],
        count=value.dims[0],
    )


@operator("sum")
def sum_of(
    value: Value, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    """Return the sum over the first dim of each row."""
    only_float32(dtype)
    return _reduced(ElementwiseKind.SUM, value, dim, keepdim)


@operator("norm", "vector_norm")
def norm(
    value: Value, p: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Value:
    """Return the Euclidean length of each row."""
    only_float32(dtype)
    if p not in (2, "fro", None) or len(value.dims) != 1:
        raise NotLoweredError("a norm of another kind than the Euclidean of rows")
    return _reduced(ElementwiseKind.NORM, value, dim, keepdim)


@operator("clamp", "clip")
def clamp(value: Value, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    """Return numbers that are at least ``min``."""
    if max is not None or not isinstance(min, int | float):
        raise NotLoweredError("it bounds numbers from above")
    return clamp_min(value, min)


@operator("clamp_min")
def clamp_min(value: Value, min: Any) -> Value:  # noqa: A002
    """Return numbers that are at least ``min``."""
    return Elementwise(
        dims=value.dims, space=value.space, kind=ElementwiseKind.AT_LEAST, operands=[value], factor=min
    )


@operator("normalize")
def normalize(value: Value, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Value:
    """Return rows of length 1."""
    del out
    return div(value, clamp_min(norm(value, p, dim, True), eps))
