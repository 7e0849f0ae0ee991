"""Batch: what a step trains on, by TorchRec's name.

``recsys-train`` has batches of its own (``recsys.data.examples.LabeledBatch``), with weights and several labels.

Shape letters: B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys import KeyedJaggedTensor
from recsys.jagged.streamable import Pipelineable


@dataclass
class Batch(Pipelineable):
    """The inputs and labels of one step.

    Attributes:
        dense_features: ``[B, number of dense features]``.
        sparse_features: B rows.
        labels: ``[B]``.
    """

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Batch:
        """Return the batch on a device."""
        return Batch(
            self.dense_features.to(device=device, non_blocking=non_blocking),
            self.sparse_features.to(device=device, non_blocking=non_blocking),
            self.labels.to(device=device, non_blocking=non_blocking),
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory of all tensors until the work now queued on ``stream`` is done."""
        self.dense_features.record_stream(stream)
        self.sparse_features.record_stream(stream)
        self.labels.record_stream(stream)

    def pin_memory(self) -> Batch:
        """Return a copy in page-locked host memory, from which copies to a device are asynchronous."""
        return Batch(
            self.dense_features.pin_memory(), self.sparse_features.pin_memory(), self.labels.pin_memory()
        )
