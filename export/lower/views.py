"""Views of values, and values side by side.

Shape letters: B rows, V vectors, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from export.lower.values import Expand, Join, NotLoweredError, NumRows, Part, Space, Value, View, operator


@dataclass(frozen=True)
class RowContext:
    """The context of each row, ``[B]``."""

    def size(self, dim: int) -> NumRows:
        """Return B."""
        if dim != 0:
            raise IndexError(dim)
        return NumRows(Space.ROWS)


def dim_of(value: Value, dim: int) -> int:
    """Return a dimension counted from the front, B included."""
    return dim + value.ndim if dim < 0 else dim


@operator("contiguous", "clone", "detach", "float", "type_as", "alias")
def same(value: Value, *_: Any, **__: Any) -> Value:
    """Return the value itself."""
    return value


@operator("to")
def to(value: Value, dtype: Any, *rest: Any, **kwargs: Any) -> Value:
    """Return the value itself, if it keeps its type and device."""
    kept = {torch.float32, torch.device("cpu"), "cpu"}
    if dtype not in kept or any(one not in (*kept, False, True) for one in (*rest, *kwargs.values())):
        raise NotLoweredError(f"it converts to {dtype}")
    return value


@operator("dropout", "feature_dropout", "alpha_dropout")
def dropout(value: Value, p: float = 0.5, training: bool = False, inplace: bool = False) -> Value:
    """Return the value itself, as in eval mode."""
    del p, inplace
    if training:
        raise NotLoweredError("dropout in training mode")
    return value


def reshaped(value: Value, dims: Sequence[int]) -> Value:
    """Return the same numbers of each row with other dims."""
    dims = tuple(dims)
    if dims == value.dims:
        return value
    if prod(dims) != value.width:
        raise NotLoweredError("it reshapes rows into others")
    return View(dims=dims, space=value.space, source=value)


@operator("reshape", "view")
def reshape(value: Value, *sizes: Any) -> Value:
    """Return the same numbers with other dims."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    first, *dims = sizes
    if any(not isinstance(dim, int) for dim in dims):
        raise NotLoweredError("it reshapes rows into others")
    if isinstance(first, NumRows):
        if first != NumRows(value.space):
            raise NotLoweredError("it reshapes rows into others")
        if -1 in dims:
            at, rest = dims.index(-1), prod(dim for dim in dims if dim != -1)
            dims[at] = value.width // max(rest, 1)
    elif first != -1:
        raise NotLoweredError("it reshapes rows into others")
    return reshaped(value, dims)


