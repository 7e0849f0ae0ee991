"""FinalMLP: two streams of layers, each over features that a gate selects, joined by a bilinear form of several heads.

Mao et al., "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction" (arXiv 2304.00902). The first stream's gate
reads the user's features and the second one's the items'; where the items' are not named, both read all.

Shape letters: B batch, H heads, K width of a stream's result, L labels, N width of the flat input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.modules.mlp import MLP


class FeatureGate(nn.Module):
    """Multiplies each number of the input with one between 0 and 2, which a context decides.

    Args:
        context_features: Width of the context.
        in_features: N.
    """

    def __init__(self, context_features: int, in_features: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(context_features, in_features), nn.ReLU(), nn.Linear(in_features, in_features)
        )

    def forward(self, features: Tensor, context: Tensor) -> Tensor:
        """Map ``[B, N]`` to ``[B, N]``."""
        return features * (2.0 * torch.sigmoid(self.layers(context)))


class BilinearFusion(nn.Module):
    """Linear layers over both streams and the products of their heads, to ``[B, L]``.

    Args:
        width: K.
        num_heads: H, a divisor of K.
        num_labels: L.
    """

    def __init__(self, width: int, num_heads: int, num_labels: int) -> None:
        super().__init__()
        self.size = width // num_heads
        self.num_labels = num_labels
        self.first = nn.Linear(width, num_labels)
        self.second = nn.Linear(width, num_labels, bias=False)
        self.heads = nn.ModuleList(
            nn.Linear(self.size, self.size * num_labels, bias=False) for _ in range(num_heads)
        )

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Map ``[B, K]`` twice to ``[B, L]``."""
        logits: Tensor = self.first(first) + self.second(second)
        for i, head in enumerate(self.heads):
            one = head(first.narrow(1, i * self.size, self.size)).view(-1, self.num_labels, self.size)
            other = second.narrow(1, i * self.size, self.size).unsqueeze(1)
            logits = logits + (one * other).sum(dim=2)
        return logits


class TwoStreams(nn.Module):
    """Two gated streams and their fusion, to logits ``[B, L]``.

    Args:
        in_features: N.
        context_features: Widths of the two gates' contexts.
        layer_sizes: Sizes of each stream's layers; the last one is K.
        num_heads: H.
        num_labels: L.
    """

    def __init__(
        self,
        in_features: int,
        context_features: tuple[int, int],
        layer_sizes: Sequence[int],
        num_heads: int,
        num_labels: int,
    ) -> None:
        super().__init__()
        first, second = context_features
        self.first_gate = FeatureGate(first, in_features)
        self.second_gate = FeatureGate(second, in_features)
        self.first = MLP(in_features, layer_sizes)
        self.second = MLP(in_features, layer_sizes)
        self.fusion = BilinearFusion(layer_sizes[-1], num_heads, num_labels)

    def forward(self, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Score a batch.

        Args:
            features: ``[B, N]``.
            first: The context of the first gate.
            second: That of the second.
        """
        logits: Tensor = self.fusion(
            self.first(self.first_gate(features, first)), self.second(self.second_gate(features, second))
        )
        return logits
