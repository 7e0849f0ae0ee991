"""Metrics that are made of sums over examples: NE, MSE, CTR and calibration.

Shape letters: N number of examples, T number of tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from recsys.as_torchrec.metrics.computation import (
    MetricComputationReport,
    RecMetricComputation,
    RecMetricException,
)
from recsys.as_torchrec.metrics.names import MetricName, MetricNamespace
from recsys.as_torchrec.metrics.rec_metric import RecMetric

_ETA = 1e-12


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the ratio, 0 where the denominator is 0 or below."""
    return torch.where(denominator <= 0, 0.0, numerator / denominator)


def compute_cross_entropy(labels: Tensor, predictions: Tensor, weights: Tensor, eta: float) -> Tensor:
    """Return each example's weighted cross entropy in bits, float64; predictions are kept ``eta`` off 0 and 1."""
    x = predictions.double().clamp(min=eta, max=1 - eta)
    return -weights * (labels * torch.log2(x) + (1.0 - labels) * torch.log2(1.0 - x))


def compute_ne(
    ce_sum: Tensor,
    weighted_num_samples: Tensor,
    pos_labels: Tensor,
    neg_labels: Tensor,
    eta: float,
    allow_missing_label_with_zero_weight: bool = False,
) -> Tensor:
    """Return the cross entropy divided by that of always predicting the mean label.

    Args:
        ce_sum: The cross entropy.
        weighted_num_samples: The sum of the weights.
        pos_labels: The weighted sum of the labels.
        neg_labels: The weighted sum of 1 less each label.
        eta: How far the mean label is kept off 0 and 1.
        allow_missing_label_with_zero_weight: Whether the result is ``eta``, not NaN, without weights.
    """
    mean = (pos_labels / weighted_num_samples.double().clamp(min=eta)).clamp(min=eta, max=1 - eta)
    found = ce_sum / (-pos_labels * torch.log2(mean) - neg_labels * torch.log2(1.0 - mean))
    return (
        torch.where(weighted_num_samples > 0, found, eta) if allow_missing_label_with_zero_weight else found
    )


def compute_logloss(ce_sum: Tensor, pos_labels: Tensor, neg_labels: Tensor, eta: float) -> Tensor:
    """Return the mean cross entropy in bits."""
    return ce_sum / (pos_labels + neg_labels).clamp(min=eta)