@operator("flatten")
def flatten(value: Value, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Return rows with fewer dims."""
    first, last = dim_of(value, start_dim), dim_of(value, end_dim)
    if first == 0 and value.width == 1 and last == len(value.dims):
        return reshaped(value, ())
    if first < 1:
        raise NotLoweredError("it flattens rows into one")
    dims = value.dims
    return reshaped(value, (*dims[: first - 1], prod(dims[first - 1 : last]), *dims[last:]))


@operator("unsqueeze")
def unsqueeze(value: Value, dim: int) -> Value:
    """Return rows with one more dim."""
    at = dim + value.ndim + 1 if dim < 0 else dim
    if at < 1:
        raise NotLoweredError("it adds a dimension before the batch")
    return reshaped(value, (*value.dims[: at - 1], 1, *value.dims[at - 1 :]))


@operator("squeeze")
def squeeze(value: Value, dim: Any = None) -> Value:
    """Return rows without a dim of 1."""
    if dim is None:
        raise NotLoweredError("squeeze() without dim")
    dims = sorted(dim_of(value, d) for d in (dim if isinstance(dim, (tuple, list)) else [dim]))
    if 0 in dims:
        raise NotLoweredError("it squeezes the batch")
    return reshaped(value, [d for i, d in enumerate(value.dims, 1) if i not in dims or d != 1])


@operator("narrow")
def narrow(value: Value, dim: int, start: int, length: int) -> Value:
    """Return some of the first dim of each row."""
    if dim_of(value, dim) != 1 or not isinstance(start, int) or not isinstance(length, int):
        raise NotLoweredError("it takes parts along another dimension than the first of a row")
    start = start + value.dims[0] if start < 0 else start
    if not 0 <= start <= value.dims[0] - length or length < 1:
        raise NotLoweredError("it takes columns that are not there")
    if (start, length) == (0, value.dims[0]):
        return value
    each = prod(value.dims[1:])
    return View(dims=(length, *value.dims[1:]), space=value.space, source=value, offset=start * each)


@operator("select")
def select(value: Value, dim: int, index: int) -> Value:
    """Return one of the first dim of each row."""
    part = narrow(value, dim, index, 1)
    return reshaped(part, part.dims[1:])


@operator("split", "split_with_sizes")
def split(value: Value, split_size_or_sections: Any, dim: int = 0) -> tuple[Value, ...]:
    """Return parts of the first dim of each row."""
    total = value.dims[0] if value.dims else 0
    sizes = split_size_or_sections
    if isinstance(sizes, int):
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)]
    starts = accumulate(sizes, initial=0)
    return tuple(narrow(value, dim, start, size) for start, size in zip(starts, sizes, strict=False))


@operator("chunk")
def chunk(value: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]:
    """Return parts of the first dim of each row."""
    return split(value, -(-value.dims[0] // chunks), dim)


@operator("unbind")
def unbind(value: Value, dim: int = 0) -> tuple[Value, ...]:
    """Return each of the first dim of each row."""
    return tuple(select(value, dim, i) for i in range(value.dims[0] if value.dims else 0))


@operator("getitem")
def getitem(value: Value, index: Any) -> Value:
    """Return columns, ``x[:, index]``."""
    index = index if isinstance(index, tuple) else (index,)
    if index and index[0] is Ellipsis and len(value.dims) == 1:
        index = (slice(None), *index[1:])
    whole, *rest = index
    if whole != slice(None):
        raise NotLoweredError("it takes some rows of the batch")
    if not rest:
        return value
    first, *others = rest
    if any(other != slice(None) for other in others):
        raise NotLoweredError("it takes parts along another dimension than the first of a row")
    if first is None:
        return unsqueeze(value, 1)
    if isinstance(first, int):
        return select(value, 1, first)
    if isinstance(first, Tensor):
        return columns_at(value, first)
    if not isinstance(first, slice):
        raise NotLoweredError("it takes columns by what it computes")
    start, end, step = first.indices(value.dims[0])
    if step != 1:
        raise NotLoweredError("it takes columns that do not follow each other")
    return narrow(value, 1, start, end - start)


def _whole(value: Value) -> Part:
    return Part(value=value, offset=0, width=value.width)


def joined(values: Sequence[Value], dims: tuple[int, ...]) -> Value:
    """Return values of one space side by side."""
    spaces = {value.space for value in values}
    if len(spaces) != 1:
        raise NotLoweredError("it puts rows beside contexts")
    return Join(dims=dims, space=spaces.pop(), parts=tuple(map(_whole, values)))


@operator("cat", "concat", "concatenate")
def cat(tensors: Sequence[Any], dim: int = 0) -> Value:
    """Return values side by side."""
    values: list[Value] = list(tensors)
    if not all(isinstance(value, Value) for value in values):
        raise NotLoweredError("it puts rows beside something else")
    if any(dim_of(value, dim) != 1 or value.dims[1:] != values[0].dims[1:] for value in values):
        raise NotLoweredError("it joins along another dimension than the first of a row")
    if len(values) == 1:
        return values[0]
    return joined(values, (sum(value.dims[0] for value in values), *values[0].dims[1:]))


@operator("stack")
def stack(tensors: Sequence[Any], dim: int = 0) -> Value:
    """Return values one behind the other."""
    values = list(tensors)
    if not all(isinstance(value, Value) and value.dims == values[0].dims for value in values):
        raise NotLoweredError("it stacks rows and something else")
    if (dim + values[0].ndim + 1 if dim < 0 else dim) != 1:
        raise NotLoweredError("it joins along another dimension than the first of a row")
    return joined(values, (len(values), *values[0].dims))


def columns_at(value: Value, index: Tensor) -> Value:
    """Return columns by their numbers."""
    if index.dtype is not torch.int64 or index.dim() != 1 or index.numel() == 0:
        raise NotLoweredError("it takes columns by no list of numbers")
    each = prod(value.dims[1:])
    runs: list[Part] = []
    for column in index.tolist():
        if not 0 <= column < value.dims[0]:
            raise NotLoweredError("it takes columns that are not there")
        last = runs[-1] if runs else None
        if last is not None and last.offset + last.width == column * each:
            runs[-1] = Part(value=value, offset=last.offset, width=last.width + each)
        else:
            runs.append(Part(value=value, offset=column * each, width=each))
    return Join(dims=(index.numel(), *value.dims[1:]), space=value.space, parts=tuple(runs))


@operator("index_select")
def index_select(value: Value, dim: int, index: Any) -> Value:
    """Return columns by their numbers, or the rows of contexts."""
    at = dim_of(value, dim)
    if at == 0 and isinstance(index, RowContext) and value.space is Space.CONTEXTS:
        return Expand(dims=value.dims, source=value)
    if at == 1 and isinstance(index, Tensor):
        return columns_at(value, index)
    raise NotLoweredError("it takes rows by what it computes")
