"""Vectors taken by their numbers.

Shape letters: B rows, I numbers, V vectors, D numbers of a vector.
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import prod
from typing import Any

import torch

from export.lower.bags import Length
from export.lower.formed import Broadcast
from export.lower.kinds import ElementwiseKind
from export.lower.strided import Strided, contiguous
from export.lower.values import (
    Elementwise,
    NotLoweredError,
    Take,
    Value,
    View,
    Weight,
)

_ANY = (-math.inf, math.inf)
_OF_TWO = (ElementwiseKind.ADD, ElementwiseKind.SUBTRACT)


def bounds_of(value: Value) -> tuple[float, float]:
    """Return bounds of the numbers of a value, as far as they are known."""
    if isinstance(value, Length):
        return 0.0, math.inf
    if value.dtype is torch.bool:
        return 0.0, 1.0
    if isinstance(value, Weight):
        numbers = value.tensor
        return _ANY if numbers is None else (float(numbers.min()), float(numbers.max()))
    if isinstance(value, View):
        return bounds_of(value.source)
    if isinstance(value, Broadcast):
        return _of_two(value.kind, *(bounds_of(one.value) for one in value.operands))
    if not isinstance(value, Elementwise):
        return _ANY
    if value.kind in _OF_TWO:
        return _of_two(value.kind, *map(bounds_of, value.operands))
    low, high = bounds_of(value.operands[0])
    factor = value.factor
    found = _ANY
    if value.kind is ElementwiseKind.COPY:
        found = (low, high)
    elif value.kind is ElementwiseKind.TRUNCATE:
        found = (_truncated(low), _truncated(high))
    elif value.kind is ElementwiseKind.TOTAL:
        found = (low * value.count, high * value.count)
    elif value.kind is ElementwiseKind.ABSOLUTE:
        found = (0.0, max(-low, high))
    elif value.kind is ElementwiseKind.LOG2 and low > 0:
        found = (math.log2(low), math.log2(high) if high < math.inf else math.inf)
    elif factor is not None and value.kind is ElementwiseKind.AT_LEAST:
        found = (max(low, factor), max(high, factor))
    elif factor is not None and value.kind is ElementwiseKind.AT_MOST:
        found = (min(low, factor), min(high, factor))
    elif factor is not None and value.kind is ElementwiseKind.SHIFT:
        found = (low + factor, high + factor)
    elif factor is not None and value.kind is ElementwiseKind.SCALE and factor:
        found = (min(low * factor, high * factor), max(low * factor, high * factor))
    return found


def _of_two(kind: ElementwiseKind, *bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds of what a kind makes of two operands, or of a copy of one."""
    if kind is ElementwiseKind.COPY:
        return bounds[0]
    if kind not in _OF_TWO:
        return _ANY
    (low, high), (second_low, second_high) = bounds
    if kind is ElementwiseKind.SUBTRACT:
        second_low, second_high = -second_high, -second_low
    return low + second_low, high + second_high


def _truncated(bound: float) -> float:
    return bound if math.isinf(bound) else float(math.trunc(bound))


def take(vectors: Strided, numbers: Strided) -> Any:
    """Return vectors ``[B, V, D]``, or ``[V, D]``, by numbers of any dimensions.

    Raises:
        NotLoweredError: A number may be out of range, which torch refuses.
    """
    if numbers.dtype is torch.float32 or numbers.dtype is torch.bool:
        raise NotLoweredError(f"it takes vectors by numbers of {numbers.dtype}")
    (first, *others) = vectors.of_row
    if vectors.axes[0] is None and len(vectors.axes) < 2:
        raise NotLoweredError("it takes some rows of the batch")
    table, index = vectors.settled(), numbers.settled()
    low, high = bounds_of(index)
    if low < 0 or high > first.size - 1:
        raise NotLoweredError("it takes vectors by numbers that may be out of range")
    space = table.space if vectors.has_rows else index.space
    if not vectors.has_rows and isinstance(vectors.value, Weight):
        table = replace(vectors, value=replace(vectors.value, space=space)).settled()
    if table.space is not index.space:
        raise NotLoweredError("it computes with rows and contexts")
    dims = (*(axis.size for axis in numbers.of_row), *(axis.size for axis in others))
    made = Take(
        dims=dims, space=space, dtype=vectors.dtype, numbers=index, vectors=table, each=prod(a.size for a in others)
    )  # fmt: skip
    if vectors.has_rows or numbers.has_rows:
        return made
    return Strided(value=made, axes=tuple(contiguous(dims)))
