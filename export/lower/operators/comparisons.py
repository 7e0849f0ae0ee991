"""Comparisons of numbers that may be missing, and what is computed with them.

Steps know only which number is less, which NaN never is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from export.lower.kinds import ElementwiseKind
from export.lower.operators.arithmetic import (
    add,
    as_float,
    binary,
    clamp,
    computed,
    div,
    greater,
    less,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    mul,
    neg,
    sub,
    where,
)
from export.lower.values import Called, operator

_LARGEST = torch.finfo(torch.float32).max


def _may_be_missing(one: Any) -> bool:
    if isinstance(one, Called):
        return getattr(one, "dtype", torch.float32) is torch.float32
    return isinstance(one, Tensor) and one.is_floating_point() and bool(one.isnan().any())


def _known(value: Any) -> Any:
    """Return where a number is not NaN."""
    return logical_or(less(value, 0.0), greater(value, -1.0))


def _where_known(found: Any, *operands: Any) -> Any:
    """Return a truth value where no operand is NaN, else false."""
    for one in operands:
        if _may_be_missing(one):
            found = logical_and(found, _known(one))
    return found


@operator("isnan", views=True)
def isnan(value: Any) -> Any:
    """Return where a number is missing."""
    return logical_not(_known(value))


@operator("ge", "greater_equal", views=True)
def at_least(first: Any, second: Any) -> Any:
    """Return where the first is not less."""
    return _where_known(logical_not(less(first, second)), first, second)


@operator("le", "less_equal", views=True)
def at_most(first: Any, second: Any) -> Any:
    """Return where the first is not larger."""
    return at_least(second, first)


@operator("eq", views=True)
def equal(first: Any, second: Any) -> Any:
    """Return where both are equal."""
    differs = logical_or(less(first, second), less(second, first))
    return _where_known(logical_not(differs), first, second)


@operator("ne", "not_equal", views=True)
def not_equal(first: Any, second: Any) -> Any:
    """Return where both differ; NaN differs from itself."""
    return logical_not(equal(first, second))


@operator("minimum", views=True)
def minimum(first: Any, second: Any) -> Any:
    """Return the smaller ones."""
    return neg(maximum(*(binary(ElementwiseKind.MULTIPLY, one, -1.0, one.dtype) for one in (first, second))))


@operator("nan_to_num", views=True)
def nan_to_num(
    value: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """Return numbers with NaN and infinity replaced by others."""
    found = where(_known(value), value, nan or 0.0)
    found = where(less(found, math.inf), found, _LARGEST if posinf is None else posinf)
    return where(greater(found, -math.inf), found, -_LARGEST if neginf is None else neginf)


@operator("sign", views=True)
def sign(value: Any) -> Any:
    """Return 1 for positive numbers and -1 for negative ones."""
    return sub(as_float(greater(value, 0.0)), as_float(less(value, 0.0)))


@operator("log1p", views=True)
def log1p(value: Any) -> Any:
    """Return logarithms of numbers above -1, plus one.

    The rounding of ``1 + x`` is taken out again: ``log(1 + x) * x / ((1 + x) - 1)``.
    """
    near = clamp(value, -1.0, 1.0)
    rounded = sub(add(near, 1.0), 1.0)
    is_lost = logical_not(logical_or(less(rounded, 0.0), greater(rounded, 0.0)))
    share = where(is_lost, 1.0, div(near, rounded))
    logarithm = mul(computed(ElementwiseKind.LOG2, add(value, 1.0), dtype=torch.float32), math.log(2))
    return where(is_lost, value, mul(logarithm, share))
