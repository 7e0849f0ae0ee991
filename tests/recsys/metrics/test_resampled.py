"""Intervals by resampling: they are those of many samples of the same population, and of pairs for differences."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.metrics.exact import measure
from recsys.metrics.resampled import Measured, Rows, Value, compare


def _sample(generator: np.random.Generator, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    logits = generator.normal(-1, 1, num_rows)
    return logits, (generator.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float64)


def test_values_are_those_of_measure() -> None:
    generator = np.random.default_rng(0)
    logits, labels = _sample(generator, 500)
    weights = generator.random(500)
    values = Measured(logits, Rows(labels=labels, weights=weights)).values()
    expected = measure(logits, labels, weights)
    assert values == {name: getattr(expected, name) for name in ("auc", "ne", "calibration", "loss")}


def test_intervals_are_as_wide_as_samples_differ() -> None:
    generator = np.random.default_rng(1)
    found = [measure(*_sample(generator, 2_000)) for _ in range(300)]
    logits, labels = _sample(generator, 2_000)
    rows = Rows(labels=labels)
    (metrics,) = compare([Measured(logits, rows)], rows.num_units, num_resamples=300).metrics
    for name in ("auc", "loss", "calibration", "ne"):
        value, low, high = metrics[name]
        assert low is not None
        assert high is not None
        assert value is not None
        assert low < value < high
        low_of, high_of = np.quantile([getattr(one, name) for one in found], [0.025, 0.975])
        assert high - low == pytest.approx(high_of - low_of, rel=0.25)


def test_a_difference_of_pairs_is_surer_than_two_models_apart() -> None:
    generator = np.random.default_rng(2)
    logits, labels = _sample(generator, 1_000)
    rows = Rows(labels=labels, groups=np.arange(1_000) // 5)
    better, worse = Measured(logits, rows), Measured(logits + generator.normal(0, 1.5, 1_000), rows)
    found = compare([worse, better], rows.num_units, num_resamples=200)
    (difference,) = found.differences
    value, low, high = difference["auc"]
    assert value is not None
    assert low is not None
    assert high is not None
    assert 0 < low < value < high
    widths = [metrics["auc"].high - metrics["auc"].low for metrics in found.metrics]  # type: ignore[operator]
    assert high - low < 0.9 * np.hypot(*widths)
    assert difference.keys() == {
        "auc",
        "ne",
        "calibration",
        "loss",
        "gauc",
        "hit_rate",
        "recall",
        "ndcg",
        "mrr",
    }


def test_what_is_undefined_has_no_value_and_what_is_rare_no_interval() -> None:
    rows = Rows(labels=np.zeros(5), groups=np.array([0, 0, 1, 1, 1]))
    (metrics,) = compare([Measured(np.arange(5.0), rows)], rows.num_units, num_resamples=20).metrics
    assert metrics["auc"] == metrics["gauc"] == metrics["ndcg"] == Value(None)
    rows = Rows(labels=np.array([1.0, 0, 0, 0, 0]))
    (metrics,) = compare([Measured(np.arange(5.0), rows)], rows.num_units, num_resamples=20).metrics
    assert metrics["auc"] == Value(0.0)  # some resamples have no click
    assert rows.take(np.array([0, 2])).labels.tolist() == [1, 0]


def test_rows_of_weight_0_are_in_no_group() -> None:
    """The second group has no other rows."""
    generator = np.random.default_rng(4)
    logits, labels = _sample(generator, 60)
    weights = generator.integers(0, 3, 60).astype(np.float64)
    groups, items = (
        np.sort(np.append(generator.integers(6, size=54), np.arange(6))),
        generator.integers(9, size=60),
    )
    weights[groups == 1] = 0
    rows = Rows(labels=labels, weights=weights, groups=groups, items=items, top=2)
    found, kept = Measured(logits, rows), np.flatnonzero(weights)
    expected = Measured(logits[kept], rows.take(kept))
    assert found.values() == pytest.approx(expected.values())
    assert found.coverage == expected.coverage
    factors = np.arange(6.0)
    assert found.values(factors) == pytest.approx(expected.values(np.delete(factors, 1)))


def test_groups_without_rows_are_gone_after_a_choice() -> None:
    rows = Rows(labels=np.ones(4), groups=np.array([0, 1, 2, 2]), items=np.arange(4), top=2)
    part = rows.take(np.array([0, 3]))
    assert part.groups is not None
    assert part.groups.tolist() == [0, 1]
    assert (part.num_units, part.top) == (2, 2)
