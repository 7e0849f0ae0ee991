"""Metrics of labels that are numbers, on held-out data: the loss, RMSE, MAE.

Shape letters: N number of examples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.inputs.columns import LabelColumn
from recsys.metrics.exact import Floats, Metrics, checked, measure


@dataclass(frozen=True, kw_only=True)
class NumberMetrics:
    """Metrics of predicted numbers on one set of examples, which count by their weights.

    Attributes:
        num_rows: N.
        loss: The mean of what training minimizes: the squared error, or Huber's loss, of errors in the label's
            ``std``.
        rmse: The root of the mean squared error, in the label's unit.
        mae: The mean absolute error, in the label's unit.
    """

    num_rows: int
    loss: float
    rmse: float
    mae: float

    def to_json(self) -> dict[str, float | int]:
        """Return plain data."""
        return asdict(self)


class ScoredNumbers:
    """Predictions and numbers, whose metrics can be asked for under several weights.

    Args:
        predictions: ``[N]``, finite, in the label's unit.
        numbers: ``[N]``, finite.
        label: Its loss and scale.
    """

    def __init__(
        self, predictions: NDArray[np.float64], numbers: NDArray[np.float64], label: LabelColumn
    ) -> None:
        self._errors = np.abs(predictions - numbers)
        errors = self._errors / label.scale[1]
        self._losses = errors**2
        if label.loss == "huber":
            linear = label.delta * (errors - 0.5 * label.delta)
            self._losses = np.where(errors > label.delta, linear, 0.5 * errors**2)

    def metrics(self, weights: NDArray[np.float64]) -> NumberMetrics:
        """Return all metrics; ``weights`` are not checked, and their sum is above 0."""
        total = float(weights.sum())
        return NumberMetrics(
            num_rows=len(self._errors),
            loss=float(np.dot(self._losses, weights)) / total,
            rmse=float(np.sqrt(np.dot(self._errors**2, weights) / total)),
            mae=float(np.dot(self._errors, weights)) / total,
        )


def predictions_of(logits: Floats, label: LabelColumn) -> NDArray[np.float64]:
    """Return what a model's outputs for a number, ``[N]``, are in the label's unit."""
    mean, std = label.scale
    return np.asarray(logits, dtype=np.float64) * std + mean


def measure_label(
    label: LabelColumn, logits: Floats, labels: Floats, weights: Floats | None = None
) -> Metrics | NumberMetrics:
    """Return the metrics of a model's ``[N]`` outputs before the label's function; see ``exact.measure``.

    Raises:
        ValueError: As ``exact.measure``.
    """
    if not label.is_number:
        return measure(logits, labels, weights)
    x, y, w = checked(predictions_of(logits, label), labels, weights, are_numbers=True)
    return ScoredNumbers(x, y, label).metrics(w)
