"""Numbers of rows computed one by one.

Shape letters: B rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from export.lower.kinds import ElementwiseKind
from export.lower.operators.forms import both, broadcast, result_dtype
from export.lower.strided import MOST_WHOLE, Axis, Strided, by_row, strided, tidy
from export.lower.values import (
    Elementwise,
    NotLoweredError,
    NumRows,
    Space,
    Value,
    View,
    Weight,
    operator,
    path_of,
)

_Number = int | float


def computed(kind: ElementwiseKind, value: Any, factor: float | None = None, dtype: Any = None) -> Any:
    """Return what becomes of each number of a value."""
    return _computed(value, kind, factor, dtype)


@by_row
def _computed(value: Value, kind: ElementwiseKind, factor: float | None, dtype: Any) -> Value:
    return Elementwise(
        dims=value.dims,
        space=value.space,
        dtype=dtype or value.dtype,
        kind=kind,
        operands=[value],
        factor=factor,
    )


def _is_bool(value: Any) -> bool:
    return bool(value.dtype is torch.bool)


def _with_number(value: Any, number: float) -> torch.dtype:
    """Return the type of what is computed of a value and a number of Python."""
    if isinstance(number, int):
        if not isinstance(number, bool) and abs(number) > MOST_WHOLE:
            raise NotLoweredError("it computes with whole numbers that float32 does not hold")
        return torch.int64 if _is_bool(value) and not isinstance(number, bool) else value.dtype
    return torch.float32


def _repeats(first: Value, second: Value) -> int:
    """Return how often each number of the first operand meets one of the second; 0 if they do not fit."""
    a, b = first.dims, second.dims
    if a == b:
        return 1
    if len(a) == len(b) and a and a[-1] == 1 and a[:-1] == b[:-1]:
        return b[-1]
    return 0


def binary(kind: ElementwiseKind, first: Any, second: Any, dtype: Any = None) -> Any:
    """Return what two operands make: rows number by number if they fit, else by a form."""
    views = both(first, second)
    dtype = dtype or result_dtype(*(view.dtype for view in views))
    swaps = kind in (ElementwiseKind.ADD, ElementwiseKind.MULTIPLY)
    # Numbers that are the same for every row are read as a row of one.
    a, b = (
        view.value if not view.has_rows and view.ndim == 1 and view.offset == 0 else tidy(view)
        for view in views
    )
    if isinstance(a, Value) and isinstance(b, Value):
        for one, other in ((a, b), (b, a)) if swaps else ((a, b),):
            count = _repeats(one, other)
            if count and other.space is one.space and (views[0].has_rows or views[1].has_rows):
                return Elementwise(
                    dims=other.dims, space=other.space, dtype=dtype, kind=kind, operands=[one, other], count=count
                )  # fmt: skip
    return broadcast(kind, *views, dtype)


@operator("mul", "multiply", "rmul", views=True)
def mul(first: Any, second: Any) -> Any:
    """Return products."""
    if isinstance(first, _Number):
        first, second = second, first
    if isinstance(second, _Number):
        dtype = _with_number(first, second)
        return computed(ElementwiseKind.SCALE, first, float(second), dtype)
    return binary(ElementwiseKind.MULTIPLY, first, second)


@operator("neg", "negative", views=True)
def neg(value: Any) -> Any:
    """Return numbers with the other sign."""
    return computed(ElementwiseKind.SCALE, value, -1.0)


@operator("div", "true_divide", "truediv", views=True)
def div(first: Any, second: Any, *, rounding_mode: str | None = None) -> Any:
    """Return quotients."""
    if rounding_mode is not None or isinstance(first, _Number):
        raise NotLoweredError("it divides in another way than number by number")
    if isinstance(second, _Number):
        # As kernels compute it.
        factor = float(np.float32(1) / np.float32(second))
        return computed(ElementwiseKind.SCALE, first, factor, torch.float32)
    # The kernel divides the second operand.
    return binary(ElementwiseKind.DIVIDE, second, first, torch.float32)


@operator("add", "radd", views=True)
def add(first: Any, second: Any, *, alpha: float = 1) -> Any:
    """Return sums."""
    if isinstance(first, _Number):
        first, second = second, first
    if alpha != 1:
        second = mul(second, alpha)
    if isinstance(second, _Number):
        return computed(ElementwiseKind.SHIFT, first, float(second), _with_number(first, second))
    return binary(ElementwiseKind.ADD, first, second)


@operator("sub", "subtract", views=True)
def sub(first: Any, second: Any, *, alpha: float = 1) -> Any:
    """Return differences."""
    if alpha != 1:
        second = mul(second, alpha)
    if isinstance(second, _Number):
        return add(first, -second)
    if isinstance(first, _Number):
        return add(neg(second), first)
    return binary(ElementwiseKind.SUBTRACT, first, second)


@operator("rsub", views=True)
def rsub(first: Any, second: Any, *, alpha: float = 1) -> Any:
    """Return differences, the second operand less the first."""
    return sub(second, first, alpha=alpha)


@operator("square", views=True)
def square(value: Any) -> Any:
    """Return squares."""
    return mul(value, value)


@operator("pow", views=True)
def power(value: Any, exponent: Any) -> Any:
    """Return squares."""
    if exponent != 2:
        raise NotLoweredError(f"it computes powers of {exponent}")
    return mul(value, value)


@operator("clamp", "clip", views=True)
def clamp(value: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002
    """Return numbers within bounds."""
    if any(not isinstance(bound, _Number | None) for bound in (min, max)):
        raise NotLoweredError("it bounds numbers by others")
    if min is not None:
        value = clamp_min(value, min)
    return value if max is None else computed(ElementwiseKind.AT_MOST, value, float(max))


@operator("clamp_min", views=True)
def clamp_min(value: Any, min: Any) -> Any:  # noqa: A002
    """Return numbers that are at least ``min``."""
    return computed(ElementwiseKind.AT_LEAST, value, float(min))


@operator("clamp_max", views=True)
def clamp_max(value: Any, max: Any) -> Any:  # noqa: A002
    """Return numbers that are at most ``max``."""
    return computed(ElementwiseKind.AT_MOST, value, float(max))


@operator("float", views=True)
def as_float(value: Any) -> Any:
    """Return the same numbers: steps hold all in float32."""
    return value if value.dtype is torch.float32 else with_dtype(value, torch.float32)


@operator("long", "int", views=True)
def as_whole(value: Any) -> Any:
    """Return numbers without the part behind the point."""
    if value.dtype is not torch.float32:
        return value if value.dtype is torch.int64 else with_dtype(value, torch.int64)
    return computed(ElementwiseKind.TRUNCATE, value, dtype=torch.int64)


@operator("is_floating_point", views=True)
def is_floating_point(value: Value | Strided) -> bool:
    """Return whether a value holds numbers with a point."""
    return value.dtype is torch.float32


def with_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Return the same numbers as those of another type."""
    view = strided(value)
    of = view.value
    root: Value = (
        replace(of, dtype=dtype)
        if isinstance(of, Weight)
        else View(dims=of.dims, space=of.space, dtype=dtype, source=of)
    )
    return tidy(replace(view, value=root))


