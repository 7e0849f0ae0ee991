"""What vectors side by side consist of, and which of it is the same for all rows of a context.

Shape letters: B rows, Q contexts, K columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate
from typing import TypeVar
from weakref import WeakKeyDictionary

from export.lower.formed import Broadcast
from export.lower.kinds import ElementwiseKind
from export.lower.values import Columns, Expand, Join, Part, Space, Value, View, Weight

T = TypeVar("T")


def once_per_value(function: Callable[[Value], T]) -> Callable[[Value], T]:
    """Let a function of a value return the same each time, so that several layers over the value share it."""
    found: WeakKeyDictionary[Value, T] = WeakKeyDictionary()

    @wraps(function)
    def called(value: Value) -> T:
        if value not in found:
            found[value] = function(value)
        return found[value]

    return called


@once_per_value
def of_contexts(value: Value) -> Value | None:
    """Return what a value of rows is expanded from; None if it depends on rows."""
    if isinstance(value, Expand):
        return value.source
    if isinstance(value, Weight):
        return replace(value, space=Space.CONTEXTS)
    if isinstance(value, View):
        source = of_contexts(value.source)
        return None if source is None else replace(value, space=Space.CONTEXTS, source=source)
    if isinstance(value, Broadcast) and value.kind is ElementwiseKind.COPY:
        sources = [of_contexts(operand.value) for operand in value.operands]
        operands = [
            replace(operand, value=source)
            for operand, source in zip(value.operands, sources, strict=True)
            if source is not None
        ]
        if len(operands) == len(sources):
            return replace(value, space=Space.CONTEXTS, operands=operands)
    return None


def is_expanded(value: Value) -> bool:
    """Return whether a value is expanded from contexts, and no constant."""
    root = value
    while isinstance(root, (View, Broadcast)):
        root = root.sources[0]
    return isinstance(root, Expand) and of_contexts(value) is not None


def _nothing(_: Value) -> Value | None:
    return None


def flat(parts: Iterable[Part], within: Callable[[Value], Value | None] = _nothing) -> list[Part]:
    """Return the parts of joins within joins, and of views of them, in order.

    Args:
        parts: Columns side by side.
        within: Returns the join that a value can be computed as; None for none.
    """
    found: list[Part] = []
    for part in parts:
        for piece in _pieces(part, within):
            last = found[-1] if found else None
            if last is not None and last.value is piece.value and last.offset + last.width == piece.offset:
                found[-1] = replace(last, width=last.width + piece.width)
            else:
                found.append(piece)
    return found


def _pieces(part: Part, within: Callable[[Value], Value | None]) -> Iterator[Part]:
    value, offset = part.value, part.offset
    while isinstance(value, View) and value.source.dtype is value.dtype:
        value, offset = value.source, offset + value.offset
    joined = value if isinstance(value, Join) else within(value)
    if not isinstance(joined, Join):
        if part.width:
            yield Part(value=value, offset=offset, width=part.width)
        return
    begin = 0
    for one in joined.parts:
        first, end = max(begin, offset), min(begin + one.width, offset + part.width)
        if first < end:
            yield from _pieces(
                Part(value=one.value, offset=one.offset + first - begin, width=end - first), within
            )
        begin += one.width


@dataclass(frozen=True)
class Taken:
    """What a layer reads of some columns: a value, and which columns of the weight that takes."""

    value: Value
    columns: Columns


def taken(parts: Sequence[Part], chosen: Iterable[int], columns: Columns, dims: tuple[int, ...]) -> Taken:
    """Return some of the parts side by side: those of a value together, in its order, so that it is read as it is.

    Args:
        parts: What a layer reads.
        chosen: Which of them.
        columns: The columns of the weight that it takes for all parts; empty for all as they are.
        dims: Of a row before the columns.
    """
    starts = list(accumulate((part.width for part in parts), initial=0))
    columns = columns or ((0, 0, starts[-1], 1),)
    order = sorted(chosen, key=lambda i: (parts[i].value.number, parts[i].offset))
    found: list[tuple[int, int, int, int]] = []
    begin = 0
    for i in order:
        found += moved(columns, starts[i], starts[i + 1], begin)
        begin += parts[i].width
    return Taken(side_by_side([parts[i] for i in order], (*dims, begin)), tuple(found))


def moved(columns: Columns, first: int, end: int, begin: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield what columns say of those from ``first`` to ``end``, which now begin at ``begin``."""
    for to, start, width, sign in columns:
        low, high = max(to, first), min(to + width, end)
        if low < high:
            yield low - first + begin, start + low - to, high - low, sign


def side_by_side(parts: Sequence[Part], dims: tuple[int, ...]) -> Value:
    """Return parts of values side by side: a view if they follow each other in one."""
    merged = flat(parts)
    value = merged[0].value
    if len(merged) > 1:
        return Join(dims=dims, space=value.space, dtype=value.dtype, parts=tuple(merged))
    if merged[0].offset == 0 and value.dims == dims:
        return value
    return View(dims=dims, space=value.space, dtype=value.dtype, source=value, offset=merged[0].offset)


def of_contexts_part(part: Part) -> Part:
    """Return columns that are expanded as those of contexts."""
    value = of_contexts(part.value)
    assert value is not None
    return replace(part, value=value)
