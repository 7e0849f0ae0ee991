"""DCN-v2: layers that cross every input with every other one, beside a deep network.

Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems"
(arXiv 2008.13535).

Shape letters: B batch, L labels, N width of the input, R rank.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.modules.crossnet import CrossNet, LowRankCrossNet
from recsys.modules.mlp import MLP


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
