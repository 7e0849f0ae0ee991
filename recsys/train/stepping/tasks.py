"""What a training step runs: a model in the form that a loss needs, and the record of the step.

Shape letters: B batch, D width of the vectors, H longest history, L labels, W world size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist

from recsys.base.collectives import gather_rows
from recsys.data.examples import LabeledBatch
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.models.click import ClickModel
from recsys.models.sequential import StateModel
from recsys.models.zoo import TwoTowerModel
from recsys.train.losses.candidates import gathered_rows
from recsys.train.losses.click import ClickLoss, Others
from recsys.train.stepping.steps import Step


class LogitsOf(ClickModel):
    """A ClickModel, with the same names, that returns logits and log variances of labels or None, for training."""

    def forward(  # type: ignore[override]
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``[B, L]``, and ``[L]`` or None."""
        logits = self.logits(dense_features, sparse_features)
        return logits, None if self.uncertainty is None else self.uncertainty.bounded()


class VectorsOf(ClickModel):
    """A ClickModel, with the same names, that returns the vectors of users and items, for training."""

    def forward(  # type: ignore[override]
        self, dense_features: Tensor, sparse_features: KeyedJaggedTensor
    ) -> tuple[Tensor, Tensor]:
        """Return the model's ``vectors``: ``[B, D]`` each of two towers, ``[B, H, D]`` each of a history."""
        assert isinstance(self.model, TwoTowerModel | StateModel)
        return self.model.vectors(self.dense_inputs(dense_features, sparse_features), sparse_features)


def trained_form(model: nn.Module, form: type[ClickModel]) -> ClickModel:
    """Return a ClickModel in the form that a loss needs: of its parts, under the same names."""
    assert isinstance(model, ClickModel)
    return form(model.model, model.inputs)


class StepTask(nn.Module):
    """A module that returns the loss and the step's record of a batch, as the pipeline expects.

    Gradients are averaged over the ranks. To make them those of the global batch's mean loss even if the
    ranks' batches differ in size or are empty, each rank's loss is its sum × W / the global batch's rows;
    this is the mean of its own batch if all have the same size.

    Args:
        model: In a form above, over the ranks.
        world_size: W.
        num_drawn: Items that are drawn for a training batch, which are no rows of it.
    """

    def __init__(self, model: nn.Module, world_size: int, num_drawn: int = 0) -> None:
        super().__init__()
        self._model = model
        self._world_size = world_size
        self._num_drawn = num_drawn

    def num_rows(self, batch: LabeledBatch) -> int:
        """Return the rows of a batch without drawn items."""
        return len(batch.labels) - (self._num_drawn if self.training else 0)

    def weights(self, batch: LabeledBatch) -> Tensor | None:
        """Return the weights of these rows, ``[B]``; None for 1."""
        return None if batch.weights is None else batch.weights[: self.num_rows(batch)]

    def weighted_sum(self, losses: Tensor, batch: LabeledBatch) -> Tensor:
        """Return the sum of the losses of these rows, ``[B]``."""
        weights = self.weights(batch)
        return (losses if weights is None else losses * weights).sum()

    def record(
        self, batch: LabeledBatch, loss: Tensor, logits: Tensor | None, vectors: Tensor | None = None
    ) -> tuple[Tensor, Step]:
        """Return the loss, scaled for the global batch, and the step's record.

        Args:
            batch: The batch.
            loss: The sum over its rows.
            logits: ``[B, L]``; None where there are none, and the labels stand for them.
            vectors: As in ``Step``.
        """
        labels = batch.labels[: self.num_rows(batch)]
        step = Step(
            loss=loss.detach(),
            logits=labels if logits is None else logits.detach(),
            labels=labels,
            weights=self.weights(batch),
            num_global_rows=batch.num_global_rows,
            vectors=None if vectors is None else vectors.detach(),
        )
        return loss * (self._world_size / batch.num_global_rows), step


class ClickTask(StepTask):
    """Learns labels.

    Args:
        model: A LogitsOf, over the ranks.
        world_size: W.
        loss: The loss of each row and label.
        group: The ranks whose rows pairs are made with; None for this rank's alone.
    """

    def __init__(
        self, model: nn.Module, world_size: int, loss: ClickLoss, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(model, world_size)
        self._loss = loss
        self._group = group

    def forward(self, batch: LabeledBatch) -> tuple[Tensor, Step]:
        """Return the loss, scaled for the global batch, and the step."""
        logits, log_variances = self._model(batch.dense, batch.kjt)
        others = self._others(batch, logits) if self.training else None
        losses = self._loss.of(logits, batch.labels, log_variances, batch.weights, others)
        loss, num_labels = losses.sum(), logits.shape[1]
        return self.record(batch, loss if num_labels == 1 else loss / num_labels, logits)

    def _others(self, batch: LabeledBatch, logits: Tensor) -> Others | None:
        """Return the rows of all ranks; None where pairs are made with this rank's."""
        if self._group is None:
            return None
        parts = [batch.labels] if batch.weights is None else [batch.labels, batch.weights.unsqueeze(1)]
        known = gather_rows(torch.cat(parts, dim=1), self._group)
        rows, num_labels = torch.cat(known), logits.shape[1]
        return Others(
            logits=gathered_rows(logits, [len(part) for part in known], self._group),
            labels=rows[:, :num_labels],
            weights=None if batch.weights is None else rows[:, num_labels],
        )
