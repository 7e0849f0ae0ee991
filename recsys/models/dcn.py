"""DCN-v2: layers that cross every input with every other one, beside a deep network.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems"
(arXiv 2008.13535).

Shape letters: B batch, L labels, N width of the input, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.models.dlrm import MLP


def _crossed(layers: nn.ModuleList, features: Tensor) -> Tensor:
    """Cross features ``[B, N]`` with themselves, once for each layer."""
    crossed = features
    for layer in layers:
        crossed = features * layer(crossed) + crossed
    return crossed


class CrossNet(nn.Module):
    """Cross layers of full rank: ``x' = x0 * (W x + b) + x``, ``[B, N]`` to ``[B, N]``.

    Args:
        in_features: N.
        num_layers: Number of layers, at least 1.
    """

    def __init__(self, in_features: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(in_features, in_features) for _ in range(num_layers))

    def forward(self, features: Tensor) -> Tensor:
        """Cross ``[B, N]``."""
        return _crossed(self.layers, features)


class LowRankCrossNet(nn.Module):
    """Cross layers whose matrix is a product of two of rank R: ``x' = x0 * (W (V x) + b) + x``.

    Args:
        in_features: N.
        num_layers: Number of layers, at least 1.
        rank: R, at least 1.
    """

    def __init__(self, in_features: int, num_layers: int, rank: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(in_features, rank, bias=False), nn.Linear(rank, in_features))
            for _ in range(num_layers)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Cross ``[B, N]``."""
        return _crossed(self.layers, features)


class CrossAndDeep(nn.Module):
    """A cross network beside a deep one, and a linear layer over both: ``[B, N]`` to logits ``[B, L]``.

    Args:
        in_features: N.
        num_labels: L.
        num_cross_layers: Number of cross layers.
        rank: R; 0 for layers of full rank.
        layer_sizes: Sizes of the deep layers.
    """

    def __init__(
        self, in_features: int, num_labels: int, num_cross_layers: int, rank: int, layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.cross: nn.Module = (
            LowRankCrossNet(in_features, num_cross_layers, rank)
            if rank
            else CrossNet(in_features, num_cross_layers)
        )
        self.deep = MLP(in_features, layer_sizes)
        self.over = nn.Linear(in_features + layer_sizes[-1], num_labels)

    def forward(self, features: Tensor) -> Tensor:
        """Map ``[B, N]`` to ``[B, L]``."""
        logits: Tensor = self.over(torch.cat((self.cross(features), self.deep(features)), dim=1))
        return logits
