"""Bags of IDs as sequences: their lengths, their rows padded to one size, and differences of their IDs.

Shape letters: B rows, F features, N number of IDs, S places, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Any

import torch

from export.lower.bags import Differences, IdsSpace, Length, Rows, feature_of
from export.lower.kinds import ElementwiseKind, SequenceOrder
from export.lower.operators.arithmetic import computed
from export.lower.operators.jagged import Flipped, ids_of, rows_at_places, values_at_places
from export.lower.values import Called, NotLoweredError, NumRows, Space, Value, operator
from recsys.models.history import recent_rows


@dataclass(frozen=True, eq=False)
class Lengths(Called):
    """The lengths of a space's bags, ``[F * rows]``, feature by feature."""

    space: Space
    num_features: int

    @property
    def shape(self) -> tuple[NumRows | int, ...]:
        """The size."""
        return (NumRows(self.space, self.num_features),)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.int64

    def settled(self) -> Value:
        """Return those of the only feature."""
        if self.num_features != 1:
            raise NotLoweredError("it computes with the lengths of several features")
        return Length(dims=(), space=self.space, dtype=torch.int64, feature=0)

    def reshape(self, *sizes: Any) -> Lengths:
        """Return the same."""
        if sizes != (NumRows(self.space, self.num_features),):
            raise NotLoweredError("it reshapes lengths")
        return self

    def view(self, *sizes: Any) -> Cuts:
        """Return the lengths by feature."""
        if sizes not in ((self.num_features, NumRows(self.space)), (self.num_features, -1)):
            raise NotLoweredError("it reshapes lengths")
        return Cuts(self.space, 0)

    def __getitem__(self, index: Any) -> Value:
        return Length(dims=(), space=self.space, dtype=torch.int64, feature=feature_of(index, self.space))


@dataclass(frozen=True)
class Cuts(Called):
    """Where the IDs of features begin: the sums of lengths by feature, after some of the calls that make them."""

    space: Space
    stage: int

    def sum(self, dim: int) -> Cuts:
        """Return the sum of each feature."""
        return self._after(0, dim == 1)

    def cumsum(self, dim: int) -> Cuts:
        """Return the sums of the features up to each."""
        return self._after(1, dim == 0)

    def __getitem__(self, index: Any) -> Cuts:
        return self._after(2, index == slice(None, -1))

    def _after(self, stage: int, is_right: bool) -> Cuts:
        if self.stage != stage or not is_right:
            raise NotLoweredError("it computes with sums of lengths")
        return Cuts(self.space, stage + 1)


@dataclass(frozen=True, eq=False)
class Ids(Called):
    """The IDs of a feature, or of all features, ``[N]``."""

    space: Space
    num_features: int
    feature: int | None = None
    #: Whether they are those of contexts, for the rows that share them.
    is_expanded: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.int64

    def size(self, dim: int | None = None) -> NumIds:
        """Return N."""
        if dim not in (0, None):
            raise IndexError(dim)
        return NumIds()

    def settled(self) -> Ids:
        """Return the IDs of one feature."""
        if self.feature is None and self.num_features == 1:
            return Ids(self.space, 1, 0)
        return self


class NumIds:
    """The number of some IDs."""


@dataclass(frozen=True, eq=False)
class Offsets(Called):
    """Where the IDs of bags begin, by their lengths."""

    lengths: Value | Flipped

    def clamp(self, min: Any = None, max: Any = None) -> Offsets:  # noqa: A002
        """Return the same: they lie between 0 and N."""
        if min not in (0, None) or not (isinstance(max, NumIds | None) or _is_num_ids(max)):
            raise NotLoweredError("it bounds offsets")
        return self


@operator("asynchronous_complete_cumsum")
def offsets_of(lengths: Any) -> Offsets:
    """Return offsets."""
    if not isinstance(lengths, (Value, Flipped)):
        raise NotLoweredError("it sums up what are no lengths")
    return Offsets(lengths)


def _is_num_ids(number: Any) -> bool:
    return isinstance(number, NumRows) and isinstance(number.space, IdsSpace)


