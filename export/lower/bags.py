"""Values of bags: what lookups pool, their lengths, the rows of their IDs, and what is computed for each ID.

Shape letters: B rows, N number of IDs, S places, D embedding dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import fx

from export.lower.kinds import SequenceOrder
from export.lower.values import (
    Called,
    NotLoweredError,
    NumRows,
    OfOne,
    Space,
    Value,
)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Columns of a lookup: a feature in the stored rows of a table.

    Attributes:
        offset: Where the rows begin, in bytes.
        num_rows: Their number.
        type_code: FBGEMM's code for their type.
        dim: The columns, padded as the rows are.
        column: Where they begin in the lookup's output.
        modulus: IDs are taken modulo this number, mixed before if it is negative; 0 leaves them as they are.
        last_id: IDs above it, and negative ones, read this row; -1 for none.
        feature: The position of the feature among those of the batch.
    """

    offset: int
    num_rows: int
    type_code: int
    dim: int
    column: int
    modulus: int
    last_id: int
    feature: int


@dataclass(frozen=True, kw_only=True)
class ComputedIds:
    """IDs that the model computes: nodes of the graph, as those of a batch.

    Attributes:
        lengths: ``[num_features * B]``.
        values: ``[N]``.
        weights: ``[N]``; None if the IDs have none.
    """

    lengths: fx.Node
    values: fx.Node
    weights: fx.Node | None
    num_features: int

    @property
    def nodes(self) -> list[fx.Node]:
        """Those that are no inputs of the graph."""
        nodes = [self.lengths, self.values, *([] if self.weights is None else [self.weights])]
        return [node for node in nodes if node.op != "placeholder"]


@dataclass(eq=False, kw_only=True)
class Lookup(Value):
    """Pooled rows of tables, side by side.

    Attributes:
        slots: What is looked up.
        pooling: FBGEMM's code.
        is_weighted: Whether each ID comes with a weight.
        computed: The IDs, if they are not the request's.
    """

    slots: tuple[Slot, ...]
    pooling: int
    is_weighted: bool
    computed: ComputedIds | None = None


@dataclass(frozen=True)
class IdsSpace(Space):
    """The IDs of a feature's bags.

    Attributes:
        bags: The space of the bags.
        feature: Its position.
        is_expanded: Whether the bags are those of contexts, each taken by all rows that share it.
    """

    bags: Space
    feature: int
    is_expanded: bool

    @property
    def rows(self) -> Space:
        """The space of what is made of the bags."""
        return Space.ROWS if self.is_expanded else self.bags


@cache
def ids_space(bags: Space, feature: int, is_expanded: bool) -> IdsSpace:
    """Return the space of a feature's IDs."""
    return IdsSpace("ids", bags, feature, is_expanded)


@dataclass(frozen=True)
class FlatSpace(Space):
    """IDs side by side, whatever bags they are of: a row for each.

    Attributes:
        ids: ``[N]``.
    """

    ids: fx.Node


@dataclass(eq=False, kw_only=True)
class Sequence(Value):
    """The rows of some S of a bag's IDs, ``[S, D]`` as they are stored, and zeros behind them."""

    slot: Slot
    order: SequenceOrder = SequenceOrder.FIRST
    computed: ComputedIds | None = None


@dataclass(eq=False, kw_only=True)
class Length(Value):
    """The number of a bag's IDs."""

    feature: int


def feature_of(index: Any, space: Space) -> int:
    """Return of which feature a slice of lengths, feature by feature, takes all.

    Raises:
        NotLoweredError: Of none, or of several.
    """
    begin = index.start if isinstance(index, slice) else None
    feature = begin.times if isinstance(begin, NumRows) else 0
    is_whole = isinstance(index, slice) and index.stop == NumRows(space, feature + 1) and index.step is None
    if not is_whole or begin not in (None, 0, NumRows(space, feature)):
        raise NotLoweredError("it takes some lengths")
    return feature


@dataclass(frozen=True, eq=False)
class SeveralLengths(Called):
    """The lengths of features that the model has put one behind the other."""

    parts: tuple[Length, ...]

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """The size."""
        return (NumRows(self.parts[0].space, len(self.parts)),)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.int64

    def __getitem__(self, index: Any) -> Length:
        feature = feature_of(index, self.parts[0].space)
        if feature >= len(self.parts):
            raise NotLoweredError("it takes some lengths")
        return self.parts[feature]


@dataclass(eq=False, kw_only=True)
class Differences(Value):
    """ID i less ID j of a bag's first S IDs, ``[S, S]``; those that are missing are 0."""

    feature: int


@dataclass(eq=False, kw_only=True)
class Rows(Value):
    """Rows of tables for the IDs of a feature, ``[N, D]``.

    Attributes:
        slots: The columns of the rows: one for each block of them.
        block_dims: Of each block, without padding.
        flat: The same as rows of a space of their own, which torch reads.
        computed: The IDs, if they are not the request's.
        padded: By the number of places and the order, the rows at the places of bags.
    """

    slots: tuple[Slot, ...]
    block_dims: tuple[int, ...]
    flat: Value | None
    computed: ComputedIds | None
    padded: dict[tuple[int, SequenceOrder], Any] = field(default_factory=dict, init=False)

    @property
    def ids(self) -> IdsSpace:
        """The space of the IDs."""
        assert isinstance(self.space, IdsSpace)
        return self.space

    def expanded(self) -> Rows:
        """Return the rows of contexts for the rows that share them."""
        return replace(self, space=ids_space(self.ids.bags, self.ids.feature, True), flat=None)


@dataclass(eq=False, kw_only=True)
class ToIds(OfOne):
    """For each ID the numbers of its row, or of its place in the row if they are those of S places."""


@dataclass(eq=False, kw_only=True)
class ReadIds(Value):
    """The stored row of each ID."""

    slot: Slot


@dataclass(eq=False, kw_only=True)
class OfIds(OfOne):
    """What is made of numbers that are computed for each ID.

    Attributes:
        source: The numbers.
        within: All that is computed for an ID, for this value alone, in order.
        padding: What it is where there is no ID.
    """

    within: tuple[Value, ...]
    padding: Value

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [*super().sources, self.padding]


@dataclass(eq=False, kw_only=True)
class FromIds(OfIds):
    """Those of the first S IDs of each bag, side by side.

    Attributes:
        lengths: Those of the bags.
    """

    lengths: Value

    @property
    def sources(self) -> list[Value]:
        """The values that it is computed of."""
        return [*super().sources, self.lengths]


@dataclass(eq=False, kw_only=True)
class BagSum(OfIds):
    """Their sum over each bag.

    Attributes:
        feature: The position of the bags' feature.
    """

    feature: int


def computed_ids(value: Value) -> ComputedIds | None:
    """Return the IDs that a value looks up, if they are not the request's."""
    return value.computed if isinstance(value, (Lookup, Sequence)) else None
