"""WuKong: stacked layers of a factorization machine beside a linear compression of the vectors.

Zhang et al., "Wukong: Towards a Scaling Law for Large-Scale Recommendation" (arXiv 2403.02545).

Shape letters: B batch, C vectors of a compression, D embedding dimension, F vectors of a layer's input, L labels,
R rank of the products, S vectors of a machine.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.models.dlrm import OverArch
from recsys.modules.mlp import MLP


class InteractionLayer(nn.Module):
    """``norm(machine ++ compression + residual)``, ``[B, F, D]`` to ``[B, S + C, D]``.

    The machine's layers read the products of the vectors with R mixtures of them.

    Args:
        num_vectors: F.
        embedding_dim: D.
        num_outputs: S and C, which are equal.
        rank: R.
        layer_sizes: Sizes of the machine's layers before its result.
    """

    def __init__(
        self, num_vectors: int, embedding_dim: int, num_outputs: int, rank: int, layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.num_outputs, self.dim = num_outputs, embedding_dim
        self.mixture = nn.Parameter(torch.empty(num_vectors, rank))
        self.compression = nn.Parameter(torch.empty(num_outputs, num_vectors))
        self.residual = nn.Parameter(torch.empty(2 * num_outputs, num_vectors))
        self.product_norm = nn.LayerNorm(num_vectors * rank)
        self.machine = nn.Sequential(
            MLP(num_vectors * rank, layer_sizes), nn.Linear(layer_sizes[-1], num_outputs * embedding_dim)
        )
        self.norm = nn.LayerNorm(embedding_dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the mixtures' weights."""
        for weight in (self.mixture, self.compression, self.residual):
            nn.init.xavier_uniform_(weight)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map ``[B, F, D]`` to ``[B, S + C, D]``."""
        mixtures = torch.matmul(vectors.transpose(1, 2), self.mixture)
        products = self.product_norm(torch.bmm(vectors, mixtures).flatten(1))
        machine = self.machine(products).view(-1, self.num_outputs, self.dim)
        found = torch.cat((machine, torch.matmul(self.compression, vectors)), dim=1)
        result: Tensor = self.norm(found + torch.matmul(self.residual, vectors))
        return result


class InteractionNetwork(nn.Module):
    """Interaction layers over the vectors and one of the dense features, and layers over them, to logits ``[B, L]``.

    Args:
        dense_width: Number of dense features; 0 for none.
        num_vectors: F of the first layer, without that of the dense features.
        embedding_dim: D.
        interaction: Number of layers, S (and C), R.
        layer_sizes: Sizes of the machines' layers and of those over all; the last one is L.
    """

    def __init__(
        self,
        dense_width: int,
        num_vectors: int,
        embedding_dim: int,
        interaction: tuple[int, int, int],
        layer_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        num_layers, num_outputs, rank = interaction
        self.dense = nn.Linear(dense_width, embedding_dim) if dense_width else None
        sizes = [num_vectors + bool(dense_width), *[2 * num_outputs] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            InteractionLayer(size, embedding_dim, num_outputs, rank, layer_sizes[:-1]) for size in sizes
        )
        self.over = OverArch(2 * num_outputs * embedding_dim, layer_sizes)

    def forward(self, dense_features: Tensor | None, vectors: Tensor) -> Tensor:
        """Score a batch.

        Args:
            dense_features: ``[B, dense_width]``; None without any.
            vectors: ``[B, F, D]``.
        """
        if self.dense is not None:
            vectors = torch.cat((self.dense(dense_features).unsqueeze(1), vectors), dim=1)
        for layer in self.layers:
            vectors = layer(vectors)
        logits: Tensor = self.over(vectors.flatten(1))
        return logits
