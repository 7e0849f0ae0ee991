"""The progress of a training, as in checkpoints, and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional

from recsys.base.json_checks import a_list, json_field, whole, wrong
from recsys.errors import CheckpointError, ManifestError
from recsys.metrics.exact import Metrics, entropy
from recsys.metrics.ranked import RankMetrics
from recsys.metrics.regression import NumberMetrics

#: What is measured on held-out examples, of one label or of next items.
HeldOut = Metrics | NumberMetrics | RankMetrics


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch.

    Attributes:
        number: From 1.
        step: Steps done since the training began.
        train_loss: The mean loss during the epoch.
        examples_per_second: The throughput of all ranks together, during the epoch.
        held_out: The metrics after it, of the first label or of the next items.
        labels: The metrics by label, where there are several.
    """

    number: int
    step: int
    train_loss: float
    examples_per_second: float
    held_out: HeldOut
    labels: Mapping[str, HeldOut] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainProgress:
    """The state of a training between two steps; the next step follows from it alone.

    Attributes:
        epochs: The epochs that are done.
        step_in_epoch: Steps done of the epoch after them.
        step: Steps done since the training began.
        num_rows: Training rows of the epoch's steps, on all ranks.
        weight: Sum of their weights.
        loss: Sum of their losses.
        best: The number of the epoch that is kept; 0 for none.
    """

    epochs: tuple[Epoch, ...] = ()
    step_in_epoch: int = 0
    step: int = 0
    num_rows: int = 0
    weight: float = 0.0
    loss: float = 0.0
    best: int = 0

    @property
    def is_best(self) -> bool:
        """Whether this is the state after the epoch that is kept."""
        return self.step_in_epoch == 0 and 0 < self.best == len(self.epochs)

    @property
    def kept(self) -> Epoch:
        """The epoch that is kept; the last if none was chosen."""
        return self.epochs[self.best - 1]

    @property
    def mean_loss(self) -> float:
        """The mean loss of the epoch's rows by their weights; 0 if none has a weight."""
        return _mean(self.loss, self.weight)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {**asdict(self), "epochs": [asdict(epoch) for epoch in self.epochs]}

    @classmethod
    def from_json(cls, data: Any) -> TrainProgress:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            CheckpointError: Names the field.
        """
        try:
            return cls(
                epochs=tuple(_epoch(item, at) for at, item in a_list(data, "epochs", "progress")),
                step_in_epoch=whole(data, "step_in_epoch", "progress"),
                step=whole(data, "step", "progress"),
                num_rows=whole(data, "num_rows", "progress"),
                # Runs of earlier releases have none.
                weight=_number(data, "weight" if "weight" in data else "num_rows", "progress"),
                loss=_number(data, "loss", "progress"),
                best=_best(data),
            )
        except ManifestError as error:
            raise CheckpointError(str(error)) from None


def _best(data: Any) -> int:
    number = whole(data, "best", "progress") if "best" in data else 0  # runs of earlier releases have none
    if number > len(data["epochs"]):
        raise wrong("progress", "best", number, f"one of the {len(data['epochs'])} epochs, or 0")
    return number


def _epoch(data: Any, at: str) -> Epoch:
    labels = data.get("labels", {})
    if not isinstance(labels, Mapping):
        raise wrong(at, "labels", labels, "an object")
    return Epoch(
        number=whole(data, "number", at, least=1),
        step=whole(data, "step", at),
        train_loss=_number(data, "train_loss", at),
        examples_per_second=_number(data, "examples_per_second", at),
        held_out=_metrics(json_field(data, "held_out", at), f"{at}.held_out"),
        labels={str(name): _metrics(item, f"{at}.labels[{name!r}]") for name, item in labels.items()},
    )


def _metrics(data: Any, at: str) -> HeldOut:
    if isinstance(data, Mapping) and "num_items" in data:
        return RankMetrics(
            num_rows=whole(data, "num_rows", at, least=1),
            num_items=whole(data, "num_items", at, least=1),
            loss=_number(data, "loss", at),
            hit_rate=_number(data, "hit_rate", at),
            ndcg=_number(data, "ndcg", at),
        )
    if isinstance(data, Mapping) and "rmse" in data:
        return NumberMetrics(
            num_rows=whole(data, "num_rows", at, least=1),
            loss=_number(data, "loss", at),
            rmse=_number(data, "rmse", at),
            mae=_number(data, "mae", at),
        )
    return Metrics(
        num_rows=whole(data, "num_rows", at, least=1),
        loss=_number(data, "loss", at),
        auc=_number_or_none(data, "auc", at),
        ne=_number_or_none(data, "ne", at),
        calibration=_number_or_none(data, "calibration", at),
    )


def _number(data: Mapping[str, Any], key: str, at: str) -> float:
    value = json_field(data, key, at)
    if type(value) not in (int, float):
        raise ManifestError(f"{at}.{key}: got {str(value)[:80]!r}, expected a number")
    return float(value)


def _number_or_none(data: Mapping[str, Any], key: str, at: str) -> float | None:
    return None if json_field(data, key, at) is None else _number(data, key, at)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Measured on the training examples of some steps, each before the model learned from it, over all ranks.

    Attributes:
        step: Steps done since the training began.
        num_rows: Examples in the window.
        loss: The mean of what is minimized.
        ne: Normalized entropy (see ``metrics``), of the cross entropy whatever is minimized; None if all labels are
            equal, there are none, or one is a number.
        calibration: Mean prediction divided by mean label, over all labels; None without clicks or with numbers.
        examples_per_second: The throughput of all ranks together.
        is_full: Whether it has the configured number of steps; the last window of an epoch may have fewer.
    """

    step: int
    num_rows: int
    loss: float
    ne: float | None
    calibration: float | None
    examples_per_second: float
    is_full: bool


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over examples.

    Attributes:
        loss: The losses, each a mean over the labels, times the example's weight.
        predictions: The predictions times the weights, by label; empty, as the next three, where a label is a number.
        labels: The weights of rows of label 1, by label.
        others: Those of rows of label 0.
        log_losses: The cross entropies times the weights, by label, whatever loss is minimized.
        weight: The weights.
        num_rows: The number of examples.
    """

    loss: float
    predictions: tuple[float, ...]
    labels: tuple[float, ...]
    others: tuple[float, ...]
    log_losses: tuple[float, ...]
    weight: float
    num_rows: int


class Sums:
    """Sums over this rank's examples.

    Nothing is read from the device before ``total``.

    Args:
        device: Where the batches are.
        num_labels: L; 0 where predictions and labels are not to be summed.
    """

    def __init__(self, device: torch.device, num_labels: int = 1) -> None:
        self._sums_labels = num_labels > 0
        self._sums = torch.zeros(3 + 4 * num_labels, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add one batch.

        Args:
            loss: The sum over the batch, a scalar.
            logits: ``[B, L]``.
            labels: ``[B, L]``.
            weights: ``[B]``; None for 1.
        """
        rows = torch.full((), len(labels), dtype=torch.float32, device=labels.device)
        of_rows = torch.stack((loss, rows, rows if weights is None else weights.sum()))
        if not self._sums_labels:
            self._sums += of_rows
            return
        log_losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        by_label = torch.cat((logits.sigmoid(), labels, 1 - labels, log_losses), dim=1)
        if weights is not None:
            by_label = by_label * weights.unsqueeze(1)
        self._sums += torch.cat((of_rows, by_label.sum(dim=0)))

    def total(self, group: dist.ProcessGroup | None) -> Totals:
        """Return the sums over all ranks. Waits for the device and the ranks."""
        sums = self._sums.clone()
        if group is not None:
            dist.all_reduce(sums, group=group)
        loss, rows, weight, *by_label = sums.tolist()
        num_labels = len(by_label) // 4
        predictions, labels, others, log_losses = (
            tuple(by_label[i * num_labels : (i + 1) * num_labels]) for i in range(4)
        )
        return Totals(
            loss=loss,
            predictions=predictions,
            labels=labels,
            others=others,
            log_losses=log_losses,
            weight=weight,
            num_rows=int(rows),
        )


def _mean(total: float, weight: float) -> float:
    """Return a weighted mean; 0 if nothing has a weight, which is also the sum then."""
    return total / weight if weight > 0 else 0.0


def window(step: int, totals: Totals, seconds: float, *, is_full: bool) -> Window:
    """Return the window's numbers.

    Args:
        step: Steps done since the training began.
        totals: The result of ``Sums.total``, with at least one row.
        seconds: The duration of the window.
        is_full: See ``Window``.
    """
    num_rows, loss = totals.num_rows, _mean(totals.loss, totals.weight)
    base = sum(
        entropy(_mean(clicks, clicks + others))
        for clicks, others in zip(totals.labels, totals.others, strict=True)
    )
    num_clicks = sum(totals.labels)
    return Window(
        step=step,
        num_rows=num_rows,
        loss=loss,
        ne=_mean(sum(totals.log_losses), totals.weight) / base if base > 0 else None,
        calibration=sum(totals.predictions) / num_clicks if num_clicks > 0 else None,
        examples_per_second=num_rows / max(seconds, 1e-9),
        is_full=is_full,
    )
