"""Metrics against numbers computed by hand and by brute force.

Shape letters: N number of examples.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.metrics.exact import auc, measure


def _brute_force_auc(scores: list[float], labels: list[float]) -> float:
    clicks = [s for s, y in zip(scores, labels, strict=True) if y == 1]
    others = [s for s, y in zip(scores, labels, strict=True) if y == 0]
    wins = sum((a > b) + 0.5 * (a == b) for a in clicks for b in others)
    return wins / (len(clicks) * len(others))


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        pytest.param([1, 2, 3, 4], [0, 0, 1, 1], 1.0, id="perfect"),
        pytest.param([4, 3, 2, 1], [0, 0, 1, 1], 0.0, id="reversed"),
        pytest.param([5, 5, 5], [0, 1, 1], 0.5, id="all-tied"),
        pytest.param([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75, id="one-pair-wrong"),
        pytest.param([1, 2, 2, 3], [0, 1, 0, 1], 0.875, id="one-pair-tied"),
        pytest.param([1, 2], [1, 1], None, id="clicks-only"),
        pytest.param([1, 2], [0, 0], None, id="no-clicks"),
    ],
)
def test_auc_by_hand(scores: list[float], labels: list[float], expected: float | None) -> None:
    assert auc(np.array(scores, dtype=np.float64), np.array(labels, dtype=np.float64)) == expected


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=60))
def test_auc_against_every_pair(examples: list[tuple[int, bool]]) -> None:
    scores = [s / 4 for s, _ in examples]
    labels = [float(y) for _, y in examples]
    found = auc(np.array(scores), np.array(labels))
    if len(set(labels)) < 2:
        assert found is None
    else:
        assert found == pytest.approx(_brute_force_auc(scores, labels), abs=1e-12)


_WEIGHTED = st.tuples(st.integers(-5, 5), st.booleans(), st.integers(0, 4))


@given(st.lists(_WEIGHTED, min_size=1, max_size=40).filter(lambda found: any(w for *_, w in found)))
def test_a_weight_counts_as_so_many_examples(examples: list[tuple[int, bool, int]]) -> None:
    scores, labels, weights = (np.array(column, dtype=np.float64) for column in zip(*examples, strict=True))
    found = measure(scores, labels, weights)
    times = weights.astype(np.int64)
    expected = measure(np.repeat(scores, times), np.repeat(labels, times))
    assert found.num_rows == len(examples)
    for name in ("loss", "auc", "ne", "calibration"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-12), name


def test_weights_of_pairs() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 20, 200) / 4, (rng.random(200) < 0.4).astype(np.float64)
    weights = rng.random(200)
    pairs = weights[labels == 1][:, None] * weights[labels == 0][None]
    above = scores[labels == 1][:, None] - scores[labels == 0][None]
    expected = (pairs * ((above > 0) + 0.5 * (above == 0))).sum() / pairs.sum()
    assert auc(scores, labels, weights) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -1.0], [1.0, np.nan], [0.0, 0.0]])
def test_wrong_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights: expected one finite number of at least 0 per example"):
        measure(np.array([0.5, 1.5]), np.array([0.0, 1.0]), np.array(weights))


def test_measure_by_hand() -> None:
    probabilities = [0.8, 0.25, 0.5, 0.25]
    labels = [1.0, 0.0, 1.0, 0.0]
    logits = np.array([math.log(p / (1 - p)) for p in probabilities])
    found = measure(logits, np.array(labels))
    loss = -(math.log(0.8) + math.log(0.75) + math.log(0.5) + math.log(0.75)) / 4
    assert found.num_rows == 4
    assert found.loss == pytest.approx(loss)
    assert found.auc == 1.0
    assert found.ne == pytest.approx(loss / math.log(2))  # half of the labels are clicks
    assert found.calibration == pytest.approx(1.8 / 2)


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
def test_predicting_the_mean_has_ne_and_calibration_1(mean: float) -> None:
    labels = np.zeros(1000)
    labels[: round(mean * 1000)] = 1
    found = measure(np.full(1000, math.log(mean / (1 - mean))), labels)
    assert found.ne == pytest.approx(1)
    assert found.calibration == pytest.approx(1)
    assert found.auc == 0.5


def test_labels_of_one_class_have_no_ne_whatever_the_weights() -> None:
    """The sum of the weights and that of the clicks are rounded differently."""
    for seed in range(30):
        generator = np.random.default_rng(seed)
        weights = generator.random(generator.integers(2, 3000))
        found = measure(generator.normal(size=len(weights)), np.ones(len(weights)), weights)
        assert (found.auc, found.ne) == (None, None)


def test_large_logits_do_not_overflow() -> None:
    found = measure(np.array([1e4, -1e4, 1e4]), np.array([1.0, 0.0, 0.0]))
    assert found.loss == pytest.approx(1e4 / 3)


def test_one_class_leaves_numbers_undefined() -> None:
    found = measure(np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    assert (found.auc, found.ne, found.calibration) == (None, None, None)
    assert measure(np.array([0.0]), np.array([1.0])).calibration == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("scores", "labels", "text"),
    [
        pytest.param([], [], "at least one", id="empty"),
        pytest.param([1.0], [1.0, 0.0], "shapes", id="shapes"),
        pytest.param([float("nan")], [1.0], "scores.*not finite", id="nan"),
        pytest.param([1.0], [0.5], "labels", id="label"),
    ],
)
def test_wrong_input(scores: list[float], labels: list[float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        measure(np.array(scores), np.array(labels))
