"""What can go along to another stream or device: batches of a training pipeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch


class Multistreamable(ABC):
    """Something whose memory may be used by work on another stream."""

    @abstractmethod
    def record_stream(self, stream: torch.Stream) -> None:
        """Keep the memory until the work now queued on ``stream`` is done."""


class Pipelineable(Multistreamable):
    """Something that can be copied to a device too: a batch, such as a ``KeyedJaggedTensor``."""

    @abstractmethod
    def to(self, device: torch.device, non_blocking: bool) -> Any:
        """Return the same on another device; it may be the object itself."""
