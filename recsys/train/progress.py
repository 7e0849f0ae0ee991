"""The progress of a training, as in checkpoints, and its measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.errors import CheckpointError, ManifestError
from recsys.json_checks import a_list, json_field, whole
from recsys.train.data.metrics import Metrics, entropy


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch.

    Attributes:
        number: From 1.
        step: Steps done since the training began.
        train_loss: The mean loss during the epoch.
        examples_per_second: The throughput of all ranks together, during the epoch.
        held_out: The metrics after it.
    """

    number: int
    step: int
    train_loss: float
    examples_per_second: float
    held_out: Metrics


@dataclass(frozen=True, kw_only=True)
class TrainProgress:
    """The state of a training between two steps; the next step follows from it alone.

    Attributes:
        epochs: The epochs that are done.
        step_in_epoch: Steps done of the epoch after them.
        step: Steps done since the training began.
        num_rows: Training rows of the epoch's steps, on all ranks.
        loss: Sum of their losses.
    """

    epochs: tuple[Epoch, ...] = ()
    step_in_epoch: int = 0
    step: int = 0
    num_rows: int = 0
    loss: float = 0.0

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
                loss=_number(data, "loss", "progress"),
            )
        except ManifestError as error:
            raise CheckpointError(str(error)) from None


def _epoch(data: Any, at: str) -> Epoch:
    held_out = json_field(data, "held_out", at)
    to = f"{at}.held_out"
    return Epoch(
        number=whole(data, "number", at, least=1),
        step=whole(data, "step", at),
        train_loss=_number(data, "train_loss", at),
        examples_per_second=_number(data, "examples_per_second", at),
        held_out=Metrics(
            num_rows=whole(held_out, "num_rows", to, least=1),
            loss=_number(held_out, "loss", to),
            auc=_number_or_none(held_out, "auc", to),
            ne=_number_or_none(held_out, "ne", to),
            calibration=_number_or_none(held_out, "calibration", to),
        ),
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
        loss: Mean binary cross entropy, in nats.
        ne: Normalized entropy (see ``metrics``); None if all labels are equal.
        calibration: Mean prediction divided by mean label; None without clicks.
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


class Sums:
    """Sums over this rank's examples: loss, predictions, labels, rows.

    Nothing is read from the device before ``total``.

    Args:
        device: Where the batches are.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add one batch.

        Args:
            loss: The sum over the batch, a scalar.
            logits: ``[B]``.
            labels: ``[B]``.
        """
        rows = torch.full((), len(labels), dtype=torch.float32, device=labels.device)
        self._sums += torch.stack((loss, logits.sigmoid().sum(), labels.sum(), rows))

    def total(self, group: dist.ProcessGroup | None) -> tuple[float, float, float, int]:
        """Return the sums over all ranks: loss, predictions, labels, rows. Waits for the device and the ranks."""
        sums = self._sums.clone()
        if group is not None:
            dist.all_reduce(sums, group=group)
        loss, predictions, labels, rows = sums.tolist()
        return loss, predictions, labels, int(rows)


def window(step: int, sums: tuple[float, float, float, int], seconds: float, *, is_full: bool) -> Window:
    """Return the window's numbers.

    Args:
        step: Steps done since the training began.
        sums: The result of ``Sums.total``, with at least one row.
        seconds: The duration of the window.
        is_full: See ``Window``.
    """
    loss, predictions, labels, num_rows = sums
    base = entropy(labels / num_rows)
    return Window(
        step=step,
        num_rows=num_rows,
        loss=loss / num_rows,
        ne=loss / num_rows / base if base > 0 else None,
        calibration=predictions / labels if labels > 0 else None,
        examples_per_second=num_rows / max(seconds, 1e-9),
        is_full=is_full,
    )
