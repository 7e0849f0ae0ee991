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

    Examples with weights count by them in every mean, and pairs of examples by the product of theirs.

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

    def one_class_text(self, label: str) -> str:
        """Return why there is no AUC, where a label is the same in all rows; else empty."""
        is_positive = self.calibration is not None
        return one_class_text(label, self.num_rows, is_positive=is_positive) if self.auc is None else ""


def one_class_text(label: str, num_rows: int, *, is_positive: bool) -> str:
    """Return why a label that is the same in all rows has no AUC."""
    return (
        f"label {label!r}: it is {int(is_positive)} in all {num_rows:,} rows that were measured, so that AUC and NE "
        "are undefined; more rows may have both (a schema's held_out)"
    )


def measure(logits: Floats, labels: Floats, weights: Floats | None = None) -> Metrics:
    """Return all metrics of a model's ``[N]`` logits for ``[N]`` labels of 0 or 1.

    Args:
        logits: ``[N]``.
        labels: ``[N]``.
        weights: ``[N]``, at least 0; None for equal ones.

    Raises:
        ValueError: No examples, shapes that differ, labels other than 0 and 1, or weights that are below 0, not
            finite, or all 0.
    """
    x, y, w = checked(logits, labels, weights)
    return ScoredRows(x, y).metrics(w)


class ScoredRows:
    """Logits and labels, whose metrics can be asked for under several weights.

    Args:
        logits: ``[N]``, finite.
        labels: ``[N]``, in 0 to 1.
    """

    def __init__(self, logits: NDArray[np.float64], labels: NDArray[np.float64]) -> None:
        self._labels = labels
        self._losses = np.logaddexp(0.0, logits) - logits * labels
        self._predicted = 0.5 * (1 + np.tanh(0.5 * logits))
        self._places = _places(logits)

    def metrics(self, weights: NDArray[np.float64]) -> Metrics:
        """Return all metrics; ``weights`` are not checked, and their sum is above 0."""
        total = float(weights.sum())
        loss = float(np.dot(self._losses, weights)) / total
        clicks, others = float(np.dot(self._labels, weights)), float(np.dot(1 - self._labels, weights))
        # Their sum differs from the total by rounding: labels that are all 1 would have a mean below 1.
        base = entropy(clicks / (clicks + others))
        return Metrics(
            num_rows=len(self._labels),
            loss=loss,
            auc=_auc(self._places, self._labels, weights),
            ne=loss / base if base > 0 else None,
            calibration=float(np.dot(self._predicted, weights)) / clicks if clicks > 0 else None,
        )


def entropy(mean: float) -> float:
    """Return the entropy of a label that is 1 with probability ``mean``, in nats; 0 if it is certain."""
    return float(-(mean * np.log(mean) + (1 - mean) * np.log1p(-mean))) if 0 < mean < 1 else 0.0


def auc(scores: Floats, labels: Floats, weights: Floats | None = None) -> float | None:
    """Return the exact area under the ROC curve (the Mann-Whitney statistic), ties counting half.

    Args:
        scores: ``[N]``, in any monotone scale.
        labels: ``[N]``, 0 or 1.
        weights: ``[N]``, at least 0; None for equal ones.

    Returns:
        None if all labels are equal, of the examples that have a weight.

    Raises:
        ValueError: As ``measure``.
    """
    return weighted_auc(*checked(scores, labels, weights))


def weighted_auc(x: NDArray[np.float64], y: NDArray[np.float64], w: NDArray[np.float64]) -> float | None:
    """Return ``auc`` of scores, labels in 0 to 1 and weights that are not checked, ``[N]`` each."""
    return _auc(_places(x), y, w)


def _places(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the place of each score among the different ones, in ascending order."""
    return np.unique(scores, return_inverse=True)[1]


def _auc(places: NDArray[np.int64], y: NDArray[np.float64], w: NDArray[np.float64]) -> float | None:
    clicks, others = np.bincount(places, w * y), np.bincount(places, w * (1 - y))
    num_pairs = float(clicks.sum() * others.sum())
    if num_pairs == 0:
        return None
    return float(np.dot(clicks, np.cumsum(others) - others / 2)) / num_pairs


def checked(
    scores: Floats, labels: Floats, weights: Floats | None, *, are_numbers: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return scores, labels and weights as float64, ``[N]`` each.

    Args:
        scores: ``[N]``.
        labels: ``[N]``.
        weights: ``[N]``; None for equal ones.
        are_numbers: Whether labels are any numbers, and not 0 and 1 alone.

    Raises:
        ValueError: As ``measure``.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    w = np.ones_like(y) if weights is None else np.asarray(weights, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) == 0:
        raise ValueError(
            f"scores, labels: got shapes {x.shape} and {y.shape}, expected the same [N], at least one example"
        )
    if not np.isfinite(x).all():
        raise ValueError("scores: got a number that is not finite")
    if are_numbers and not np.isfinite(y).all():
        raise ValueError("labels: got a number that is not finite")
    if not are_numbers and not np.isin(y, (0.0, 1.0)).all():
        raise ValueError("labels: expected 0 and 1 only")
    if w.shape != y.shape or not (np.isfinite(w) & (w >= 0)).all() or not w.any():
        raise ValueError("weights: expected one finite number of at least 0 per example, and not all 0")
    return x, y, w
