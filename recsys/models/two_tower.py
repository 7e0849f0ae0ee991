"""Two towers: a user's vector and an item's, whose product is the logit.

The item tower never sees the user, so items' vectors are computed once and searched (``recsys.data.vectors``).

Shape letters: B batch, D width of the towers' vectors, N width of a tower's input.
"""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

from torch import Tensor, nn

from recsys.models.dlrm import OverArch


class TwoTowers(nn.Module):
    """Two networks of the same sizes and the scaled product of their vectors.

    Args:
        user_features: Width of the user tower's input.
        item_features: Width of the item tower's input.
        layer_sizes: Sizes of each tower's layers, at least two; the last one is D.

    Attributes:
        width: D.
    """

    def __init__(self, user_features: int, item_features: int, layer_sizes: Sequence[int]) -> None:
        super().__init__()
        self.user = OverArch(user_features, layer_sizes)
        self.item = OverArch(item_features, layer_sizes)
        self.width = layer_sizes[-1]

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Map the towers' inputs, ``[B, N]`` each, to logits ``[B, 1]``."""
        logits: Tensor = (self.user(user) * self.item_vectors(item)).sum(dim=1, keepdim=True)
        return logits

    def item_vectors(self, item: Tensor) -> Tensor:
        """Return the items' vectors ``[B, D]``, scaled so that their product with a user's is the logit."""
        vectors: Tensor = self.item(item) * self.width**-0.5
        return vectors
