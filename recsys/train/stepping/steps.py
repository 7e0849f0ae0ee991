"""What a training step returns.

Shape letters: B batch, D width of the vectors, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Step:
    """The results of one step; nothing in it has been read from the device.

    Attributes:
        loss: The sum over this rank's batch, of the mean over the labels, a scalar.
        logits: ``[B, L]``, before the model learned from the batch.
        labels: ``[B, L]``.
        weights: ``[B]``; None for 1.
        num_global_rows: Rows of the step on all ranks.
        vectors: Of users and of their next items, ``[2, B, D]``, where these are learned; else None.
    """

    loss: Tensor
    logits: Tensor
    labels: Tensor
    weights: Tensor | None
    num_global_rows: int
    vectors: Tensor | None = None
