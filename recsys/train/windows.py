"""What is measured while training runs: sums over the steps of a window, kept where the batches are.

Shape letters: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from recsys.train.metrics import entropy


@dataclass(frozen=True, kw_only=True)
class Window:
    """Measured on the training examples of some steps, each before the model learned from it, over all ranks.

    Attributes:
        step: steps done since the training began.
        num_rows: examples in the window.
        loss: mean binary cross entropy, in nats.
        ne: normalized entropy (see ``metrics``); None where all labels are equal.
        calibration: mean prediction divided by mean label; None without clicks.
        examples_per_second: of all ranks together.
        is_full: whether it has the number of steps that was asked for; the rest of a pass may have fewer.
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
        device: where the batches are.
    """

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(4, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """One batch.

        Args:
            loss: the sum over the batch, a scalar.
            logits: ``[B]``.
            labels: ``[B]``.
        """
        rows = torch.full((), len(labels), dtype=torch.float32, device=labels.device)
        self._sums += torch.stack((loss, logits.sigmoid().sum(), labels.sum(), rows))

    def total(self, group: dist.ProcessGroup | None) -> tuple[float, float, float, int]:
        """The sums over all ranks: loss, predictions, labels, rows. Waits for the device and the ranks."""
        sums = self._sums.clone()
        if group is not None:
            dist.all_reduce(sums, group=group)
        loss, predictions, labels, rows = sums.tolist()
        return loss, predictions, labels, int(rows)


def window(step: int, sums: tuple[float, float, float, int], seconds: float, *, is_full: bool) -> Window:
    """The window's numbers.

    Args:
        step: steps done since the training began.
        sums: what ``Sums.total`` gives; at least one row.
        seconds: how long the window took.
        is_full: see ``Window``.
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
