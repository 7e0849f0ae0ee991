"""Views of values, and values side by side.

Shape letters: B rows, V vectors, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from export.lower.bags import IdsSpace, Length, SeveralLengths, ToIds
from export.lower.formed import Interleave, Written
from export.lower.operators.taking import take
from export.lower.strided import (
    Axis,
    Strided,
    contiguous,
    lifted,
    loops_of,
    operand,
    reshaped_axes,
    strided,
    tidy,
    with_rows,
    without_rows,
)
from export.lower.values import (
    Expand,
    Join,
    NotLoweredError,
    NumRows,
    Part,
    Space,
    Value,
    Weight,
    operator,
    path_of,
)

Viewed = Value | Strided


@dataclass(frozen=True)
class RowContext:
    """The context of each row, ``[B]``."""

    def size(self, dim: int) -> NumRows:
        """Return B."""
        if dim != 0:
            raise IndexError(dim)
        return NumRows(Space.ROWS)


def of_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of a view take any value."""

    @wraps(function)
    def called(value: Viewed, *args: Any, **kwargs: Any) -> Any:
        return function(strided(value), *args, **kwargs)

    return called


def dim_of(value: Viewed, dim: int) -> int:
    """Return a dimension counted from the front, B included."""
    return dim + value.ndim if dim < 0 else dim


def with_axes(view: Strided, axes: Sequence[Axis | None], offset: int = 0) -> Any:
    """Return a view with other dimensions, which begins ``offset`` further behind."""
    return tidy(replace(view, axes=tuple(axes), offset=view.offset + offset))


@operator("contiguous", "clone", "detach", "type_as", "alias", views=True)
def same(value: Viewed, *_: Any, **__: Any) -> Viewed:
    """Return the value itself."""
    return value


@operator("dropout", "feature_dropout", "alpha_dropout", views=True)
def dropout(value: Viewed, p: float = 0.5, training: bool = False, inplace: bool = False) -> Viewed:
    """Return the value itself, as in eval mode."""
    del p, inplace
    if training:
        raise NotLoweredError("dropout in training mode")
    return value


@of_view
def reshaped(view: Strided, dims: Sequence[int]) -> Any:
    """Return the same numbers of each row with other dimensions."""
    if prod(dims) != prod(axis.size for axis in view.of_row):
        raise NotLoweredError("it reshapes rows into others")
    if view.has_rows and view.axes[0] is not None:
        raise NotLoweredError("it reshapes rows into others")
    axes = reshaped_axes(view.of_row, dims)
    if axes is None:
        view = strided(view.settled())
        axes = contiguous(dims)
    return with_axes(view, [*([None] if view.has_rows else []), *axes])


@operator("reshape", "view", views=True)
@of_view
def reshape(view: Strided, *sizes: Any) -> Any:
    """Return the same numbers with other dimensions."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    if view.has_rows:
        first, *dims = sizes
        if not (first == -1 and -1 not in dims) and first != NumRows(view.value.space):
            raise NotLoweredError("it reshapes rows into others")
    else:
        dims = list(sizes)
    if any(not isinstance(dim, int) for dim in dims):
        raise NotLoweredError("it reshapes rows into others")
    if -1 in dims:
        at, rest = dims.index(-1), prod(dim for dim in dims if dim != -1)
        dims[at] = prod(axis.size for axis in view.of_row) // max(rest, 1)
    return reshaped(view, dims)


@operator("flatten", views=True)
def flatten(value: Viewed, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Return rows with fewer dimensions."""
    first, last = dim_of(value, start_dim), dim_of(value, end_dim)
    dims = [size for size in value.shape if isinstance(size, int)]
    if first == 0 and prod(dims) == 1 and last == len(dims):
        return reshaped(value, ())
    if first < 1:
        raise NotLoweredError("it flattens rows into one")
    return reshaped(value, (*dims[: first - 1], prod(dims[first - 1 : last]), *dims[last:]))


@operator("unsqueeze", views=True)
@of_view
def unsqueeze(view: Strided, dim: int) -> Any:
    """Return rows with one more dimension."""
    at = dim + view.ndim + 1 if dim < 0 else dim
    return with_axes(view, [*view.axes[:at], Axis(1, 0), *view.axes[at:]])


