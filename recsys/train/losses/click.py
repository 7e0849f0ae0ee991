"""Losses of labels: the log loss, the focal loss, BPR over the pairs of a batch; of numbers the squared error, Huber's.

Lin et al., "Focal Loss for Dense Object Detection" (arXiv 1708.02002). Rendle et al., "BPR: Bayesian Personalized
Ranking from Implicit Feedback" (UAI 2009); here each row of label 1 is compared with all of label 0 in the batch.
Kendall et al., "Multi-Task Learning Using Uncertainty to Weigh Losses" (arXiv 1705.07115).

Shape letters: B batch, L labels, O other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from recsys.inputs.columns import LabelColumn, learns_numbers


@dataclass(frozen=True, kw_only=True)
class Others:
    """The rows that the rows of a batch are compared with: those of the batch, or of all ranks.

    Attributes:
        logits: ``[O, L]``.
        labels: ``[O, L]``, 0 or 1.
        weights: ``[O]``, their weights in a mean; None for 1.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor | None


@dataclass(frozen=True, kw_only=True)
class ClickLoss:
    """The loss of each row and label.

    Attributes:
        kind: "cross-entropy", "focal" or "bpr", of labels that are 0 or 1.
        positive_weight: The factor of the loss of rows of label 1.
        focal_gamma: With "focal": the exponent of the chance that the model gives to the other label.
        label_weights: The factor of each label; empty for 1.
        labels: The labels; empty where none is a number.
    """

    kind: str = "cross-entropy"
    positive_weight: float = 1.0
    focal_gamma: float = 2.0
    label_weights: tuple[float, ...] = ()
    labels: tuple[LabelColumn, ...] = ()

    def of(
        self,
        logits: Tensor,
        labels: Tensor,
        log_variances: Tensor | None = None,
        weights: Tensor | None = None,
        others: Others | None = None,
    ) -> Tensor:
        """Return the losses ``[B, L]``, whose mean over the labels is a row's.

        Args:
            logits: ``[B, L]``.
            labels: ``[B, L]``, 0 or 1, or numbers in their own units.
            log_variances: Learned, ``[L]``: a label's loss is divided by its variance, and half the logarithm is added.
            weights: Of the rows, ``[B]``; None for 1. Losses are multiplied by them.
            others: With "bpr": the rows that pairs are made with; None for these.
        """
        others = others or Others(logits=logits, labels=labels, weights=weights)
        of = self._mixed if learns_numbers(self.labels) else self._of_clicks
        losses = of(logits, labels, others)
        if self.label_weights:
            losses = losses * _like(self.label_weights, losses)
        if log_variances is not None:
            losses = losses * torch.exp(-log_variances) + 0.5 * log_variances
        return losses if weights is None else losses * weights.unsqueeze(1)

    def _mixed(self, logits: Tensor, labels: Tensor, others: Others) -> Tensor:
        columns = []
        for i, label in enumerate(self.labels):
            of = (logits[:, i : i + 1], labels[:, i : i + 1])
            if label.is_number:
                columns.append(number_losses(*of, label))
                continue
            of_others = replace(
                others, logits=others.logits[:, i : i + 1], labels=others.labels[:, i : i + 1]
            )
            columns.append(self._of_clicks(*of, of_others))
        return torch.cat(columns, dim=1)

    def _of_clicks(self, logits: Tensor, labels: Tensor, others: Others) -> Tensor:
        is_bpr = self.kind == "bpr"
        return pairwise_losses(logits, labels, others) if is_bpr else self._by_row(logits, labels)

    def _by_row(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        if self.kind == "focal":
            # As a logarithm: a power of a chance that is rounded to 0 may have an infinite gradient.
            log_other = functional.logsigmoid(torch.where(labels > 0, -logits, logits))
            losses = losses * torch.exp(self.focal_gamma * log_other)
        if self.positive_weight != 1:
            losses = losses * (1 + (self.positive_weight - 1) * labels)
        return losses


def number_losses(outputs: Tensor, numbers: Tensor, label: LabelColumn) -> Tensor:
    """Return the losses of one label's outputs, in its ``scale``, for its numbers; all have the same shape."""
    mean, std = label.scale
    expected = (numbers - mean) / std
    if label.loss == "huber":
        return functional.huber_loss(outputs, expected, reduction="none", delta=label.delta)
    return functional.mse_loss(outputs, expected, reduction="none")


def pairwise_losses(logits: Tensor, labels: Tensor, others: Others) -> Tensor:
    """Return BPR's losses ``[B, L]``: of a row of label 1 the mean over other rows of label 0, of others 0.

    A label that none of the other rows that have a weight has as 0 has no pairs, and a loss of 0.

    Args:
        logits: ``[B, L]``.
        labels: ``[B, L]``, 0 or 1.
        others: The rows that pairs are made with.
    """
    counts = 1 - others.labels
    if others.weights is not None:
        counts = counts * others.weights.unsqueeze(1)
    totals = counts.sum(dim=0)
    pairs = functional.softplus(others.logits.unsqueeze(0) - logits.unsqueeze(1))
    means = torch.einsum("bol,ol->bl", pairs, counts) / torch.where(totals > 0, totals, 1)
    return means * labels


def _like(numbers: Sequence[float], tensor: Tensor) -> Tensor:
    return torch.tensor(numbers, dtype=tensor.dtype, device=tensor.device)
