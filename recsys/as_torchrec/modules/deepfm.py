"""The two parts of DeepFM over lists of vectors, by TorchRec's names.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (arXiv 1703.04247).

Shape letters: B batch, D embedding dimension, F features, N width of all vectors side by side.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

import torch
from torch import Tensor, fx, nn


def _side_by_side(embeddings: list[Tensor]) -> Tensor:
    return torch.cat([vectors.flatten(1) for vectors in embeddings], dim=1)


# Where a list is an input of a graph, FX cannot walk over it.
fx.wrap("_side_by_side")


class DeepFM(nn.Module):
    """A network over the vectors of all features side by side.

    Args:
        dense_module: The network, which takes ``[B, N]``.
    """

    def __init__(self, dense_module: nn.Module) -> None:
        super().__init__()
        self.dense_module = dense_module

    def forward(self, embeddings: list[Tensor]) -> Tensor:
        """Map vectors, each ``[B, F, D]`` or ``[B, D]`` of any F and D, to the network's result."""
        result: Tensor = self.dense_module(_side_by_side(embeddings))
        return result


class FactorizationMachine(nn.Module):
    """The sum of the products of all pairs of numbers in the vectors of all features."""

    def forward(self, embeddings: list[Tensor]) -> Tensor:
        """Map vectors, each ``[B, F, D]`` or ``[B, D]`` of any F and D, to ``[B, 1]``."""
        numbers = _side_by_side(embeddings)
        total = numbers.sum(dim=1, keepdim=True)
        return 0.5 * (total * total - (numbers * numbers).sum(dim=1, keepdim=True))