@operator("squeeze", views=True)
@of_view
def squeeze(view: Strided, dim: Any = None) -> Any:
    """Return rows without a dimension of 1."""
    if dim is None:
        raise NotLoweredError("squeeze() without dim")
    dims = {dim_of(view, d) for d in (dim if isinstance(dim, (tuple, list)) else [dim])}
    if any(view.axes[d] is None for d in dims):
        raise NotLoweredError("it squeezes the batch")
    return with_axes(view, [a for i, a in enumerate(view.axes) if i not in dims or a is None or a.size != 1])


@operator("transpose", "swapaxes", views=True)
def transpose(value: Viewed, dim0: int, dim1: int) -> Any:
    """Return rows with two dimensions swapped."""
    order = list(range(value.ndim))
    first, second = dim_of(value, dim0), dim_of(value, dim1)
    order[first], order[second] = second, first
    return permute(value, order)


@operator("permute", views=True)
@of_view
def permute(view: Strided, *dims: Any) -> Any:
    """Return rows with their dimensions in another order."""
    order = [dim_of(view, d) for d in (dims[0] if isinstance(dims[0], (tuple, list)) else dims)]
    return with_axes(view, [view.axes[d] for d in order])


@operator("t", "adjoint", views=True)
def transposed(value: Viewed) -> Any:
    """Return a matrix with its dimensions swapped."""
    return transpose(value, -1, -2)


@operator("expand", views=True)
@of_view
def expand(view: Strided, *sizes: Any) -> Any:
    """Return rows whose dimensions of 1 are repeated."""
    sizes = tuple(sizes[0]) if isinstance(sizes[0], (tuple, list)) else sizes
    axes: list[Axis | None] = [*[Axis(1, 0)] * (len(sizes) - view.ndim), *view.axes]
    found: list[Axis | None] = []
    for axis, size in zip(axes, sizes, strict=True):
        if isinstance(size, NumRows) and axis is not None and axis.size == 1 and not view.has_rows:
            if size != NumRows(size.space):
                raise NotLoweredError("it repeats rows")
            view = replace(view, value=lifted_to(view.value, size.space))
            found.append(None)
        elif axis is None or size in (-1, axis.size):
            found.append(axis)
        elif axis.size == 1 and isinstance(size, int):
            found.append(Axis(size, 0))
        else:
            raise NotLoweredError("it repeats rows")
    return with_axes(view, found)


def lifted_to(value: Value, space: Space) -> Value:
    """Return numbers that are the same for every row in a space."""
    if value.space is space:
        return value
    if isinstance(value, Weight):
        return replace(value, space=space)
    if isinstance(space, IdsSpace):
        return ToIds(dims=value.dims, space=space, dtype=value.dtype, source=lifted_to(value, space.rows))
    raise NotLoweredError("it computes with rows and contexts")


@operator("repeat", views=True)
@of_view
def repeat(view: Strided, *times: Any) -> Any:
    """Return rows whose dimensions of 1 are repeated."""
    times = tuple(times[0]) if isinstance(times[0], (tuple, list)) else times
    sizes = (*[1] * (len(times) - view.ndim), *view.shape)
    if any(
        count != 1 and (size != 1 or (isinstance(count, NumRows) and view.has_rows))
        for count, size in zip(times, sizes, strict=True)
    ):
        raise NotLoweredError("it repeats dimensions of several numbers")
    return expand(view, *[-1 if count == 1 else count for count in times])


@operator("narrow", views=True)
@of_view
def narrow(view: Strided, dim: int, start: int, length: int) -> Any:
    """Return a part of a dimension."""
    at = dim_of(view, dim)
    axis = view.axes[at]
    if axis is None or not isinstance(start, int) or not isinstance(length, int):
        raise NotLoweredError("it takes some rows of the batch")
    start = start + axis.size if start < 0 else start
    if not 0 <= start <= axis.size - length or length < 1:
        raise NotLoweredError("it takes columns that are not there")
    axes = [*view.axes[:at], Axis(length, axis.stride), *view.axes[at + 1 :]]
    return with_axes(view, axes, start * axis.stride)


