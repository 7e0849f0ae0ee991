"""What is computed for each ID of a bag before the bags are padded.

Operators take values of IDs as they take those of rows. Where a bag is padded to S places, all that is computed for its
first S IDs becomes a part of the plan that runs for each ID; longer bags cost no more, and shorter ones less.

Shape letters: B rows, N number of IDs, S places, D numbers of an ID.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from export.lower.bags import FromIds, IdsSpace, Length, Rows, Sequence, ToIds, ids_space
from export.lower.values import (
    Called,
    Expand,
    NotLoweredError,
    NumRows,
    Operand,
    Part,
    Value,
    Weight,
    operator,
)
from export.lower.views import cat, expand, flatten, narrow, unsqueeze


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


def rows_at_places(rows: Rows, size: int, *, is_backwards: bool) -> Any:
    """Return the rows of the first IDs of each bag, or of its last ones from the last on, and zeros behind them."""
    key = (size, is_backwards)
    if key not in rows.padded:
        parts = []
        for slot, dim in zip(rows.slots, rows.block_dims, strict=True):
            found: Any = Sequence(
                dims=(size, slot.dim), space=rows.ids.bags, slot=slot, is_backwards=is_backwards
            )
            if rows.ids.is_expanded:
                found = Expand(dims=found.dims, source=found)
            parts.append(narrow(found, 2, 0, dim))
        rows.padded[key] = parts[0] if len(parts) == 1 else cat(parts, 2)
    return rows.padded[key]


def values_at_places(
    values: Value, lengths: Value, size: int, padding: float, *, is_backwards: bool
) -> FromIds:
    """Return what is computed for the first IDs of each bag, in the order of ``rows_at_places``, and a number."""
    space = values.space
    assert isinstance(space, IdsSpace)
    known: dict[Value, Value] = {}
    for value in _of_ids(values):
        if isinstance(value, Rows):
            source = rows_at_places(value, size, is_backwards=is_backwards).settled()
            known[value] = ToIds(dims=value.dims, space=space, source=source)
        else:
            known[value] = _copied(value, known)
    number = Weight(dims=(1,), space=space.rows, numbers=torch.tensor([float(padding)]))
    return FromIds(
        dims=(size, *values.dims), space=space.rows, dtype=values.dtype, source=known[values],
        within=tuple(known.values()), lengths=lengths, padding=number,
    )  # fmt: skip


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
