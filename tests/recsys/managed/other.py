"""A managed collision module of a kind that can be neither frozen nor exported."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.managed import ManagedCollisionModule


class OtherModule(ManagedCollisionModule):
    """A module of a kind that nobody knows."""

    def profile(self, ids: Tensor) -> None:
        """Learns nothing."""

    def remap(self, ids: Tensor) -> Tensor:
        """All to row 0."""
        return ids * 0

    def output_size(self) -> int:
        return 5

    def open_slots(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def current_step(self) -> int:
        return 0
