"""Activations with weights, by TorchRec's names."""

# Annotations are not deferred: FX carries them into graphs, where TorchScript cannot read them as texts.

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class SwishLayerNorm(nn.Module):
    """The Swish function of a layer norm: ``x * sigmoid(LayerNorm(x))``.

    Args:
        input_dims: The sizes of the last dimensions, which are normalized over.
        device: Where the weights lie.
    """

    def __init__(
        self, input_dims: int | Sequence[int] | torch.Size, device: torch.device | None = None
    ) -> None:
        super().__init__()
        sizes = input_dims if isinstance(input_dims, int) else list(input_dims)
        self.norm = nn.Sequential(nn.LayerNorm(sizes, device=device), nn.Sigmoid())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map a tensor to one of the same shape."""
        gated: Tensor = input * self.norm(input)
        return gated
