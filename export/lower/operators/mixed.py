"""Linear layers over contexts and rows: ``W [u, i]`` is ``U u``, once for each context, and ``V i`` for each row.

Where a layer reads the products of all pairs of vectors of contexts and rows, those of two contexts' vectors are
computed once for each context.

Shape letters: B rows, Q contexts, L places, K columns, N outputs, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate, combinations, pairwise
from math import prod
from typing import TypeVar
from weakref import WeakKeyDictionary

from export.lower.bags import IdsSpace, ToIds
from export.lower.formed import Broadcast, Interleave, Written
from export.lower.kinds import ElementwiseKind
from export.lower.operators.arithmetic import binary
from export.lower.operators.folding import folded, folded_vectors
from export.lower.operators.forms import matmul
from export.lower.operators.views import permute, unsqueeze
from export.lower.strided import contiguous
from export.lower.values import (
    Columns,
    Elementwise,
    Expand,
    Join,
    Linear,
    Part,
    Products,
    Space,
    Value,
    View,
    Weight,
)

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


@once_per_value
def apart(value: Value) -> Value | None:
    """Return the products of the pairs of a row's vectors as columns of those of contexts, of rows, and of both.

    Args:
        value: What may be such products.

    Returns:
        The same numbers in the same order; None if no two vectors are of contexts.
    """
    if not isinstance(value, Products) or value.space is not Space.ROWS:
        return None
    num, dim = value.source.dims
    vectors = _vectors(value.source, num, dim)
    if vectors is None:
        return None
    contexts = [i for i, part in enumerate(vectors) if is_expanded(part.value)]
    rows = [i for i in range(num) if i not in contexts]
    if len(contexts) < 2 or not rows:
        return None
    of_contexts = side_by_side([of_contexts_part(vectors[i]) for i in contexts], (len(contexts), dim))
    of_rows = side_by_side([vectors[i] for i in rows], (len(rows), dim))
    expanded = Expand(dims=of_contexts.dims, dtype=of_contexts.dtype, source=of_contexts)
    once = _products(of_contexts)
    both = matmul(of_rows, permute(expanded, 0, 2, 1)).settled()
    # By pair, where its product is.
    found: dict[tuple[int, int], Part] = {}
    within = Expand(dims=once.dims, dtype=once.dtype, source=once)
    for i, pair in enumerate(combinations(contexts, 2)):
        found[pair] = Part(value=within, offset=i, width=1)
    if len(rows) > 1:
        among = _products(of_rows)
        for i, pair in enumerate(combinations(rows, 2)):
            found[pair] = Part(value=among, offset=i, width=1)
    for i, row in enumerate(rows):
        for j, context in enumerate(contexts):
            pair = (min(row, context), max(row, context))
            found[pair] = Part(value=both, offset=i * len(contexts) + j, width=1)
    parts = flat([found[pair] for pair in combinations(range(num), 2)])
    return Join(dims=value.dims, parts=tuple(parts))


def _products(vectors: Value) -> Products:
    num = vectors.dims[0]
    return Products(dims=(num * (num - 1) // 2,), space=vectors.space, source=vectors)


def _vectors(value: Value, num: int, dim: int) -> list[Part] | None:
    """Return each of some vectors; None if one consists of several parts."""
    found: list[Part] = []
    for part in flat([Part(value=value, offset=0, width=num * dim)]):
        count, rest = divmod(part.width, dim)
        if rest:
            return None
        found += [Part(value=part.value, offset=part.offset + i * dim, width=dim) for i in range(count)]
    return found


#: With fewer products of contexts for each row, or fewer of their columns, a layer is not split: the addition would
#: cost more. Both are where it takes as long (200 rows of one context, AVX-512: 3 us for the steps, and for each
#: output as much as 3.4 products).
FEWEST_PRODUCTS, FEWEST_COLUMNS = 2048, 8


@dataclass(frozen=True)
class Layer:
    """A layer: the paths of its weight and its bias, and N."""

    weight: str
    bias: str | None
    num_outputs: int


@dataclass(frozen=True)
class _Split:
    """What a layer reads, by how often it need be computed.

    Attributes:
        of_contexts: Of contexts.
        of_rows: Of rows, ``[B, K]``: the same for all places.
        of_places: Of rows, ``[B, L, K]``.
    """

    of_contexts: Taken
    of_rows: Taken | None
    of_places: Taken | None = None


def split_layer(layer: Layer, value: Value) -> Value | None:
    """Return the output of a layer over contexts and rows; None if it is not to be computed in two parts.

    Args:
        layer: The layer.
        value: ``[B, K]`` or ``[B, L, K]``.
    """
    if isinstance(value.space, IdsSpace) and value.space.is_expanded:
        return _split_ids(layer, value)
    if value.space is not Space.ROWS:
        return None
    if len(value.dims) > 1 and isinstance(value, Interleave):
        split = _split_places(value) if value.at == len(value.dims) - 1 else None
    else:
        split = _split_columns(value) if prod(value.dims[:-1]) == 1 else None
    dims = (*value.dims[:-1], layer.num_outputs)
    if split is None or not _is_worth(split.of_contexts.value.width, prod(dims), prod(value.dims[:-1])):
        return None
    of_contexts = _linear(layer, split.of_contexts, dims, None)
    made: Value = Expand(dims=dims, dtype=of_contexts.dtype, source=of_contexts)
    bias = layer.bias
    if split.of_places is not None:
        of_places = _linear(layer, split.of_places, dims, None if split.of_rows else bias)
        made = Elementwise(dims=dims, kind=ElementwiseKind.ADD, operands=[of_places, made])
    if split.of_rows is not None:
        if len(split.of_rows.value.dims) == len(dims):
            of_rows = _linear(layer, split.of_rows, dims, bias)
            return Elementwise(dims=dims, kind=ElementwiseKind.ADD, operands=[of_rows, made])
        of_row = _linear(layer, split.of_rows, (layer.num_outputs,), bias)
        added: Value = binary(ElementwiseKind.ADD, made, unsqueeze(of_row, 1))
        return added
    return made


def _split_ids(layer: Layer, value: Value) -> Value | None:
    """Return the output of a layer for each ID of contexts' bags: what the IDs of a row share is computed once."""
    made, columns = folded(value) if isinstance(value, Join) else (value, ())
    if not isinstance(made, Join):
        return None
    parts = list(made.parts)
    of_rows = {i: part.value for i, part in enumerate(parts) if isinstance(part.value, ToIds)}
    of_rows = {i: to_ids for i, to_ids in of_rows.items() if to_ids.dims == to_ids.source.dims}
    rest = [i for i in range(len(parts)) if i not in of_rows]
    if not rest or sum(parts[i].width for i in of_rows) < FEWEST_COLUMNS:
        return None
    shared = [
        replace(part, value=of_rows[i].source) if i in of_rows else part for i, part in enumerate(parts)
    ]
    dims = (layer.num_outputs,)
    of_row = _linear(layer, taken(shared, of_rows, columns, ()), dims, layer.bias)
    of_ids = _linear(layer, taken(parts, rest, columns, ()), dims, None)
    repeated = ToIds(dims=dims, space=value.space, dtype=of_row.dtype, source=of_row)
    return Elementwise(dims=dims, space=value.space, kind=ElementwiseKind.ADD, operands=[of_ids, repeated])