@operator("select", views=True)
@of_view
def select(view: Strided, dim: int, index: int) -> Any:
    """Return one of a dimension."""
    view = strided(narrow(view, dim, index, 1))
    at = dim_of(view, dim)
    return with_axes(view, [*view.axes[:at], *view.axes[at + 1 :]])


@operator("split", "split_with_sizes", views=True)
def split(value: Viewed, split_size_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return parts of a dimension."""
    total = value.shape[dim]
    sizes = split_size_or_sections
    if not isinstance(total, int):
        raise NotLoweredError("it takes some rows of the batch")
    if isinstance(sizes, int):
        sizes = [min(sizes, total - at) for at in range(0, total, sizes)]
    starts = accumulate(sizes, initial=0)
    return tuple(narrow(value, dim, start, size) for start, size in zip(starts, sizes, strict=False))


@operator("chunk", views=True)
def chunk(value: Viewed, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Return parts of a dimension."""
    total = value.shape[dim]
    return split(value, -(-total // chunks) if isinstance(total, int) else 1, dim)


@operator("unbind", views=True)
def unbind(value: Viewed, dim: int = 0) -> tuple[Any, ...]:
    """Return each of a dimension."""
    total = value.shape[dim]
    return tuple(select(value, dim, i) for i in range(total if isinstance(total, int) else 1))


@operator("getitem", views=True)
def getitem(value: Viewed, index: Any) -> Any:
    """Return parts of dimensions, ``x[:, index]``."""
    index = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [one for one in index if not isinstance(one, Tensor)]:
        at = [one is Ellipsis for one in index].index(True)
        given = sum(one is not None for one in index) - 1
        index = (*index[:at], *[slice(None)] * (value.ndim - given), *index[at + 1 :])
    found: Any = value
    dim = 0
    for one in index:
        if one is None:
            found = unsqueeze(found, dim)
        elif isinstance(one, int):
            found = select(found, dim, one)
            continue
        elif isinstance(one, (Tensor, Value, Strided)):
            found = index_select(found, dim, one)
            dim += len(one.shape) - 1
        elif isinstance(one, slice):
            found = _sliced(found, dim, one)
        else:
            raise NotLoweredError("it takes columns by what it computes")
        dim += 1
    return found


def _sliced(value: Viewed, dim: int, index: slice) -> Any:
    if index == slice(None):
        return value
    size = value.shape[dim]
    bounds = (index.start, index.stop, index.step)
    if not isinstance(size, int) or any(not isinstance(one, int | None) for one in bounds):
        raise NotLoweredError("it takes some rows of the batch")
    start, end, step = index.indices(size)
    if step != 1:
        raise NotLoweredError("it takes columns that do not follow each other")
    return narrow(value, dim, start, end - start)


def _whole(value: Value) -> Part:
    return Part(value=value, offset=0, width=value.width)


def joined(values: Sequence[Value], dims: tuple[int, ...]) -> Value:
    """Return values of one space side by side."""
    spaces = {value.space for value in values}
    if len(spaces) != 1:
        raise NotLoweredError("it puts rows beside contexts")
    return Join(dims=dims, space=spaces.pop(), dtype=values[0].dtype, parts=tuple(map(_whole, values)))


@operator("cat", "concat", "concatenate", views=True)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return values side by side, or the lengths of features."""
    lengths = tuple(one for one in tensors if isinstance(one, Length))
    if len(lengths) == len(tensors) and dim == 0 and len({one.space for one in lengths}) == 1:
        return SeveralLengths(lengths)
    spaces = [
        one.space if isinstance(one, Value) else one.value.space
        for one in tensors
        if not isinstance(one, Tensor)
    ]
    views = [strided(lifted(one, spaces[0])) for one in tensors]
    at = dim_of(views[0], dim)
    if not any(view.has_rows for view in views):
        return without_rows(cat([with_rows(view) for view in views], at + 1))
    if at == 0 or any(not view.has_rows or view.ndim != views[0].ndim for view in views):
        raise NotLoweredError("it puts rows beside something else")
    if len(views) == 1:
        return tensors[0]
    dims = [[size for size in view.shape if isinstance(size, int)] for view in views]
    whole = list(dims[0])
    whole[at - 1] = sum(of_view[at - 1] for of_view in dims)
    if any([*of_view[: at - 1], *of_view[at:]] != [*whole[: at - 1], *whole[at:]] for of_view in dims):
        raise NotLoweredError("it joins rows of other sizes")
    if prod(whole[: at - 1]) == 1:
        return joined([view.settled() for view in views], tuple(whole))
    return _interleaved(views, at - 1, tuple(whole))


def _interleaved(views: Sequence[Strided], at: int, whole: tuple[int, ...]) -> Value:
    """Return views joined at a dimension within a row."""
    if len({view.value.space for view in views}) != 1:
        raise NotLoweredError("it puts rows beside contexts")
    to = [axis.stride for axis in contiguous(whole)]
    parts, begin = [], 0
    for view in views:
        if view.axes[0] is not None:
            raise NotLoweredError("it swaps the rows of a batch with another dimension")
        axes = view.of_row
        if not prod(axis.size for axis in axes):
            continue
        sizes, (out, of) = loops_of([axis.size for axis in axes], to, [axis.stride for axis in axes])
        parts.append(Written(begin * to[at], tuple(sizes), tuple(out), operand(view, of)))
        begin += axes[at].size
    return Interleave(dims=whole, space=views[0].value.space, dtype=views[0].dtype, at=at, parts=tuple(parts))


@operator("stack", views=True)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return values one behind the other."""
    at = dim + len(tensors[0].shape) + 1 if dim < 0 else dim
    views = [strided(lifted(one, Space.ROWS)) for one in tensors]
    if any(isinstance(one, Tensor) for one in tensors) and any(view.has_rows for view in views):
        raise NotLoweredError("it stacks rows and something else")
    return cat([unsqueeze(view, at) for view in views], at)


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
    return Join(
        dims=(index.numel(), *value.dims[1:]), space=value.space, dtype=value.dtype, parts=tuple(runs)
    )


@operator("gather", views=True)
def gather(value: Any, dim: int, index: Any) -> Any:
    """Return whole vectors by their numbers, which each stand for all numbers of a vector."""
    view, numbers = strided(value), strided(index)
    at = dim_of(view, dim)
    rest = [axis for axis in numbers.axes[2:] if axis is not None]
    is_whole = [axis.size for axis in rest] == [axis.size for axis in view.of_row[1:]]
    if at != 1 or not numbers.has_rows or not is_whole or any(a.stride and a.size > 1 for a in rest):
        raise NotLoweredError("it takes some numbers of vectors")
    return take(view, strided(with_axes(numbers, numbers.axes[:2])))


@operator("embedding", views=True)
def embedding(index: Any, weight: Any, *_: Any, **__: Any) -> Any:
    """Return the vectors of a dense weight by their numbers."""
    vectors = strided(lifted(weight, Space.ROWS))
    if isinstance(index, Tensor) and path_of(index) is None:
        size = vectors.of_row[0].size
        if index.dim() == 1 and torch.equal(index, torch.arange(size)):
            return vectors
        index = lifted(index, vectors.value.space)
    return take(vectors, strided(index))


@operator("index_select", views=True)
def index_select(value: Any, dim: int, index: Any) -> Any:
    """Return columns by their numbers, or the rows of contexts."""
    if isinstance(value, Strided) and not value.has_rows:
        if dim_of(value, dim) != 0:
            raise NotLoweredError("it takes columns of a weight")
        return embedding(index, value)
    value = value.settled()
    at = dim_of(value, dim)
    if at == 0 and isinstance(index, RowContext) and value.space is Space.CONTEXTS:
        return Expand(dims=value.dims, dtype=value.dtype, source=value)
    if at == 1 and isinstance(index, Tensor):
        if path_of(index) is not None:
            raise NotLoweredError(
                f"checkpoints hold whole numbers that it takes columns by: {path_of(index)}"
            )
        return columns_at(value, index)
    raise NotLoweredError("it takes rows by what it computes")
