"""Which IDs keep their rows when there are more IDs than rows.

Shape letters: N number of IDs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class MCHEvictionPolicy(ABC):
    """Gives each ID a score; the lowest scores lose their rows first.

    Over several ranks each rank computes the scores itself, so they must follow from the arguments alone.
    """

    @abstractmethod
    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """A score for each ID.

        Args:
            counts: ``[N]`` int64, how often each ID was used since it got its row; for an ID without a row,
                since the last admission.
            last_steps: ``[N]`` int64, the step of its latest use.
            step: the present step, not below any of ``last_steps``.

        Returns:
            ``[N]``, of any dtype that can be compared.
        """


class LFU_EvictionPolicy(MCHEvictionPolicy):
    """The least frequently used ID goes first."""

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """The counts."""
        del last_steps, step
        return counts


class LRU_EvictionPolicy(MCHEvictionPolicy):
    """The ID whose latest use is the longest ago goes first."""

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """The steps of the latest uses."""
        del counts, step
        return last_steps


class DistanceLFU_EvictionPolicy(MCHEvictionPolicy):
    """Frequency that fades with the steps since the latest use: ``count / (steps + 1) ** decay_exponent``.

    Args:
        decay_exponent: 0 is LFU; the larger, the nearer to LRU. Ranks on machines of different kinds can round
            powers otherwise than 1.0 differently, and so come to different mappings.

    Raises:
        ValueError: the exponent is negative.
    """

    def __init__(self, decay_exponent: float = 1.0) -> None:
        if not decay_exponent >= 0:
            raise ValueError(f"decay_exponent: got {decay_exponent}, expected 0 or more")
        self._decay_exponent = decay_exponent

    def scores(self, counts: Tensor, last_steps: Tensor, step: int) -> Tensor:
        """The faded counts, float64."""
        distance = (step - last_steps + 1).to(torch.float64)
        return counts.to(torch.float64) / distance.pow(self._decay_exponent)
