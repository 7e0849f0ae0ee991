"""DeepFM: a factorization machine over the features' vectors, beside a deep network.

Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction" (arXiv 1703.04247). The
first-order terms are a linear layer over the vectors, so that no second table of width 1 is needed.

Shape letters: B batch, D embedding dimension, F features, L labels, N width of the flat input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recsys.models.dlrm import is_trained
from recsys.modules.mlp import MLP


def pairwise_sum(vectors: Tensor) -> Tensor:
    """Return the sum of the products of all pairs of vectors, ``[B, F, D]`` to ``[B, D]``."""
    total = vectors.sum(dim=1)
    return 0.5 * (total * total - (vectors * vectors).sum(dim=1))


class _PairwiseSum(torch.autograd.Function):
    """``pairwise_sum``, whose gradient is made in one pass: of each vector, the sum of the others."""

    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor) -> Tensor:
        """Map ``[B, F, D]`` to ``[B, D]``."""
        return pairwise_sum(vectors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004 - as torch calls it
        """Keep the vectors."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Return the gradient of the vectors."""
        (vectors,) = ctx.saved_tensors
        others: Tensor = vectors.sum(dim=1, keepdim=True) - vectors
        return others * gradient.unsqueeze(1)


class FactorizedNetwork(nn.Module):
    """First- and second-order terms beside a deep network, to logits ``[B, L]``.

    Args:
        in_features: N.
        embedding_dim: D.
        num_labels: L.
        layer_sizes: Sizes of the deep layers.
    """

    def __init__(
        self, in_features: int, embedding_dim: int, num_labels: int, layer_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, num_labels)
        self.second_order = nn.Linear(embedding_dim, num_labels, bias=False)
        self.deep = MLP(in_features, layer_sizes)
        self.over = nn.Linear(layer_sizes[-1], num_labels, bias=False)

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Score a batch.

        Args:
            features: ``[B, N]``, the dense features and the flat vectors.
            vectors: ``[B, F, D]``.
        """
        if not torch.jit.is_scripting() and is_trained([vectors]):
            pairs = self._pairs_to_train(vectors)
        else:
            pairs = pairwise_sum(vectors)
        logits: Tensor = self.linear(features) + self.second_order(pairs) + self.over(self.deep(features))
        return logits

    @torch.jit.unused
    def _pairs_to_train(self, vectors: Tensor) -> Tensor:
        pairs: Tensor = _PairwiseSum.apply(vectors)  # type: ignore[no-untyped-call]
        return pairs
