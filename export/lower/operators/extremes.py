"""The largest and the smallest numbers of a dimension, and functions that bound numbers.

Shape letters: B rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from export.lower.operators.arithmetic import clamp, maximum
from export.lower.operators.comparisons import minimum
from export.lower.operators.views import dim_of, narrow, squeeze
from export.lower.strided import strided, with_rows, without_rows
from export.lower.values import Called, NotLoweredError, operator


@dataclass(frozen=True)
class Extremes:
    """What ``max`` and ``min`` return of a dimension; no step tells where the numbers were."""

    values: Any

    def __getitem__(self, index: int) -> Any:
        if index != 0:
            raise NotLoweredError("it asks where the largest numbers are")
        return self.values


def _of_dim(pick: Callable[[Any, Any], Any], value: Any, dim: Any, keepdim: bool) -> Any:
    """Return what is picked of the numbers of a dimension: the one half beside the other, again and again."""
    if not isinstance(dim, int):
        raise NotLoweredError("it reduces several dimensions")
    view, at = strided(value), dim_of(value, dim)
    if not view.has_rows:
        return without_rows(_of_dim(pick, with_rows(view), at + 1, keepdim))
    if at == 0:
        raise NotLoweredError("it reduces the rows of a batch to one")
    size = int(value.shape[at])
    while size > 1:
        half = (size + 1) // 2
        # Where the number is odd, the middle one is on both sides.
        value = pick(narrow(value, at, 0, half), narrow(value, at, size - half, half))
        size = half
    return value if keepdim else squeeze(value, at)


@operator("amax", views=True)
def amax(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the largest numbers of a dimension."""
    return _of_dim(maximum, value, dim, keepdim)


@operator("amin", views=True)
def amin(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smallest numbers of a dimension."""
    return _of_dim(minimum, value, dim, keepdim)


@operator("max", views=True)
def largest(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the larger numbers of two, or the largest ones of a dimension."""
    return maximum(value, dim) if isinstance(dim, Called) else Extremes(amax(value, dim, keepdim))


@operator("min", views=True)
def smallest(value: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the smaller numbers of two, or the smallest ones of a dimension."""
    return minimum(value, dim) if isinstance(dim, Called) else Extremes(amin(value, dim, keepdim))


@operator("relu6", views=True)
def relu6(value: Any, inplace: bool = False) -> Any:
    """Return numbers between 0 and 6."""
    return hardtanh(value, 0.0, 6.0, inplace)


@operator("hardtanh", views=True)
def hardtanh(value: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Return numbers within bounds."""
    del inplace
    return clamp(value, min_val, max_val)
