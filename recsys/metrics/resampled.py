"""Metrics with bootstrap intervals, of one model and of the difference of two.

Shape letters: G number of groups, N number of rows, U number of units: the groups, or the rows without groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.inputs.columns import LabelColumn
from recsys.metrics.exact import ScoredRows, checked
from recsys.metrics.grouped import coverage, group_metrics
from recsys.metrics.regression import ScoredNumbers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
#: Of the values under resampling, the share between the ends of an interval.
LEVEL = 0.95
_OF_CLICKS = ("auc", "ne", "calibration", "loss")
_OF_NUMBERS = ("rmse", "mae", "loss")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows that models are measured on.

    Attributes:
        labels: ``[N]``, 0 or 1, or numbers.
        weights: ``[N]``, at least 0; None for equal ones. In metrics of groups, rows of weight 0 are left out, and
            others count equally.
        groups: ``[N]``, the group of each row, 0 to G - 1, none of them empty; None without groups.
        items: ``[N]``, the item of each row; None if they are not known.
        top: How many rows of a group count in the metrics of its first rows.
    """

    labels: NDArray[np.float32] | Floats
    weights: NDArray[np.float32] | Floats | None = None
    groups: Ints | None = None
    items: Ints | None = None
    top: int = 10

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Ints) -> Rows:
        """Return some of the rows; groups that have none are gone."""
        return Rows(
            labels=self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
            groups=None if self.groups is None else np.unique(self.groups[rows], return_inverse=True)[1],
            items=None if self.items is None else self.items[rows],
            top=self.top,
        )

    @property
    def num_units(self) -> int:
        """U."""
        return len(self) if self.groups is None else int(self.groups.max()) + 1


class Value(NamedTuple):
    """A metric, or a difference of two: its value, and the ends of its interval.

    ``value`` is None if the metric is not defined, the ends if there was no resampling or it is undefined in one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


class Measured:
    """One model on some rows, whose metrics can be asked for with other factors of its units.

    Args:
        logits: ``[N]``, finite; of numbers the predictions.
        rows: The rows.
        number: The label where it is a number; None for 0 and 1. Numbers have no metrics of groups but coverage.

    Raises:
        ValueError: No rows, shapes that differ, labels other than 0 and 1, or wrong weights.
    """

    def __init__(
        self, logits: NDArray[np.float32] | Floats, rows: Rows, number: LabelColumn | None = None
    ) -> None:
        is_number = number is not None
        x, labels, self._weights = checked(logits, rows.labels, rows.weights, are_numbers=is_number)
        self._rows = ScoredRows(x, labels) if number is None else ScoredNumbers(x, labels, number)
        self._names = _OF_NUMBERS if is_number else _OF_CLICKS
        self._groups = rows.groups
        self._of_groups: Mapping[str, tuple[Floats, Floats]] = {}
        self.coverage: float | None = None
        if rows.groups is not None:
            kept = np.flatnonzero(self._weights)
            units, groups = np.unique(rows.groups[kept], return_inverse=True)
            if not is_number:
                found = group_metrics(x[kept], labels[kept], groups, rows.top)
                self._of_groups = {
                    name: (
                        _placed(values, units, rows.num_units, np.nan),
                        _placed(counts, units, rows.num_units, 0),
                    )
                    for name, (values, counts) in found.items()
                }
            if rows.items is not None:
                self.coverage = coverage(x[kept], groups, rows.items[kept], rows.top)

    def values(self, factors: Floats | None = None) -> dict[str, float | None]:
        """Return all metrics by name; those of groups follow those of rows.

        Args:
            factors: How often each unit counts, ``[U]``; None for once.
        """
        weights = self._weights
        if factors is not None:
            weights = weights * (factors if self._groups is None else factors[self._groups])
        if not weights.any():
            return dict.fromkeys((*self._names, *self._of_groups))
        of_rows = self._rows.metrics(weights)
        return {
            **{name: getattr(of_rows, name) for name in self._names},
            **{
                name: _mean(values, counts if factors is None else counts * factors)
                for name, (values, counts) in self._of_groups.items()
            },
        }


def _placed(numbers: Floats, units: Ints, num_units: int, other: float) -> Floats:
    """Return the numbers of some units as ``[U]``, with another one for all others."""
    placed = np.full(num_units, other, dtype=np.float64)
    placed[units] = numbers
    return placed


def _mean(values: Floats, counts: Floats) -> float | None:
    is_there = ~np.isnan(values)
    total = float(counts[is_there].sum())
    return float(np.dot(values[is_there], counts[is_there])) / total if total > 0 else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Models on the same rows.

    Attributes:
        metrics: Of each model, by metric.
        differences: Of each model but the first, by metric: its value minus the first one's.
    """

    metrics: Sequence[Mapping[str, Value]]
    differences: Sequence[Mapping[str, Value]]


def compare(models: Sequence[Measured], num_units: int, num_resamples: int = 0, seed: int = 0) -> Comparison:
    """Return the metrics of models, and how they differ from the first one's, with intervals.

    Each resample lets every unit count a number of times that is drawn from a Poisson distribution of mean 1, the same
    for all models, so that the interval of a difference is that of pairs.

    Args:
        models: Measured on the same rows.
        num_units: U.
        num_resamples: How many; 0 for no intervals.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    whole = [model.values() for model in models]
    drawn: list[list[dict[str, float | None]]] = [[] for _ in models]
    for _ in range(num_resamples):
        factors = generator.poisson(1.0, num_units).astype(np.float64)
        for model, found in zip(models, drawn, strict=True):
            found.append(model.values(factors))
    metrics, differences = [], []
    for i, values in enumerate(whole):
        metrics.append(
            {name: _value(value, [sample[name] for sample in drawn[i]]) for name, value in values.items()}
        )
        if i:
            differences.append(
                {
                    name: _value(
                        _minus(value, whole[0][name]),
                        [_minus(b[name], a[name]) for a, b in zip(drawn[0], drawn[i], strict=True)],
                    )
                    for name, value in values.items()
                }
            )
    return Comparison(metrics=metrics, differences=differences)


def _minus(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value - other


def _value(value: float | None, drawn: Sequence[float | None]) -> Value:
    known = [one for one in drawn if one is not None]
    if value is None or not known or len(known) < len(drawn):
        return Value(value)
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Value(value, float(low), float(high))
