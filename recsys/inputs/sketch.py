"""A sketch of a model's training data, by which servers tell whether requests are still like it.

For each dense column it has deciles and the share of missing numbers, for each feature how long lists are and which
values are frequent; a few kilobytes in all, in checkpoints and in the manifests of artifacts.

Shape letters: N number of values, K number of bins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys.base.hashing import hash_texts
from recsys.base.json_checks import count, json_field, mapping, wrong
from recsys.inputs.example_rows import DATA_SKETCH, ExampleRows

# Bins of equal shares; the usual number for the population stability index.
_NUM_QUANTILES = 10
#: Lengths by powers of two: 0, 1, 2, 3 to 4, 5 to 8, ..., and all above 2**14.
NUM_LENGTH_BINS = 17
# Values of a feature that are at least so frequent, and so many at most: others are too few to compare.
_LEAST_SHARE = 0.005
_MOST_VALUES = 32
#: Columns and features: others have no sketch.
MAX_INPUTS = 2048
# The share of a bin that is empty on one side; the index would be infinite.
_FLOOR = 1e-4
_Counts = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DenseSketch:
    """Numbers of a column.

    Attributes:
        edges: ``[K - 1]``, the deciles, ascending: a number belongs to the first bin whose edge it is below, or to the
            last bin.
        shares: ``[K]``, of the numbers that are there.
        missing: The share of rows without a number.
    """

    edges: tuple[float, ...]
    shares: tuple[float, ...]
    missing: float

    def count(self, numbers: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """Return how many of ``[N]`` numbers are in each bin; NaN is in none."""
        there = numbers[~np.isnan(numbers)]
        bins = np.searchsorted(np.asarray(self.edges), there, side="right")
        return np.bincount(bins, minlength=len(self.shares))


@dataclass(frozen=True, kw_only=True)
class SparseSketch:
    """Lists of a feature.

    Attributes:
        lengths: ``[NUM_LENGTH_BINS]``, the share of rows by length: 0, 1, 2, 3 to 4, 5 to 8, ..., above 16384.
        values: Frequent IDs, ascending; of texts the hash.
        shares: The share of each among all values of the feature; the rest is that of all others.
    """

    lengths: tuple[float, ...]
    values: tuple[int, ...]
    shares: tuple[float, ...]

    def count(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of ``[N]`` IDs are each of the frequent ones, and last, how many are none of them."""
        known = np.asarray(self.values, dtype=np.int64)
        places = np.minimum(np.searchsorted(known, values), max(len(known) - 1, 0))
        found = known[places] == values if len(known) else np.zeros(len(values), dtype=np.bool_)
        return np.bincount(np.where(found, places, len(known)), minlength=len(known) + 1)

    @property
    def all_shares(self) -> tuple[float, ...]:
        """``shares``, and last that of all other values."""
        return (*self.shares, max(0.0, 1.0 - sum(self.shares)))


@dataclass(frozen=True, kw_only=True)
class DataSketch:
    """See the module.

    Attributes:
        num_rows: The rows that it was made of.
        dense: By column.
        sparse: By feature.
    """

    num_rows: int
    dense: Mapping[str, DenseSketch]
    sparse: Mapping[str, SparseSketch]

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {
            "num_rows": self.num_rows,
            "dense": {
                name: {"edges": list(one.edges), "shares": list(one.shares), "missing": one.missing}
                for name, one in self.dense.items()
            },
            "sparse": {
                name: {"lengths": list(one.lengths), "values": list(one.values), "shares": list(one.shares)}
                for name, one in self.sparse.items()
            },
        }

    @classmethod
    def from_json(cls, data: Any, at: str = DATA_SKETCH) -> DataSketch:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            ManifestError: A field is wrong; the message names it.
        """
        dense, sparse = mapping(data, "dense", at), mapping(data, "sparse", at)
        if len(dense) + len(sparse) > MAX_INPUTS:
            raise wrong(at, "dense", len(dense) + len(sparse), f"at most {MAX_INPUTS} inputs")
        return cls(
            num_rows=count(data, "num_rows", at),
            dense={name: _dense_of_json(one, f"{at}.dense.{name}") for name, one in dense.items()},
            sparse={name: _sparse_of_json(one, f"{at}.sparse.{name}") for name, one in sparse.items()},
        )


def sketch_of(rows: ExampleRows) -> DataSketch:
    """Return the sketch of rows as clients send them."""
    dense = {
        name: _dense_of(
            np.asarray([np.nan if value is None else value for value in column], dtype=np.float64)
        )
        for name, column in rows.dense.items()
    }
    sparse = {name: _sparse_of(bags) for name, bags in rows.sparse.items()}
    return DataSketch(
        num_rows=rows.num_rows,
        dense=dict(list(dense.items())[:MAX_INPUTS]),
        sparse=dict(list(sparse.items())[: max(0, MAX_INPUTS - len(dense))]),
    )


def length_bins(lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the bin of each of ``[N]`` lengths."""
    bins = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64) + 1
    return np.where(lengths <= 0, 0, np.minimum(bins, NUM_LENGTH_BINS - 1))


