"""Sums among the vectors that a linear layer reads, taken into its weights: ``W [a, b, a + b]`` is ``W' [a, b]``.

Shape letters: B rows, K columns.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from export.lower.formed import Broadcast, Interleave, Written
from export.lower.kinds import ElementwiseKind
from export.lower.strided import restrided, strided
from export.lower.values import Columns, Elementwise, Join, Part, Value

_SIGNS = {ElementwiseKind.ADD: 1, ElementwiseKind.SUBTRACT: -1}


def folded(join: Join) -> tuple[Value, Columns]:
    """Return what a layer over vectors side by side need read, and which of its columns that takes.

    Without a sum of two of the vectors among them that is all, and no columns.

    Args:
        join: ``[B, K]``.
    """
    parts = list(join.parts)
    starts = list(accumulate((part.width for part in parts), initial=0))
    taken = {i: [(starts[i], 1)] for i in range(len(parts))}
    sums = [(found, i) for i, part in enumerate(parts) if (found := _sum_of(part)) is not None]
    # Those that are computed last first: they may be sums of sums.
    for total, i in sorted(sums, key=lambda one: -one[0].number):
        at = [
            next((j for j in taken if j != i and _numbers_of(parts[j]) == _numbers_of(_whole(of))), None)
            for of in total.operands
        ]
        first, second = at
        if first is None or second is None:
            continue
        columns = taken.pop(i)
        taken[first] += columns
        taken[second] += [(start, sign * _SIGNS[total.kind]) for start, sign in columns]
    if len(taken) == len(parts):
        return join, ()
    kept = [parts[i] for i in taken]
    to = accumulate((part.width for part in kept), initial=0)
    columns_of = tuple(
        (column, start, part.width, sign)
        for column, part, i in zip(to, kept, taken, strict=False)
        for start, sign in taken[i]
    )
    made = Join(
        dims=(sum(part.width for part in kept),), space=join.space, dtype=join.dtype, parts=tuple(kept)
    )
    return made, columns_of


def folded_vectors(joined: Interleave) -> tuple[Value, Columns]:
    """Return the same for a layer over each of several vectors ``[B, L, K]``, joined at K."""
    parts, width = list(joined.parts), joined.dims[-1]
    ends = [*(part.offset for part in parts[1:]), width]
    taken = {i: [(part.offset, 1)] for i, part in enumerate(parts)}
    # Those that are computed last first: they may be sums of sums.
    for i, part in sorted(enumerate(parts), key=lambda one: -one[1].operand.value.number):
        total = part.operand.value
        if not isinstance(total, Broadcast) or total.kind not in _SIGNS or restrided(total, part) is None:
            continue
        loops = [(total.sizes, of.strides, of.value, of.offset) for of in total.operands]
        at = [next((j for j in taken if j != i and _loops_of(parts[j]) == loop), None) for loop in loops]
        first, second = at
        if first is None or second is None:
            continue
        columns = taken.pop(i)
        taken[first] += columns
        taken[second] += [(start, sign * _SIGNS[total.kind]) for start, sign in columns]
    if len(taken) == len(parts):
        return joined, ()
    widths = [ends[i] - parts[i].offset for i in taken]
    to = [0, *accumulate(widths)]
    kept = tuple(
        replace(
            parts[i],
            offset=column,
            strides=tuple(by // width * to[-1] if by >= width else by for by in parts[i].strides),
        )
        for column, i in zip(to, taken, strict=False)
    )
    columns_of = tuple(
        (column, start, size, sign)
        for column, size, i in zip(to, widths, taken, strict=False)
        for start, sign in taken[i]
    )
    dims = (*joined.dims[:-1], to[-1])
    made = Interleave(dims=dims, space=joined.space, dtype=joined.dtype, at=joined.at, parts=kept)
    return made, columns_of


def _loops_of(part: Written) -> tuple[tuple[int, ...], tuple[int, ...], Value, int]:
    """Return which numbers a part holds, by the loops over them."""
    return part.sizes, part.operand.strides, part.operand.value, part.operand.offset


def _whole(value: Value) -> Part:
    return Part(value=value, offset=0, width=value.width)


def _sum_of(part: Part) -> Elementwise | None:
    """Return the sum, or difference, of two vectors that a part is."""
    found = strided(part.value).value
    is_sum = isinstance(found, Elementwise) and found.kind in _SIGNS and found.count == 1
    is_whole = _numbers_of(part) == (id(found), 0, found.width)
    return found if isinstance(found, Elementwise) and is_sum and is_whole else None


def _numbers_of(part: Part) -> tuple[int, int, int]:
    """Return which numbers a part holds."""
    view = strided(part.value)
    return id(view.value), view.offset + part.offset, part.width
