"""MaskNet: blocks whose input is multiplied with a mask that the whole instance decides, side by side.

Wang et al., "MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by Instance-Guided Mask"
(arXiv 2102.07619), the parallel form.

Shape letters: B batch, D embedding dimension, F features, L labels, N width of the flat input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.models.dlrm import OverArch

# The paper's reduction ratio: the mask's hidden layer is so many times wider than its result.
_REDUCTION = 2


class MaskBlock(nn.Module):
    """A mask of the instance, then a normalized layer: ``[B, F * D]`` to ``[B, out_features]``.

    Args:
        width: F * D.
        in_features: N.
        out_features: Width of the result.
    """

    def __init__(self, width: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.mask = nn.Sequential(
            nn.Linear(in_features, _REDUCTION * width), nn.ReLU(), nn.Linear(_REDUCTION * width, width)
        )
        self.hidden = nn.Sequential(nn.Linear(width, out_features), nn.LayerNorm(out_features), nn.ReLU())

    def forward(self, vectors: Tensor, instance: Tensor) -> Tensor:
        """Map normalized vectors ``[B, F * D]`` and the instance ``[B, N]``."""
        found: Tensor = self.hidden(vectors * self.mask(instance))
        return found


class MaskNetwork(nn.Module):
    """Mask blocks side by side and layers over them, to logits ``[B, L]``.

    Args:
        in_features: N, dense features included.
        num_vectors: F.
        embedding_dim: D.
        num_blocks: Blocks.
        layer_sizes: The first is a block's result; the others are layers over all, and the last one is L.
    """

    def __init__(
        self,
        in_features: int,
        num_vectors: int,
        embedding_dim: int,
        num_blocks: int,
        layer_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        width = num_vectors * embedding_dim
        self.norm = nn.LayerNorm(embedding_dim)
        self.blocks = nn.ModuleList(MaskBlock(width, in_features, layer_sizes[0]) for _ in range(num_blocks))
        self.over = OverArch(num_blocks * layer_sizes[0], layer_sizes[1:])

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Score a batch.

        Args:
            features: ``[B, N]``, the dense features and the flat vectors.
            vectors: ``[B, F, D]``.
        """
        normed = self.norm(vectors).flatten(1)
        logits: Tensor = self.over(torch.cat([block(normed, features) for block in self.blocks], dim=1))
        return logits