def _linear(layer: Layer, of: Taken, dims: tuple[int, ...], bias: str | None) -> Linear:
    return Linear(
        dims=dims, space=of.value.space, source=of.value, weight=layer.weight, bias=bias, columns=of.columns
    )


@once_per_value
def _split_columns(value: Value) -> _Split | None:
    """Return the parts of columns side by side, ``[B, K]``."""
    parts = flat([Part(value=value, offset=0, width=value.width)], apart)
    if not any(is_expanded(part.value) for part in parts):
        return None
    made, columns = folded(Join(dims=(value.width,), dtype=value.dtype, parts=tuple(parts)))
    assert isinstance(made, Join)
    parts = list(made.parts)
    shared = [i for i, part in enumerate(parts) if of_contexts(part.value) is not None]
    rows = [i for i in range(len(parts)) if i not in shared]
    if not rows or not shared:
        return None
    contexts = [of_contexts_part(part) if i in shared else part for i, part in enumerate(parts)]
    dims = value.dims[:-1]
    return _Split(taken(contexts, shared, columns, dims), taken(parts, rows, columns, dims))


def _is_worth(num_read: int, num_outputs: int, num_places: int) -> bool:
    """Return whether to split a layer: by the numbers of contexts that it reads, and what it computes, for a row."""
    num_columns = num_read // num_places
    return num_columns >= FEWEST_COLUMNS and num_columns * num_outputs >= FEWEST_PRODUCTS


