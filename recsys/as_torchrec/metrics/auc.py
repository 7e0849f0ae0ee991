"""The area under the ROC curve of the latest examples.

Shape letters: N number of examples, T number of tasks.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from recsys.as_torchrec.metrics.computation import (
    MetricComputationReport,
    RecMetricComputation,
    RecMetricException,
)
from recsys.as_torchrec.metrics.names import MetricName, MetricNamespace, MetricPrefix
from recsys.as_torchrec.metrics.rec_metric import RecMetric
from recsys.metrics.exact import weighted_auc

_STATES = ("predictions", "labels", "weights")


def compute_auc(
    n_tasks: int,
    predictions: list[Tensor],
    labels: list[Tensor],
    weights: list[Tensor],
    apply_bin: bool = False,
) -> Tensor:
    """Return each task's AUC, ties counting half; 0.5 where all labels are equal. TorchRec's depends on ties' order.

    Args:
        n_tasks: T.
        predictions: Batches ``[T, N]``.
        labels: The same.
        weights: The same.
        apply_bin: Whether labels of 0.039 and more count as 1 and others as 0.
    """
    columns = [torch.cat(parts, dim=-1).double().cpu().numpy() for parts in (predictions, labels, weights)]
    if apply_bin:
        columns[1] = np.where(columns[1] >= 0.039, 1.0, 0.0)
    found = [weighted_auc(*(column[task] for column in columns)) for task in range(n_tasks)]
    return torch.tensor([0.5 if auc is None else auc for auc in found], device=predictions[0].device)


class AUCMetricComputation(RecMetricComputation):
    """AUC of the window. It keeps the window's examples.

    Args:
        args: As for ``RecMetricComputation``.
        grouped_auc: Not supported: the mean AUC of groups.
        apply_bin: See ``compute_auc``.
        fused_update_limit: Batches of an update.
        kwargs: As for ``RecMetricComputation``.

    Raises:
        ValueError: ``grouped_auc`` is asked for.
    """

    def __init__(
        self,
        *args: Any,
        grouped_auc: bool = False,
        apply_bin: bool = False,
        fused_update_limit: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs, fused_update_limit=fused_update_limit)  # type: ignore[misc]
        if grouped_auc:
            raise ValueError("grouped_auc: got True, expected False: AUC by groups is not computed here")
        self._apply_bin = apply_bin
        for name in _STATES:
            # An example without weight, so that there is always one.
            self._add_state(name, [torch.zeros(self._n_tasks, 1)], add_window_state=False)

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
            raise RecMetricException("predictions, weights: got None, expected tensors [T, N]")
        for name, batch in zip(_STATES, (predictions, labels, weights), strict=True):
            kept = [*cast(list[Tensor], getattr(self, name)), batch.detach().to(torch.float32, copy=True)]
            too_many = sum(part.shape[-1] for part in kept) - self._window_size
            while too_many > 0:
                cut = min(too_many, kept[0].shape[-1])
                kept[0] = kept[0][:, cut:]
                too_many -= cut
                if not kept[0].shape[-1]:
                    kept.pop(0)
            setattr(self, name, kept)

    def _compute(self) -> list[MetricComputationReport]:
        predictions, labels, weights = (cast(list[Tensor], getattr(self, name)) for name in _STATES)
        value = compute_auc(self._n_tasks, predictions, labels, weights, self._apply_bin)
        return [MetricComputationReport(MetricName.AUC, MetricPrefix.WINDOW, value)]


class AUCMetric(RecMetric):
    """AUC of the window; see ``AUCMetricComputation`` for more keywords."""

    _namespace = MetricNamespace.AUC
    _computation_class = AUCMetricComputation