@operator("to", views=True)
def to(value: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the value itself, or its numbers as those of another type."""
    found = value
    for one in [*args, *(kwargs[key] for key in ("dtype", "device", "other") if key in kwargs)]:
        if isinstance(one, torch.dtype):
            if one not in (torch.float32, torch.int64, torch.bool) and one is not value.dtype:
                raise NotLoweredError(f"it converts to {one}")
            found = found if one is value.dtype else _converted(found, one)
        elif not isinstance(one, bool) and one not in (torch.device("cpu"), "cpu"):
            raise NotLoweredError(f"it converts to {one}")
    return found


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if dtype is torch.bool:
        return as_bool(value)
    return as_float(value) if dtype is torch.float32 else as_whole(value)


def only_float32(dtype: torch.dtype | None) -> None:
    """Refuse to compute in another type."""
    if dtype not in (None, torch.float32):
        raise NotLoweredError(f"it computes in {dtype}")


@operator("logical_not", "bitwise_not", "invert", views=True)
def logical_not(value: Any) -> Any:
    """Return the opposite of truth values."""
    if not _is_bool(value):
        raise NotLoweredError("it takes numbers for truth values")
    return ~value if isinstance(value, Tensor) else computed(ElementwiseKind.SHIFT, neg(value), 1.0)


@operator("bool", views=True)
def as_bool(value: Any) -> Any:
    """Return where numbers are not zero, as NaN is not."""
    if _is_bool(value):
        return value
    differs = logical_or(less(value, 0), less(0, value))
    return logical_or(differs, logical_not(less(value, 1))) if value.dtype is torch.float32 else differs


@operator("and", "logical_and", "bitwise_and", "rand", views=True)
def logical_and(first: Any, second: Any) -> Any:
    """Return where both are true."""
    if not _is_bool(first) or not _is_bool(second):
        raise NotLoweredError("it takes numbers for truth values")
    return binary(ElementwiseKind.MULTIPLY, first, second, torch.bool)


@operator("or", "or_", "logical_or", "bitwise_or", views=True)
def logical_or(first: Any, second: Any) -> Any:
    """Return where one is true."""
    if not _is_bool(first) or not _is_bool(second):
        raise NotLoweredError("it takes numbers for truth values")
    return broadcast(ElementwiseKind.LARGEST, *both(first, second), torch.bool)


@operator("lt", "less", views=True)
def less(first: Any, second: Any) -> Any:
    """Return where the first is less."""
    return broadcast(ElementwiseKind.LESS, *both(first, second), torch.bool)


@operator("gt", "greater", views=True)
def greater(first: Any, second: Any) -> Any:
    """Return where the first is larger."""
    return less(second, first)


@operator("maximum", views=True)
def maximum(first: Any, second: Any) -> Any:
    """Return the larger ones."""
    return broadcast(ElementwiseKind.LARGEST, *both(first, second), result_dtype(first.dtype, second.dtype))


@operator("where", views=True)
def where(condition: Any, first: Any, second: Any) -> Any:
    """Return the first where a condition holds, else the second."""
    if not _is_bool(condition):
        raise NotLoweredError("it takes numbers for truth values")
    number = _number_of(second)
    if number is not None:
        return _chosen(condition, first, number)
    number = _number_of(first)
    if number is not None:
        return _chosen(logical_not(condition), second, number)
    # One of both is zero.
    return add(_chosen(condition, first, 0.0), _chosen(logical_not(condition), second, 0.0))


def _chosen(condition: Any, value: Any, number: float) -> Any:
    return broadcast(ElementwiseKind.SELECT, *both(condition, value), value.dtype, number)


def _number_of(one: Any) -> float | None:
    """Return the number that all numbers of an operand are; None if they may differ."""
    if isinstance(one, _Number):
        return float(one)
    if isinstance(one, Strided):
        one = one.value.numbers if isinstance(one.value, Weight) else None
    if not isinstance(one, Tensor) or path_of(one) is not None or one.numel() == 0:
        return None
    number = one.flatten()[0]
    return float(number) if bool((one == number).all()) else None


@operator("masked_fill", views=True)
def masked_fill(value: Any, mask: Any, number: Any) -> Any:
    """Return values with a number where a mask is true."""
    found = _number_of(number)
    if found is None:
        raise NotLoweredError("it fills with what it computes")
    return where(logical_not(mask), value, found)


def _filled(shape: Any, number: float, dtype: torch.dtype | None) -> Strided:
    """Return the same number everywhere."""
    sizes = [shape] if not isinstance(shape, (list, tuple)) else list(shape)
    spaces = [size.space for size in sizes if isinstance(size, NumRows)]
    axes = [None if isinstance(size, NumRows) else Axis(size, 0) for size in sizes]
    if axes.count(None) > 1 or any(
        size != NumRows(size.space) for size in sizes if isinstance(size, NumRows)
    ):
        raise NotLoweredError("it makes a tensor of several times the rows")
    value = Weight(
        dims=(1,),
        space=spaces[0] if spaces else Space.ROWS,
        dtype=dtype or torch.float32,
        numbers=torch.tensor([float(number)]),
    )
    return Strided(value=value, axes=tuple(axes))


@operator("zeros", views=True)
def zeros(*sizes: Any, dtype: torch.dtype | None = None, **_: Any) -> Strided:
    """Return zeros."""
    return _filled(sizes[0] if len(sizes) == 1 else sizes, 0.0, dtype)


@operator("ones", views=True)
def ones(*sizes: Any, dtype: torch.dtype | None = None, **_: Any) -> Strided:
    """Return ones."""
    return _filled(sizes[0] if len(sizes) == 1 else sizes, 1.0, dtype)


@operator("full", views=True)
def full(size: Any, fill_value: float, *, dtype: torch.dtype | None = None, **_: Any) -> Strided:
    """Return a number everywhere."""
    return _filled(size, fill_value, dtype)


@operator("zeros_like", views=True)
def zeros_like(value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Strided:
    """Return zeros of the shape of a value."""
    return _filled(value.shape, 0.0, dtype or value.dtype)


@operator("ones_like", views=True)
def ones_like(value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Strided:
    """Return ones of the shape of a value."""
    return _filled(value.shape, 1.0, dtype or value.dtype)