@operator("tensor_split")
def tensor_split(ids: Any, cuts: Any, dim: int = 0) -> tuple[Ids, ...]:
    """Return the IDs of each feature."""
    if not isinstance(ids, Ids) or cuts != Cuts(ids.space, 3) or dim != 0:
        raise NotLoweredError("it splits by what it computes")
    return tuple(Ids(ids.space, ids.num_features, i) for i in range(ids.num_features))


@dataclass(frozen=True, eq=False)
class PaddedIds(Called):
    """The first S IDs of a bag, and zeros behind them: ``[B, S]``, with one more dimension at ``at``."""

    ids: Ids
    size_: int
    at: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return torch.int64

    def unsqueeze(self, dim: int) -> PaddedIds:
        """Return them with one more dimension."""
        if self.at is not None or dim not in (1, 2, -1):
            raise NotLoweredError("it computes with IDs")
        return PaddedIds(self.ids, self.size_, 2 if dim == -1 else dim)

    def __getitem__(self, index: Any) -> PaddedIds:
        if index in ((slice(None), slice(None), None), (slice(None), None), (slice(None), None, slice(None))):
            return self.unsqueeze(index.index(None))
        raise NotLoweredError("it computes with IDs")

    def sub(self, other: Any) -> Any:
        """Return the differences of all pairs."""
        fits = isinstance(other, PaddedIds) and other.ids is self.ids and other.size_ == self.size_
        if not fits or {self.at, other.at} != {1, 2}:
            raise NotLoweredError("it computes with IDs")
        assert self.ids.feature is not None
        found = Differences(
            dims=(self.size_, self.size_), space=self.ids.space, dtype=torch.int64, feature=self.ids.feature
        )
        return found if self.at == 2 else computed(ElementwiseKind.SCALE, found, -1.0)

    __sub__ = sub


@operator("jagged_to_padded_dense", views=True)
def padded(values: Any, offsets: Several[Any], sizes: Several[int], padding: float = 0.0) -> Any:
    """Return the numbers of the first S IDs of each bag, and a number behind them."""
    (of,), (size,) = offsets, sizes
    lengths = of.lengths if isinstance(of, Offsets) else None
    is_backwards = isinstance(values, Flipped)
    if is_backwards and isinstance(lengths, Flipped):
        values, lengths = values.of, lengths.of
    values = values.settled()
    if not isinstance(lengths, Value) or not isinstance(values, (Value, Ids)):
        raise NotLoweredError("it pads what it computes")
    space = ids_of(lengths)
    if isinstance(values, Ids):
        if padding != 0 or is_backwards:
            raise NotLoweredError("it pads what it computes")
        if (
            space is None
            or space.is_expanded
            or (space.bags, space.feature) != (values.space, values.feature)
        ):
            raise NotLoweredError("it pads bags by the lengths of others")
        return PaddedIds(values, size)
    if space is None or values.space is not space:
        raise NotLoweredError("it pads bags by the lengths of others")
    order = SequenceOrder.BACKWARDS if is_backwards else SequenceOrder.FIRST
    if isinstance(values, Rows) and padding == 0:
        found = rows_at_places(values, size, order)
    else:
        found = values_at_places(values, lengths, size, padding, order)
    return Flipped(found) if is_backwards else found


@operator(recent_rows.__name__, views=True)
def recent(values: Any, offsets: Any, most: int) -> Any:
    """Return the rows of the last IDs of each bag, in their order, and zeros behind them."""
    lengths = offsets.lengths if isinstance(offsets, Offsets) else None
    values = values.settled()
    space = ids_of(lengths) if isinstance(lengths, Value) else None
    if space is None or not isinstance(values, Rows) or values.space is not space:
        raise NotLoweredError("it takes the last rows of what are no bags of IDs")
    return rows_at_places(values, most, SequenceOrder.RECENT)


@operator("jagged_1d_to_dense", "jagged_2d_to_dense", views=True)
def dense(values: Any, offsets: Any, max_sequence_length: int, padding_value: float = 0.0) -> Any:
    """Return the numbers of the first S IDs of each bag, and a number behind them."""
    return padded(values, [offsets], [max_sequence_length], padding_value)
