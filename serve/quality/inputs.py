"""What is counted of a model's inputs, and how it differs from the training data.

Shape letters: B rows of a request, N number of IDs of one sparse input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.inputs.signature import IdPolicy, Signature, SparseInput
from recsys.inputs.sketch import (
    NUM_LENGTH_BINS,
    DataSketch,
    DenseSketch,
    SparseSketch,
    length_bins,
    stability_index,
)
from serve.engine.answered import Columns

#: Columns and features of a model that are watched: the first ones.
MAX_INPUTS = 256
#: Fewer values give an index that is noise.
MIN_VALUES = 200
_Ints = NDArray[np.int64]
NumOwned = Callable[[str, _Ints], int | None]


def _not_known(table: str, ids: _Ints) -> int | None:
    del table, ids
    return None


class InputDrift(NamedTuple):
    """One column or feature over a window.

    Attributes:
        name: the column or the feature.
        missing: share of rows without a number, or with an empty list.
        unknown: share of IDs without a row of their own; None where every ID has one, or it is not known.
        indices: the population stability index of its ``numbers``, or of its ``lengths`` and ``values``.
    """

    name: str
    missing: float
    unknown: float | None
    indices: Mapping[str, float]


class Counts:
    """Counts of all inputs in one vector, with the rows first."""

    __slots__ = ("numbers",)

    def __init__(self, size: int) -> None:
        self.numbers: _Ints = np.zeros(size, dtype=np.int64)

    def merge(self, other: Counts) -> None:
        """Add others."""
        self.numbers += other.numbers


@dataclass(frozen=True, slots=True)
class _Column:
    """A dense column: rows, rows without a number, numbers by bin."""

    name: str
    place: int
    at: int
    sketch: DenseSketch | None

    @property
    def size(self) -> int:
        return 2 + (0 if self.sketch is None else len(self.sketch.shares))

    def add(self, numbers: _Ints, column: NDArray[np.float32]) -> None:
        missing = np.isnan(column)
        numbers[self.at] += len(column)
        numbers[self.at + 1] += int(missing.sum())
        if self.sketch is not None:
            numbers[self.at + 2 : self.at + self.size] += self.sketch.count(column)

    def drift(self, numbers: _Ints) -> InputDrift | None:
        num_rows, num_missing = numbers[self.at : self.at + 2].tolist()
        if not num_rows:
            return None
        indices = {}
        if self.sketch is not None and num_rows - num_missing >= MIN_VALUES:
            found = numbers[self.at + 2 : self.at + self.size]
            indices["numbers"] = stability_index(self.sketch.shares, found)
        return InputDrift(self.name, num_missing / num_rows, None, indices)


@dataclass(frozen=True, slots=True)
class _Feature:
    """A sparse input: rows, rows without an ID, IDs that may be unknown, unknown ones, rows by length, frequent IDs."""

    name: str
    at: int
    input: SparseInput
    sketch: SparseSketch | None

    @property
    def size(self) -> int:
        return 4 + (0 if self.sketch is None else NUM_LENGTH_BINS + len(self.sketch.values) + 1)

    @property
    def row_limit(self) -> int | None:
        """IDs below it, from 0, have rows of their own; None where no bound says so."""
        # A hashed text is in no table by itself.
        if self.input.strings:
            return None
        tables = [t for t in self.input.tables if t.id_policy in (IdPolicy.HASH, IdPolicy.ZERO)]
        return min((table.num_embeddings for table in tables), default=None)

    def add(self, numbers: _Ints, lengths: NDArray[np.int32], ids: _Ints, owned: NumOwned) -> None:
        numbers[self.at] += len(lengths)
        numbers[self.at + 1] += int((lengths == 0).sum())
        num_unknown = self._num_unknown(ids, owned)
        if num_unknown is not None:
            numbers[self.at + 2] += len(ids)
            numbers[self.at + 3] += num_unknown
        if self.sketch is not None:
            middle = self.at + 4 + NUM_LENGTH_BINS
            bins = length_bins(lengths)
            numbers[self.at + 4 : middle] += np.bincount(bins, minlength=NUM_LENGTH_BINS)
            numbers[middle : self.at + self.size] += self.sketch.count(ids)

    def _num_unknown(self, ids: _Ints, owned: NumOwned) -> int | None:
        """Return how many IDs have no row of their own; None where all have one, or it is not known."""
        mapped = next((t.name for t in self.input.tables if t.id_policy is IdPolicy.MAPPED), None)
        if mapped is not None:
            num_owned = owned(mapped, ids)
            return None if num_owned is None else len(ids) - num_owned
        limit = self.row_limit
        return None if limit is None else int(((ids < 0) | (ids >= limit)).sum())

    def drift(self, numbers: _Ints) -> InputDrift | None:
        num_rows, num_empty, num_ids, num_unknown = numbers[self.at : self.at + 4].tolist()
        if not num_rows:
            return None
        indices = {}
        if self.sketch is not None:
            middle = self.at + 4 + NUM_LENGTH_BINS
            if num_rows >= MIN_VALUES:
                indices["lengths"] = stability_index(self.sketch.lengths, numbers[self.at + 4 : middle])
            found = numbers[middle : self.at + self.size]
            if found.sum() >= MIN_VALUES and self.sketch.values:
                indices["values"] = stability_index(self.sketch.all_shares, found)
        unknown = num_unknown / num_ids if num_ids else None
        return InputDrift(self.name, num_empty / num_rows, unknown, indices)


class InputCounter:
    """Counts requests to one version of a model.

    Args:
        signature: its inputs.
        sketch: the training data; None if it is not known.
    """

    def __init__(self, signature: Signature, sketch: DataSketch | None) -> None:
        dense, sparse = ({}, {}) if sketch is None else (sketch.dense, sketch.sparse)
        self._columns: list[tuple[int, list[_Column]]] = []
        self._features: list[_Feature] = []
        at, num_inputs = 1, 0
        for one in signature.dense:
            names = one.columns or tuple(f"{one.name}[{i}]" for i in range(one.width))
            columns: list[_Column] = []
            for place, name in enumerate(names[: MAX_INPUTS - num_inputs]):
                columns.append(_Column(name, place, at, dense.get(name)))
                at += columns[-1].size
            num_inputs += len(columns)
            self._columns.append((one.width, columns))
        for feature in signature.sparse[: MAX_INPUTS - num_inputs]:
            watched = _Feature(feature.name, at, feature, sparse.get(feature.name))
            self._features.append(watched)
            at += watched.size
        self._size = at

    def empty(self) -> Counts:
        """Return counts of no request."""
        return Counts(self._size)

    def add(self, counts: Counts, requests: Columns, owned: NumOwned = _not_known) -> None:
        """Count requests. An input that all rows of a request share counts as one row.

        Args:
            counts: what is added to.
            requests: the requests, with their inputs.
            owned: returns how many raw IDs own a row of a managed table, by the table's name; None if not known.
        """
        numbers = counts.numbers
        numbers[0] += int(requests.requests.num_rows.sum())
        for (width, columns), dense in zip(self._columns, requests.dense, strict=True):
            rows = dense.values.reshape(-1, width)
            for column in columns:
                column.add(numbers, rows[:, column.place])
        # Features that are not watched are the last ones.
        for feature, sparse in zip(self._features, requests.sparse, strict=False):
            lengths = np.diff(sparse.offsets)
            feature.add(numbers, lengths[sparse.has] if sparse.has.size else lengths, sparse.values, owned)

    def drift(self, counts: Counts) -> list[InputDrift]:
        """Return how each input differs; inputs without a row are left out."""
        inputs: list[_Column | _Feature] = [*self._features]
        inputs[:0] = [column for _, columns in self._columns for column in columns]
        found = [one.drift(counts.numbers) for one in inputs]
        return [drift for drift in found if drift is not None]
