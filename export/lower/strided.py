"""Views of values of any strides, which steps by a form read as they are.

Shape letters: B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import torch
from torch import Tensor

from export.lower.formed import Broadcast, Operand, Written
from export.lower.kinds import ElementwiseKind
from export.lower.values import (
    Called,
    Expand,
    Join,
    NotLoweredError,
    NumRows,
    Space,
    Value,
    View,
    Weight,
    path_of,
)

#: The loops of a form: ``kLoops`` of ``cpp_client/ops/kernels/kernels.h``.
NUM_LOOPS = 4
#: float32 holds every whole number up to this one.
MOST_WHOLE = 1 << 24


@dataclass(frozen=True)
class Axis:
    """A dimension of a view within a row."""

    size: int
    stride: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Strided(Called):
    """A view of a value.

    Attributes:
        value: The value; it is no view itself.
        offset: The first number of a row that is seen.
        axes: The dimensions; None for B. Without a None, each row has the same numbers.
    """

    value: Value
    offset: int = 0
    axes: tuple[Axis | None, ...]

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """The sizes."""
        return tuple(NumRows(self.value.space) if axis is None else axis.size for axis in self.axes)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return self.value.dtype

    @property
    def has_rows(self) -> bool:
        """Whether B is one of the dimensions."""
        return None in self.axes

    def settled(self) -> Value:
        """Return a value, a copy if the numbers do not follow each other in the order of the dimensions."""
        if self.has_rows and self.axes[0] is not None:
            raise NotLoweredError("it swaps the rows of a batch with another dimension")
        found = _in_order(self)
        if found is not None:
            return found
        axes = self.of_row
        dims = tuple(axis.size for axis in axes)
        sizes, (to, of) = loops_of(
            dims, [axis.stride for axis in contiguous(dims)], [axis.stride for axis in axes]
        )
        return Broadcast(
            dims=dims,
            space=self.value.space,
            dtype=self.dtype,
            kind=ElementwiseKind.COPY,
            sizes=tuple(sizes),
            strides=tuple(to),
            operands=[operand(self, of)],
        )

    @property
    def of_row(self) -> list[Axis]:
        """The dimensions within a row."""
        return [axis for axis in self.axes if axis is not None]


def with_rows(view: Strided) -> Strided:
    """Return numbers that are the same for every row as those of each row."""
    return Strided(value=view.value, offset=view.offset, axes=(None, *view.axes))


def without_rows(found: Any) -> Strided:
    """Return numbers of each row as what is the same for every row."""
    view = strided(found)
    return Strided(value=view.value, offset=view.offset, axes=view.axes[1:])


def by_row(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of a row's last dimensions also take numbers that are the same for every row."""

    @wraps(function)
    def called(value: Any, *args: Any, **kwargs: Any) -> Any:
        found = function(value.settled() if isinstance(value, Called) else value, *args, **kwargs)
        return without_rows(found) if isinstance(value, Strided) and not value.has_rows else found

    return called


def contiguous(sizes: Sequence[int]) -> list[Axis]:
    """Return dimensions whose numbers follow each other."""
    axes: list[Axis] = []
    stride = 1
    for size in reversed(sizes):
        axes.insert(0, Axis(size, stride))
        stride *= size
    return axes


def strided(value: Any) -> Strided:
    """Return a value as a view of what it is computed of."""
    if isinstance(value, Strided):
        return value
    value = value.settled()
    dims, offset = value.dims, 0
    dtype = value.dtype
    while isinstance(value, View) and value.source.dtype is dtype:
        value, offset = value.source, offset + value.offset
    return Strided(value=value, offset=offset, axes=(None, *contiguous(dims)))


def tidy(view: Strided) -> Value | Strided:
    """Return a view as a value, if its numbers follow each other."""
    if not view.axes or view.axes[0] is not None or None in view.axes[1:]:
        return view
    return _in_order(view) or view


def _in_order(view: Strided) -> Value | None:
    """Return the numbers of each row as a value, if they follow each other."""
    axes = view.of_row
    dims = tuple(axis.size for axis in axes)
    expected = contiguous(dims)
    if any(axis.size > 1 and axis != other for axis, other in zip(axes, expected, strict=True)):
        return None
    value, offset = _part_with(view.value, view.offset, prod(dims))
    if offset == 0 and dims == value.dims:
        return value
    if isinstance(value, Expand):
        # Columns of what rows share are shared too.
        value = value.source
        part = View(dims=dims, space=value.space, dtype=view.dtype, source=value, offset=offset)
        return Expand(dims=dims, dtype=view.dtype, source=part)
    return View(dims=dims, space=value.space, dtype=view.dtype, source=value, offset=offset)