@once_per_value
def _split_places(value: Value) -> _Split | None:
    """Return the parts of vectors joined at their last dimension, ``[B, L, K]``."""
    assert isinstance(value, Interleave)
    if not any(is_expanded(part.operand.value) for part in value.parts):
        return None
    made, columns = folded_vectors(value)
    assert isinstance(made, Interleave)
    width = made.dims[-1]
    bounds = [*(part.offset for part in made.parts), width]
    columns = columns or ((0, 0, width, 1),)
    widths = [end - start for start, end in pairwise(bounds)]
    of = [i for i, part in enumerate(made.parts) if of_contexts(part.operand.value) is not None]
    rest = [i for i in range(len(widths)) if i not in of]
    once = [i for i in rest if _is_of_row(made.parts[i], width)]
    each = [i for i in rest if i not in once]
    if not rest or not of:
        return None

    def together(chosen: Sequence[int], join: Callable[[Sequence[int], Sequence[int]], Value]) -> Taken:
        to = list(accumulate((widths[i] for i in chosen), initial=0))
        found = [
            one
            for i, begin in zip(chosen, to, strict=False)
            for one in moved(columns, bounds[i], bounds[i + 1], begin)
        ]
        return Taken(join(chosen, to), tuple(found))

    def vectors(chosen: Sequence[int], to: Sequence[int]) -> Value:
        return _joined(made, [made.parts[i] for i in chosen], to)

    def of_row(chosen: Sequence[int], to: Sequence[int]) -> Value:
        parts = [
            Part(value=made.parts[i].operand.value, offset=made.parts[i].operand.offset, width=widths[i])
            for i in chosen
        ]
        return side_by_side(parts, (to[-1],))

    return _Split(
        together(of, vectors),
        together(once, of_row) if once else None,
        together(each, vectors) if each else None,
    )


def _is_of_row(part: Written, width: int) -> bool:
    """Return whether a part holds the same columns for each place, which follow each other."""
    for size, to, by in zip(part.sizes, part.strides, part.operand.strides, strict=True):
        if size > 1 and by != (0 if to >= width else to):
            return False
    return True


def _joined(joined: Interleave, parts: Sequence[Written], to: Sequence[int]) -> Value:
    """Return some parts of vectors, whose columns begin at ``to``: of contexts if they are expanded."""
    width, dims = joined.dims[-1], (*joined.dims[:-1], to[-1])
    found = []
    for part, begin in zip(parts, to, strict=False):
        source = of_contexts(part.operand.value)
        found.append(
            replace(
                part,
                offset=begin,
                strides=tuple(by // width * to[-1] if by >= width else by for by in part.strides),
                operand=part.operand if source is None else replace(part.operand, value=source),
            )
        )
    (first, *others) = found
    value, space = first.operand.value, first.operand.value.space
    if not others and _is_in_order(first, prod(dims)):
        if first.operand.offset == 0 and value.dims == dims:
            return value
        return View(dims=dims, space=space, dtype=value.dtype, source=value, offset=first.operand.offset)
    return Interleave(dims=dims, space=space, dtype=joined.dtype, at=joined.at, parts=tuple(found))


def _is_in_order(part: Written, width: int) -> bool:
    """Return whether a part is so many numbers that follow each other where they are read."""
    in_order = [axis.stride for axis in contiguous(part.sizes)]
    return prod(part.sizes) == width and all(
        size == 1 or by == expected
        for size, by, expected in zip(part.sizes, part.operand.strides, in_order, strict=True)
    )
