"""Metrics on held-out data: loss, AUC, normalized entropy, calibration.

Shape letters: N number of examples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics on one set of examples. None if a metric is not defined for the set.

    Attributes:
        num_rows: N.
        loss: Mean binary cross entropy, in nats.
        auc: The probability that a click scores above a non-click, a tie counting half; None without both.
        ne: Normalized entropy, the loss divided by that of always predicting the set's mean label; below 1 is
            better than that constant; None if all labels are equal.
        calibration: Mean prediction divided by mean label; None without clicks.
    """

    num_rows: int
    loss: float
    auc: float | None
    ne: float | None
    calibration: float | None

    def to_json(self) -> dict[str, float | int | None]:
        """Return plain data."""
        return asdict(self)


def measure(logits: Floats, labels: Floats) -> Metrics:
    """Return all metrics of a model's ``[N]`` logits for ``[N]`` labels of 0 or 1.

    Raises:
        ValueError: No examples, shapes that differ, or labels other than 0 and 1.
    """
    x, y = _checked(logits, labels)
    loss = float(np.mean(np.logaddexp(0.0, x) - x * y))
    mean = float(y.mean())
    base = entropy(mean)
    predicted = float(np.mean(0.5 * (1 + np.tanh(0.5 * x))))
    return Metrics(
        num_rows=len(y),
        loss=loss,
        auc=auc(x, y),
        ne=loss / base if base > 0 else None,
        calibration=predicted / mean if mean > 0 else None,
    )


def entropy(mean: float) -> float:
    """Return the entropy of a label that is 1 with probability ``mean``, in nats; 0 if it is certain."""
    return float(-(mean * np.log(mean) + (1 - mean) * np.log1p(-mean))) if 0 < mean < 1 else 0.0


def auc(scores: Floats, labels: Floats) -> float | None:
    """Return the exact area under the ROC curve (the Mann-Whitney statistic), ties counting half.

    Args:
        scores: ``[N]``, in any monotone scale.
        labels: ``[N]``, 0 or 1.

    Returns:
        None if all labels are equal.

    Raises:
        ValueError: As ``measure``.
    """
    x, y = _checked(scores, labels)
    num_clicks = int(y.sum())
    num_others = len(y) - num_clicks
    if num_clicks == 0 or num_others == 0:
        return None
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1; equal scores share their mean
    rank_sum = float(mean_ranks[inverse][y == 1].sum())
    return (rank_sum - num_clicks * (num_clicks + 1) / 2) / (num_clicks * num_others)


def _checked(scores: Floats, labels: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) == 0:
        raise ValueError(
            f"scores, labels: got shapes {x.shape} and {y.shape}, expected the same [N], at least one example"
        )
    if not np.isfinite(x).all():
        raise ValueError("scores: got a number that is not finite")
    if not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("labels: expected 0 and 1 only")
    return x, y