class _SumsComputation(RecMetricComputation):
    """Adds up parts of batches."""

    def update(
        self,
        *,
        predictions: Tensor | None,
        labels: Tensor,
        weights: Tensor | None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Take a batch, ``[T, N]`` each."""
        if predictions is None or weights is None:
            missing = "predictions" if predictions is None else "weights"
            raise RecMetricException(f"{missing}: got None, expected a tensor [T, N]")
        self._add_up(self._parts(predictions.double(), labels, weights.double()), labels.shape[-1])

    @abstractmethod
    def _parts(self, x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:
        """Return what a batch of predictions, labels and weights adds to each sum, ``[T]``."""


class NEMetricComputation(_SumsComputation):
    """Normalized entropy, and on request the log loss.

    Args:
        args: As for ``RecMetricComputation``.
        include_logloss: Whether the mean cross entropy in bits is reported too.
        allow_missing_label_with_zero_weight: Whether a window without weights has a value.
        kwargs: As for ``RecMetricComputation``.
    """

    def __init__(
        self,
        *args: Any,
        include_logloss: bool = False,
        allow_missing_label_with_zero_weight: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._allow_missing_label_with_zero_weight = allow_missing_label_with_zero_weight
        self._include_logloss = include_logloss
        self._add_sums("cross_entropy_sum", "weighted_num_samples", "pos_labels", "neg_labels")

    def _parts(self, x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:
        return {
            "cross_entropy_sum": compute_cross_entropy(labels, x, w, _ETA).sum(dim=-1),
            "weighted_num_samples": w.sum(dim=-1),
            "pos_labels": (w * labels).sum(dim=-1),
            "neg_labels": (w * (1.0 - labels)).sum(dim=-1),
        }

    def _compute(self) -> list[MetricComputationReport]:
        def ne(ce_sum: Tensor, num: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
            return compute_ne(ce_sum, num, pos, neg, _ETA, self._allow_missing_label_with_zero_weight)

        def loss(ce_sum: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
            return compute_logloss(ce_sum, pos, neg, _ETA)

        labels = ("pos_labels", "neg_labels")
        found = self._reports(MetricName.NE, ne, "cross_entropy_sum", "weighted_num_samples", *labels)
        if self._include_logloss:
            found += self._reports(MetricName.LOG_LOSS, loss, "cross_entropy_sum", *labels)
        return found


class MSEMetricComputation(_SumsComputation):
    """Mean squared error, its root, and on request the share of the labels' variance that is explained.

    Args:
        args: As for ``RecMetricComputation``.
        include_r_squared: Whether that share is reported.
        kwargs: As for ``RecMetricComputation``.
    """

    def __init__(self, *args: Any, include_r_squared: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._include_r_squared = include_r_squared
        self._add_sums("error_sum", "weighted_num_samples")
        self._add_sums("label_sum", "label_squared_sum", persistent=include_r_squared)

    def _parts(self, x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:
        return {
            "error_sum": (w * (labels - x).square()).sum(dim=-1),
            "weighted_num_samples": w.sum(dim=-1),
            "label_sum": (w * labels).sum(dim=-1),
            "label_squared_sum": (w * labels.square()).sum(dim=-1),
        }

    def _compute(self) -> list[MetricComputationReport]:
        sums = ("error_sum", "weighted_num_samples")
        found = self._reports(MetricName.MSE, _ratio, *sums)
        found += self._reports(MetricName.RMSE, lambda *of: _ratio(*of).sqrt(), *sums)
        if self._include_r_squared:
            found += self._reports(MetricName.R_SQUARED, _r_squared, *sums, "label_sum", "label_squared_sum")
        return found


def _r_squared(error: Tensor, num: Tensor, label: Tensor, squared: Tensor) -> Tensor:
    total = squared - label.square() / num
    return torch.where(total == 0, 1.0, 1.0 - error / total)


class CTRMetricComputation(_SumsComputation):
    """The mean label."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_sums("ctr_num", "ctr_denom")

    def _parts(self, x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        return {"ctr_num": (w * labels).sum(dim=-1), "ctr_denom": w.sum(dim=-1)}

    def _compute(self) -> list[MetricComputationReport]:
        return self._reports(MetricName.CTR, _ratio, "ctr_num", "ctr_denom")


class CalibrationMetricComputation(_SumsComputation):
    """The mean prediction divided by the mean label."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._add_sums("calibration_num", "calibration_denom")

    def _parts(self, x: Tensor, labels: Tensor, w: Tensor) -> dict[str, Tensor]:
        return {"calibration_num": (w * x).sum(dim=-1), "calibration_denom": (w * labels).sum(dim=-1)}

    def _compute(self) -> list[MetricComputationReport]:
        return self._reports(MetricName.CALIBRATION, _ratio, "calibration_num", "calibration_denom")


class NEMetric(RecMetric):
    """Normalized entropy; see ``NEMetricComputation`` for more keywords."""

    _namespace = MetricNamespace.NE
    _computation_class = NEMetricComputation


class MSEMetric(RecMetric):
    """Mean squared error; see ``MSEMetricComputation`` for more keywords."""

    _namespace = MetricNamespace.MSE
    _computation_class = MSEMetricComputation


class CTRMetric(RecMetric):
    """The mean label."""

    _namespace = MetricNamespace.CTR
    _computation_class = CTRMetricComputation


class CalibrationMetric(RecMetric):
    """The mean prediction divided by the mean label."""

    _namespace = MetricNamespace.CALIBRATION
    _computation_class = CalibrationMetricComputation
