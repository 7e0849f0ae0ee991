"""Columns that alone nearly decide a label: as a rule, they are known only when the label is.

Shape letters: N number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from recsys.data.examples import Ints
from recsys.data.tables.columns import Columns
from recsys.data.tables.infer.column import Column
from recsys.data.tables.infer.labels import Label
from recsys.metrics.exact import auc

_MOST_ROWS = 20_000
# Rows of each class that each half needs; fewer say little.
_LEAST_OF_CLASS = 10
_NUM_BINS = 64
#: A column with at least this AUC alone is a shadow.
LEAST_AUC = 0.9
# A value whose rows are ones nearly always, and a share of all ones: a purchase beside a click.
_LEAST_PRECISION = 0.95
_LEAST_ROWS = 20
_LEAST_RECALL = 0.05
_MOST_POSITIVE = 0.5


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """How well a column alone tells a label, on rows that it was not learned from.

    Attributes:
        auc: The AUC of the mean label of the rows with the same value.
        precision: The share of ones among the rows whose value promises one.
        recall: The share of all ones that these rows have.
    """

    auc: float
    precision: float = 0.0
    recall: float = 0.0

    @property
    def text(self) -> str:
        """What was found, if the column nearly decides the label; else empty."""
        if self.auc >= LEAST_AUC:
            return f"alone tells it with an AUC of {self.auc:.3f}"
        if self.recall >= _LEAST_RECALL:
            return f"has values with which it is 1 in {self.precision:.0%} of the rows, {self.recall:.0%} of all ones"
        return ""


def shadow_of(column: Column, label: Label, *, is_dense: bool = False) -> Shadow | None:
    """Return how well a column tells a label: learned on half of some rows, measured on the other half.

    Args:
        column: The column.
        label: The label.
        is_dense: Whether near numbers are alike, as in a dense feature.

    Returns:
        None if the halves have too few rows of a class.
    """
    rows = _some_rows(len(label.values))
    labels = label.values[rows].astype(np.float64)
    half = len(rows) // 2
    for part in (labels[:half], labels[half:]):
        if min(part.sum(), len(part) - part.sum()) < _LEAST_OF_CLASS:
            return None
    codes = _bins(column, rows, half) if is_dense else _codes(column, rows)
    size = int(codes.max()) + 1
    counts = np.bincount(codes[:half], minlength=size)
    ones = np.bincount(codes[:half], labels[:half], minlength=size)
    mean = labels[:half].mean()
    scores = ((ones + 2 * mean) / (counts + 2))[codes[half:]]
    found = auc(scores, labels[half:]) or 0.5
    promised = scores >= _LEAST_PRECISION
    measured = labels[half:]
    if mean > _MOST_POSITIVE or promised.sum() < _LEAST_ROWS:
        return Shadow(auc=found)
    precision = float(measured[promised].mean())
    recall = float(measured[promised].sum() / measured.sum())
    return Shadow(auc=found, precision=precision, recall=recall if precision >= _LEAST_PRECISION else 0.0)


@lru_cache(maxsize=1)
def _some_rows(num_rows: int) -> Ints:
    """Return the rows that are looked at, the same for all columns."""
    return np.random.default_rng(0).permutation(num_rows)[:_MOST_ROWS]


def _codes(column: Column, rows: Ints) -> Ints:
    """Return a number per value of some rows, 0 for a missing one; of lists and dates whether there is one."""
    values = column.array.take(pa.array(rows))
    if column.is_list or column.dates is not None:
        return np.asarray(values.is_valid(), dtype=np.int64)
    codes = values.dictionary_encode().indices.fill_null(-1)
    return np.asarray(codes, dtype=np.int64) + 1


def _bins(column: Column, rows: Ints, half: int) -> Ints:
    """Return a number per range of some rows' numbers, 0 for a missing one; the first half makes the ranges."""
    values = column.array.take(pa.array(rows))
    numbers = Columns(pa.table({column.name: values}), str).numbers(column.name)
    known = numbers[:half][~np.isnan(numbers[:half])]
    if not len(known):
        return np.isnan(numbers).astype(np.int64)
    bounds = np.unique(np.quantile(known, np.linspace(0, 1, _NUM_BINS + 1)[1:-1], method="nearest"))
    return np.where(np.isnan(numbers), 0, np.searchsorted(bounds, numbers, side="right") + 1)
