"""What learns from batches: the interface that the loop drives, and the one for one process in host memory.

Shape letters: B batch, W world size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

from recsys.models.click import ClickModel
from recsys.train.batches import ONE_RANK, Share
from recsys.train.config import TrainConfig
from recsys.train.examples import Batch
from recsys.train.touched_rows import TouchedRows


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step leaves to be measured; nothing in it has been read from the device.

    Attributes:
        loss: the sum over this rank's batch, a scalar.
        logits: ``[B]``, before the model learned from the batch.
        labels: ``[B]``.
        num_global_rows: rows of the step on all ranks.
    """

    loss: Tensor
    logits: Tensor
    labels: Tensor
    num_global_rows: int


class Learner(ABC):
    """A model and its optimizers on this rank.

    Attributes:
        share: this rank's part of every global batch.
        group: the ranks; None for one process.
        device: of this rank.
    """

    share: Share = ONE_RANK
    group: dist.ProcessGroup | None = None
    device: torch.device = torch.device("cpu")

    @abstractmethod
    def steps(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn from the batches, one after the other. A step is done when it is given."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """``[B]``, without learning."""

    @abstractmethod
    def clear_untrained(self) -> None:
        """Set the tables' rows that no step has touched to zero: an ID never seen then acts as an empty bag."""


def batch_loss(logits: Tensor, batch: Batch, world_size: int) -> tuple[Tensor, Tensor]:
    """The loss to differentiate, and the sum over this rank's batch; both scalars.

    Gradients are averaged over the ranks. So that they come out as those of the global batch's mean loss also where
    the ranks' batches differ in size, or are empty, each rank's loss is its sum × W / the global batch's rows: the
    mean of its own batch where all have the same size.
    """
    loss = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
    return loss * (world_size / batch.num_global_rows), loss.detach()


def dense_optimizer(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of the dense layers."""
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.Adagrad
    return kind(parameters, lr=config.learning_rate)


class OneProcessLearner(Learner):
    """One optimizer for the dense layers, one for the touched rows of the tables.

    Args:
        model: trained in place.
        config: how.
    """

    def __init__(self, model: ClickModel, config: TrainConfig) -> None:
        self._model = model
        self._rows = TouchedRows(
            model.model, learning_rate=config.row_learning_rate, weight_decay=config.row_weight_decay
        )
        names = self._rows.parameter_names()
        dense = [parameter for name, parameter in model.model.named_parameters() if name not in names]
        self._dense = dense_optimizer(dense, config)

    def steps(self, batches: Iterable[Batch]) -> Iterator[Step]:
        for batch in batches:
            self._dense.zero_grad()
            output, touched = self._rows.forward(batch)
            logits = output.squeeze(1)
            loss, loss_sum = batch_loss(logits, batch, 1)
            loss.backward()  # type: ignore[no-untyped-call]
            self._dense.step()
            self._rows.step(touched)
            yield Step(
                loss=loss_sum,
                logits=logits.detach(),
                labels=batch.labels,
                num_global_rows=batch.num_global_rows,
            )

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        return self._model.logits(batch.dense, batch.kjt)

    def clear_untrained(self) -> None:
        self._rows.clear_untrained()