def _part_with(value: Value, offset: int, width: int) -> tuple[Value, int]:
    """Return what some columns of values side by side are columns of, and from which on."""
    while isinstance(value, Join):
        column = 0
        for part in value.parts:
            if column <= offset and offset + width <= column + part.width:
                break
            column += part.width
        else:
            break
        if part.value.dtype is not value.dtype:
            break
        value, offset = part.value, offset - column + part.offset
    return value, offset


def loops_of(sizes: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return the loops over some operands, as few as there can be, and NUM_LOOPS with those of one turn.

    Args:
        sizes: Of each dimension.
        strides: Of each operand.
    """
    kept: list[tuple[int, list[int]]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if kept and all(before == size * step for before, step in zip(kept[-1][1], steps, strict=True)):
            kept[-1] = (kept[-1][0] * size, steps)
        else:
            kept.append((size, steps))
    if len(kept) > NUM_LOOPS:
        raise NotLoweredError("it computes over more dimensions than a form has loops")
    kept = [(1, [0] * len(strides))] * (NUM_LOOPS - len(kept)) + kept
    return [size for size, _ in kept], [[steps[i] for _, steps in kept] for i in range(len(strides))]


def reach(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return how far behind the first number the last one is that loops reach."""
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def restrided(value: Broadcast, part: Written) -> tuple[int, ...] | None:
    """Return the strides by which a form writes all of its numbers where a part of another value lies.

    Args:
        value: What the form computes, in order.
        part: Where it lies: runs of the same length, at the same distance.

    Returns:
        The strides; None if the loops of the form do not end where the runs do, or more than it is read.
    """
    of = part.operand
    loops = [
        (size, to, by) for size, to, by in zip(part.sizes, part.strides, of.strides, strict=True) if size > 1
    ]
    # From the outside: the distance of runs, then the numbers of a run.
    is_in_order = of.offset == 0 and prod(part.sizes) == value.width
    if not is_in_order or len(loops) != 2 or loops[1][1:] != (1, 1) or loops[0][2] != loops[1][0]:
        return None
    run, distance = loops[1][0], loops[0][1]
    strides: list[int] = []
    for size, stride in zip(value.sizes, value.strides, strict=True):
        if stride % run == 0:
            strides.append(stride // run * distance)
        elif run % (size * stride) == 0:
            strides.append(stride)
        else:
            return None
    return tuple(strides)


def operand(view: Strided, strides: Sequence[int]) -> Operand:
    """Return what a form reads of a view, by the strides of its loops."""
    return Operand(value=view.value, offset=view.offset, strides=tuple(strides))


def reshaped_axes(axes: Sequence[Axis], sizes: Sequence[int]) -> list[Axis] | None:
    """Return the dimensions of a view with other sizes; None if its numbers must be copied for it."""
    left = [axis for axis in axes if axis.size != 1]
    found: list[Axis] = []
    for size in reversed(sizes):
        if size == 1:
            found.insert(0, Axis(1, 0))
            continue
        if not left:
            return None
        last = left.pop()
        while last.size < size and left and left[-1].stride == last.size * last.stride:
            last = Axis(left.pop().size * last.size, last.stride)
        if last.size % size:
            return None
        found.insert(0, Axis(size, last.stride))
        if last.size != size:
            left.append(Axis(last.size // size, last.stride * size))
    return found if prod(sizes) == prod(axis.size for axis in axes) and not left else None


def weight_of(tensor: Tensor, space: Space) -> Weight:
    """Return the numbers of a tensor in a space, flat.

    Raises:
        NotLoweredError: Steps do not hold them in float32.
    """
    is_whole = not tensor.is_floating_point()
    if tensor.numel() == 0 or (tensor.dtype is not torch.float32 and not is_whole):
        raise NotLoweredError(f"it computes with a constant of {tensor.dtype}")
    if is_whole and tensor.dtype is not torch.bool and int(tensor.abs().max()) > MOST_WHOLE:
        raise NotLoweredError("it computes with whole numbers that float32 does not hold")
    path = path_of(tensor)
    numbers = None if path is not None else tensor.detach().to(torch.float32).reshape(-1).contiguous()
    return Weight(
        dims=(tensor.numel(),), space=space, dtype=tensor.dtype, path=path, numbers=numbers, tensor=tensor
    )


def lifted(one: Any, space: Space) -> Any:
    """Return a tensor as a view of numbers that are the same for every row; anything else as it is."""
    if isinstance(one, Called) or not isinstance(one, Tensor):
        return one
    return Strided(value=weight_of(one, space), axes=tuple(contiguous(one.shape)))
