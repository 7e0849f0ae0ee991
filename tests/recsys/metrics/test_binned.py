"""Binned metrics against the exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from recsys.metrics.binned import BinnedScores, logits_of
from recsys.metrics.exact import measure

Floats = NDArray[np.float64]


def examples(seed: int, num_rows: int, base: float = -3.0) -> tuple[Floats, Floats]:
    """Logits, and labels that follow them."""
    random = np.random.default_rng(seed)
    logits = base + 1.5 * random.standard_normal(num_rows)
    return logits, (random.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float64)


def binned(logits: Floats, labels: Floats, num_parts: int = 1) -> BinnedScores:
    total = BinnedScores()
    for x, y in zip(np.array_split(logits, num_parts), np.array_split(labels, num_parts), strict=True):
        part = BinnedScores()
        part.add(x, y)
        total.merge(part)
    return total


@pytest.mark.parametrize(
    ("seed", "num_rows", "base"), [(0, 20_000, -3.0), (1, 3_000, 0.0), (2, 50_000, -6.0), (3, 500, 2.0)]
)
def test_all_but_auc_are_exact_and_auc_is_within_its_stated_error(
    seed: int, num_rows: int, base: float
) -> None:
    logits, labels = examples(seed, num_rows, base)
    exact, got = measure(logits, labels), binned(logits, labels, num_parts=7).metrics()
    assert got is not None
    assert got.num_rows == exact.num_rows
    for name in ("loss", "ne", "calibration"):
        assert getattr(got, name) == pytest.approx(getattr(exact, name), rel=1e-12), name
    assert got.mean_label == pytest.approx(labels.mean())
    assert got.auc is not None
    assert exact.auc is not None
    assert got.auc_error is not None
    # A float sum of pairs differs in its last digits.
    assert abs(got.auc - exact.auc) <= got.auc_error + 1e-12
    assert got.auc_error < 0.005


def test_the_error_is_exact_where_all_scores_are_one_bins() -> None:
    got = binned(np.asarray([0.001, 0.002]), np.asarray([1.0, 0.0])).metrics()
    assert got is not None
    # The exact AUC is 0: the click scores below the other.
    assert (got.auc, got.auc_error) == (0.5, 0.5)


def test_scores_beyond_the_bins_are_counted_in_the_outer_ones() -> None:
    got = binned(np.asarray([-40.0, 0.0, 40.0]), np.asarray([0.0, 0.0, 1.0])).metrics()
    assert got is not None
    assert (got.auc, got.auc_error, got.num_rows) == (1.0, 0.0, 3)


def test_what_one_class_does_not_define_is_none() -> None:
    assert BinnedScores().metrics() is None
    got = binned(np.asarray([0.3]), np.asarray([0.0])).metrics()
    assert got is not None
    assert (got.auc, got.auc_error, got.ne, got.calibration) == (None, None, None, None)


def test_logits_of_probabilities_are_finite_and_give_them_back() -> None:
    p = np.asarray([0.0, 1e-6, 0.25, 0.5, 0.999, 1.0], dtype=np.float32)
    logits = logits_of(p)
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), p, atol=2e-9)
