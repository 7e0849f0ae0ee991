"""Which IDs are counted for admission, by their uses: arguments of eviction policies.

Each returns a mask and the limit. Shape letter: N distinct IDs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def dynamic_threshold_filter(
    id_counts: Tensor, threshold_skew_multiplier: float = 10.0
) -> tuple[Tensor, Tensor]:
    """Count IDs that are used more often than ``threshold_skew_multiplier`` times the mean."""
    threshold = id_counts.sum() / id_counts.numel() * threshold_skew_multiplier
    return id_counts > threshold, threshold


def average_threshold_filter(id_counts: Tensor) -> tuple[Tensor, Tensor]:
    """Count IDs that are used more often than the mean."""
    return dynamic_threshold_filter(id_counts, 1.0)


def probabilistic_threshold_filter(
    id_counts: Tensor, per_id_probability: float = 0.01
) -> tuple[Tensor, Tensor]:
    """Count an ID with a probability that grows with its uses: ``1 - (1 - per_id_probability) ** uses``.

    It draws random numbers: with several ranks their generators must agree, as each decides for itself.
    """
    threshold = torch.rand(id_counts.size(), device=id_counts.device)
    probability = torch.full(id_counts.size(), 1 - per_id_probability, device=id_counts.device)
    return 1 - probability.pow(id_counts) > threshold, threshold
