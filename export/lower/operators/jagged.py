"""What is computed for each ID of a bag before the bags are padded.

Operators take values of IDs as they take those of rows. Where a bag is padded to S places, all that is computed for its
first S IDs becomes a part of the plan that runs for each ID; longer bags cost no more, and shorter ones less.

Shape letters: B rows, N number of IDs, S places, D numbers of an ID.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from typing import Any

import torch

from export.lower.bags import BagSum, FromIds, IdsSpace, Length, ReadIds, Rows, Sequence, ToIds, ids_space
from export.lower.formed import Operand
from export.lower.kinds import SequenceOrder
from export.lower.operators.views import cat, expand, flatten, narrow, unsqueeze
from export.lower.values import Called, Expand, Join, NotLoweredError, NumRows, Part, Value, Weight, operator


@dataclass(frozen=True, eq=False)
class Flipped(Called):
    """A tensor whose rows, IDs or lengths are in the opposite order."""

    of: Any

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        found: torch.dtype = self.of.dtype
        return found

    def size(self, dim: int | None = None) -> Any:
        """Return the sizes."""
        return self.of.size(dim)


@operator("flip", views=True)
def flip(value: Any, *dims: Any) -> Any:
    """Return a tensor in the opposite order of its rows."""
    if tuple(dims) not in ((0,), ([0],), ((0,),)):
        raise NotLoweredError("it turns the order of columns")
    return value.of if isinstance(value, Flipped) else Flipped(value.settled())


@operator("repeat_interleave", views=True)
def repeat_interleave(value: Any, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Any:
    """Return the numbers of each row for its IDs, or each of a dimension several times."""
    if isinstance(repeats, int) and dim is not None and dim % len(value.shape):
        at = dim % len(value.shape) + 1
        several = expand(
            unsqueeze(value, at), *[repeats if i == at else -1 for i in range(len(value.shape) + 1)]
        )
        return flatten(several, at - 1, at)
    space = ids_of(repeats.settled()) if isinstance(repeats, Called) else None
    value = value.settled()
    if space is None or dim != 0 or not isinstance(value, Value):
        raise NotLoweredError("it repeats rows by what it computes")
    if output_size not in (None, NumRows(space)):
        raise NotLoweredError("it repeats rows by the lengths of others")
    if value.space is not space.rows:
        raise NotLoweredError("it computes with rows and contexts")
    return ToIds(dims=value.dims, space=space, dtype=value.dtype, source=value)


def ids_of(lengths: Any) -> IdsSpace | None:
    """Return the IDs of the bags that have some lengths; None for what are no lengths."""
    is_expanded = isinstance(lengths, Expand)
    of = lengths.source if is_expanded else lengths
    return ids_space(of.space, of.feature, is_expanded) if isinstance(of, Length) else None


def rows_at_places(rows: Rows, size: int, order: SequenceOrder) -> Any:
    """Return the rows of some IDs of each bag, and zeros behind them."""
    key = (size, order)
    if key not in rows.padded:
        parts = []
        for slot, dim in zip(rows.slots, rows.block_dims, strict=True):
            found: Any = Sequence(
                dims=(size, slot.dim), space=rows.ids.bags, slot=slot, order=order,
                computed=rows.computed,
            )  # fmt: skip
            if rows.ids.is_expanded:
                found = Expand(dims=found.dims, source=found)
            parts.append(narrow(found, 2, 0, dim))
        rows.padded[key] = parts[0] if len(parts) == 1 else cat(parts, 2)
    return rows.padded[key]


def values_at_places(
    values: Value, lengths: Value, size: int, padding: float, order: SequenceOrder
) -> FromIds:
    """Return what is computed for the first IDs of each bag, in the order of ``rows_at_places``, and a number."""

    def at_place(rows: Rows) -> list[Value]:
        source = rows_at_places(rows, size, order).settled()
        return [ToIds(dims=rows.dims, space=rows.space, source=source)]

    within, source = _within(values, at_place)
    return FromIds(
        dims=(size, *values.dims), space=_ids(values).rows, dtype=values.dtype, source=source, within=within,
        padding=_number(padding, _ids(values)), lengths=lengths,
    )  # fmt: skip


@operator("segment_reduce", views=True)
def sums_of_bags(data: Any, reduce: str, *, lengths: Any = None, axis: int = 0, **options: Any) -> Value:
    """Return the sums of what is computed for the IDs of each bag."""
    values, own = data.settled(), lengths.settled() if isinstance(lengths, Called) else None
    others = {key: one for key, one in options.items() if one is not None and key != "unsafe"}
    if (
        reduce != "sum"
        or axis != 0
        or others.pop("initial", 0) != 0
        or others
        or not isinstance(values, Value)
    ):
        raise NotLoweredError("it reduces bags to something else than their sums")
    space = ids_of(own)
    if space is None or values.space is not space:
        raise NotLoweredError("it sums up bags by the lengths of others")
    within, source = _within(values, _rows_of_ids)
    is_expanded = space.is_expanded
    if is_expanded:
        # All rows that share a context have its sums.
        if any(isinstance(one, ToIds) for one in within):
            raise NotLoweredError("it sums up bags of contexts with numbers of the rows that share them")
        space = ids_space(space.bags, space.feature, False)
        for one in within:
            if not isinstance(one, Weight):
                one.space = space
    found = BagSum(
        dims=values.dims, space=space.bags, dtype=values.dtype, source=source, within=within,
        padding=_number(0.0, space), feature=space.feature,
    )  # fmt: skip
    return Expand(dims=found.dims, dtype=found.dtype, source=found) if is_expanded else found


def _rows_of_ids(rows: Rows) -> list[Value]:
    """Return the rows of IDs, behind what they are made of."""
    if rows.computed is not None:
        raise NotLoweredError("it sums up bags of IDs that it computes")
    stored = [ReadIds(dims=(slot.dim,), space=rows.space, slot=slot) for slot in rows.slots]
    parts = tuple(
        Part(value=one, offset=0, width=dim) for one, dim in zip(stored, rows.block_dims, strict=True)
    )
    if len(parts) == 1 and parts[0].width == stored[0].width:
        return [*stored]
    return [*stored, Join(dims=rows.dims, space=rows.space, parts=parts)]


def _ids(value: Value) -> IdsSpace:
    assert isinstance(value.space, IdsSpace)
    return value.space


def _number(number: float, space: IdsSpace) -> Weight:
    return Weight(dims=(1,), space=space.rows, numbers=torch.tensor([float(number)]))


def _within(values: Value, rows_as: Callable[[Rows], Several[Value]]) -> tuple[tuple[Value, ...], Value]:
    """Return copies of all that is computed for each ID, and of the values, with rows as something else."""
    known: dict[Value, Value] = {}
    within: list[Value] = []
    for value in _of_ids(values):
        made = rows_as(value) if isinstance(value, Rows) else [_copied(value, known)]
        known[value] = made[-1]
        within += made
    return tuple(within), known[values]


def _of_ids(value: Value) -> list[Value]:
    """Return a value and all that it is computed of for each ID, in order."""
    found: set[Value] = set()
    left = [value]
    while left:
        one = left.pop()
        if one not in found and one.space is value.space:
            found.add(one)
            left += one.sources
    return sorted(found, key=lambda one: one.number)


def _copied(value: Value, known: Mapping[Value, Value]) -> Value:
    """Return a value computed of others. Weights stay the same."""

    def of(one: Any) -> Any:
        if isinstance(one, Value):
            return known.get(one, one)
        if isinstance(one, (Part, Operand)):
            return replace(one, value=known.get(one.value, one.value))
        return type(one)(map(of, one)) if isinstance(one, (list, tuple)) else one

    if isinstance(value, Weight):
        return value
    made = copy.copy(value)
    vars(made).update({name: of(one) for name, one in vars(value).items()})
    return made
