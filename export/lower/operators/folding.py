"""Sums among the vectors that a linear layer reads, taken into its weights: ``W [a, b, a + b]`` is ``W' [a, b]``.

Shape letters: B rows, K columns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from export.lower.formed import Broadcast, Interleave, Written
from export.lower.kinds import ElementwiseKind
from export.lower.strided import restrided, strided
from export.lower.values import Columns, Elementwise, Join, Part, Value

# Where columns begin, and their sign.
_Run = tuple[int, int]
_SIGNS = {ElementwiseKind.ADD: 1, ElementwiseKind.SUBTRACT: -1}


def folded(join: Join) -> tuple[Value, Columns]:
    """Return what a layer over vectors side by side need read, and which of its columns that takes.

    Without a sum of two of the vectors among them that is all, and no columns.

    Args:
        join: ``[B, K]``.
    """
    parts = list(join.parts)
    starts = list(accumulate((part.width for part in parts), initial=0))
    sums = [
        _Sum(i, found, [_numbers_of(_whole(of)) for of in found.operands])
        for i, part in enumerate(parts)
        if (found := _sum_of(part)) is not None
    ]
    taken = _taken(starts[:-1], [_numbers_of(part) for part in parts], sums)
    if len(taken) == len(parts):
        return join, ()
    kept = [parts[i] for i in taken]
    width = sum(part.width for part in kept)
    made = Join(dims=(width,), space=join.space, dtype=join.dtype, parts=tuple(kept))
    return made, _columns([part.width for part in kept], taken)


def folded_vectors(joined: Interleave) -> tuple[Value, Columns]:
    """Return the same for a layer over each of several vectors ``[B, L, K]``, joined at K."""
    parts, width = list(joined.parts), joined.dims[-1]
    starts = [part.offset for part in parts]
    sums = [
        _Sum(i, total, [(total.sizes, of.strides, of.value, of.offset) for of in total.operands])
        for i, part in enumerate(parts)
        if isinstance(total := part.operand.value, Broadcast)
        and total.kind in _SIGNS
        and restrided(total, part) is not None
    ]
    taken = _taken(starts, [_loops_of(part) for part in parts], sums)
    if len(taken) == len(parts):
        return joined, ()
    widths = [[*starts[1:], width][i] - starts[i] for i in taken]
    to = [0, *accumulate(widths)]
    kept = tuple(
        replace(
            parts[i],
            offset=column,
            strides=tuple(by // width * to[-1] if by >= width else by for by in parts[i].strides),
        )
        for column, i in zip(to, taken, strict=False)
    )
    dims = (*joined.dims[:-1], to[-1])
    made = Interleave(dims=dims, space=joined.space, dtype=joined.dtype, at=joined.at, parts=kept)
    return made, _columns(widths, taken)


@dataclass(frozen=True)
class _Sum:
    """A part that is a sum, or a difference, of two vectors: which part, and what these hold."""

    part: int
    total: Elementwise | Broadcast
    operands: list[Hashable]


def _taken(starts: Sequence[int], held: Sequence[Hashable], sums: Iterable[_Sum]) -> dict[int, list[_Run]]:
    """Return the columns of the weights by the part that takes them; sums of other parts are left out.

    Args:
        starts: Where the columns of each part begin.
        held: What each part holds.
        sums: Those that may be left out.
    """
    taken = {i: [(start, 1)] for i, start in enumerate(starts)}
    # Those that are computed last first: they may be sums of sums.
    for one in sorted(sums, key=lambda one: -one.total.number):
        at = [next((j for j in taken if j != one.part and held[j] == of), None) for of in one.operands]
        first, second = at
        if first is None or second is None:
            continue
        columns = taken.pop(one.part)
        taken[first] += columns
        taken[second] += [(start, sign * _SIGNS[one.total.kind]) for start, sign in columns]
    return taken


def _columns(widths: Sequence[int], taken: Mapping[int, Iterable[_Run]]) -> Columns:
    """Return which columns a layer takes for parts of some widths side by side."""
    to = accumulate(widths, initial=0)
    return tuple(
        (column, start, width, sign)
        for column, width, runs in zip(to, widths, taken.values(), strict=False)
        for start, sign in runs
    )


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