def stability_index(expected: Sequence[float], counts: _Counts) -> float:
    """Return the population stability index, the sum over bins of ``(got - expected) * ln(got / expected)``.

    Below 0.1 the two are alike, from 0.25 on they differ much, as the index is usually read.

    Args:
        expected: ``[K]`` shares.
        counts: ``[K]``, at least one above 0. A share below 0.0001 counts as so much.
    """
    p = np.maximum(np.asarray(expected, dtype=np.float64), _FLOOR)
    q = np.maximum(np.asarray(counts, dtype=np.float64) / np.sum(counts), _FLOOR)
    return float(np.sum((q - p) * np.log(q / p)))


def data_sketch_of(model: object) -> DataSketch | None:
    """Return the sketch that a model holds; None without any."""
    found = getattr(model, DATA_SKETCH, None)
    return found if isinstance(found, DataSketch) else None


def hold_data_sketch(model: object, data: Any) -> None:
    """Let a model hold the sketch that a checkpoint has, in the format of ``to_json``; nothing for None.

    Raises:
        ManifestError: It is damaged.
    """
    if data is not None:
        setattr(model, DATA_SKETCH, DataSketch.from_json(data))


def _dense_of(numbers: NDArray[np.float64]) -> DenseSketch:
    there = numbers[np.isfinite(numbers)]
    missing = round(1 - len(there) / len(numbers), 6)
    if not len(there):
        return DenseSketch(edges=(), shares=(1.0,), missing=missing)
    at = np.arange(1, _NUM_QUANTILES) / _NUM_QUANTILES
    # Requests have float32 numbers, so an edge must be one too.
    edges = np.unique(np.quantile(there, at, method="inverted_cdf").astype(np.float32)).astype(np.float64)
    # The least number as an edge would make an empty first bin.
    edges = edges[edges > there.min()]
    shares = np.bincount(np.searchsorted(edges, there, side="right"), minlength=len(edges) + 1) / len(there)
    return DenseSketch(edges=tuple(edges.tolist()), shares=_rounded(shares), missing=missing)


def _sparse_of(bags: Sequence[list[int] | list[str]]) -> SparseSketch:
    lengths = np.asarray([len(bag) for bag in bags], dtype=np.int64)
    values = ids_of(bags)
    found, counts = np.unique(values, return_counts=True)
    shares = counts / max(len(values), 1)
    most = np.argsort(-shares, kind="stable")[:_MOST_VALUES]
    kept = np.sort(most[shares[most] >= _LEAST_SHARE])
    return SparseSketch(
        lengths=_rounded(np.bincount(length_bins(lengths), minlength=NUM_LENGTH_BINS) / len(lengths)),
        values=tuple(found[kept].tolist()),
        shares=_rounded(shares[kept]),
    )


def ids_of(bags: Sequence[list[int] | list[str]]) -> NDArray[np.int64]:
    """Return all values of lists as IDs: texts hashed."""
    values = [value for bag in bags for value in bag]
    if values and isinstance(values[0], str):
        return hash_texts([str(value).encode() for value in values])
    return np.asarray(values, dtype=np.int64)


def _rounded(shares: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(share, 6) for share in shares.tolist())


def _dense_of_json(data: Any, at: str) -> DenseSketch:
    edges = _numbers(data, "edges", at, None)
    if any(a >= b for a, b in pairwise(edges)) or len(edges) >= 2 * _NUM_QUANTILES:
        raise wrong(at, "edges", edges, "some ascending numbers")
    missing = json_field(data, "missing", at)
    if not _is_share(missing):
        raise wrong(at, "missing", missing, "a number from 0 to 1")
    return DenseSketch(
        edges=edges, shares=_shares(data, "shares", at, len(edges) + 1), missing=float(missing)
    )


def _sparse_of_json(data: Any, at: str) -> SparseSketch:
    values = json_field(data, "values", at)
    is_right = isinstance(values, list) and all(type(v) is int and -(2**63) <= v < 2**63 for v in values)
    if not is_right or any(a >= b for a, b in pairwise(values)) or len(values) > 8 * _MOST_VALUES:
        raise wrong(at, "values", values, "some ascending int64 numbers")
    return SparseSketch(
        lengths=_shares(data, "lengths", at, NUM_LENGTH_BINS),
        values=tuple(values),
        shares=_shares(data, "shares", at, len(values)),
    )


def _shares(data: Any, key: str, at: str, length: int) -> tuple[float, ...]:
    shares = _numbers(data, key, at, length)
    if not all(map(_is_share, shares)):
        raise wrong(at, key, shares, "numbers from 0 to 1")
    return shares


def _numbers(data: Any, key: str, at: str, length: int | None) -> tuple[float, ...]:
    numbers = json_field(data, key, at)
    is_right = isinstance(numbers, list) and all(
        type(number) in (int, float) and math.isfinite(number) for number in numbers
    )
    if not is_right or length not in (None, len(numbers)):
        raise wrong(at, key, numbers, "finite numbers" if length is None else f"{length} finite numbers")
    return tuple(map(float, numbers))


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1
