"""Models over histories of items for the speed comparison: with the attention of SASRec, BST and HSTU.

Shape letters: B batch, D embedding dim, H heads, S longest history.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import recsys

DIM = 64
HEADS = 2
_SIZE = 50
_LAYERS = 2


class History(nn.Module):
    """A history of items and one item, of one table. A subclass says what the score is.

    Args:
        library: ``recsys`` or ``torchrec``: what collections come from.
        num_rows: Rows of the table.
        size: S.
    """

    features = ("history", "item")
    ids_per_feature = (_SIZE, 1)
    fewest_ids = (1, 1)

    def __init__(self, library: ModuleType, num_rows: int, size: int = _SIZE) -> None:
        super().__init__()
        self.size = size
        table = library.EmbeddingConfig(
            name="goods", embedding_dim=DIM, num_embeddings=num_rows, feature_names=["history", "item"]
        )
        self.items = library.EmbeddingCollection(tables=[table], device=torch.device("cpu"))
        self.positions = nn.Parameter(torch.randn(size, DIM) * 0.1)

    def history_of(self, found: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the history ``[B, S, D]``, where it has items ``[B, S]``, and the item ``[B, D]``."""
        history = found["history"].to_padded_dense(self.size)
        there = torch.arange(self.size).unsqueeze(0) < found["history"].lengths().unsqueeze(1)
        return history + self.positions, there, found["item"].to_padded_dense(1).squeeze(1)


class SelfAttentive(History):
    """Causal layers; the mean state scores the item, as in SASRec."""

    causal: Tensor

    def __init__(
        self, library: ModuleType, num_rows: int, size: int = _SIZE, num_layers: int = _LAYERS
    ) -> None:
        super().__init__(library, num_rows, size)
        self.layers = nn.ModuleList(_Block(size) for _ in range(num_layers))
        self.register_buffer("causal", torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        mask = (self.causal & there.unsqueeze(1)) | torch.eye(self.size, dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, mask.unsqueeze(1))
        state = (x * there.unsqueeze(2)).mean(dim=1)
        return {"score": torch.sigmoid((state * item).sum(dim=1) + dense.sum(dim=1))}


class Behavior(History):
    """One layer in both directions, and a network over all its vectors, as in BST."""

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__(library, num_rows)
        self.layer = _Block(_SIZE)
        self.over = nn.Sequential(nn.Linear((_SIZE + 1) * DIM, 256), nn.LeakyReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        x = self.layer(x, there.unsqueeze(1).unsqueeze(1)) * there.unsqueeze(2)
        joined = torch.cat((x.reshape(-1, _SIZE * DIM), item), dim=1)
        return {"score": torch.sigmoid(self.over(joined).squeeze(1) + dense.sum(dim=1))}


class Pointwise(History):
    """Layers whose attention is SiLU with a bias for each distance, as in HSTU."""

    causal: Tensor

    def __init__(
        self, library: ModuleType, num_rows: int, size: int = _SIZE, num_layers: int = _LAYERS
    ) -> None:
        super().__init__(library, num_rows, size)
        self.layers = nn.ModuleList(_PointwiseBlock(size) for _ in range(num_layers))
        self.over = nn.Linear(2 * DIM, 1)
        self.register_buffer("causal", torch.ones(size, size, dtype=torch.bool).tril())

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        mask = self.causal & there.unsqueeze(1)
        for layer in self.layers:
            x = layer(x, mask.unsqueeze(1))
        state = (x * there.unsqueeze(2)).mean(dim=1)
        return {
            "score": torch.sigmoid(self.over(torch.cat((state, item), dim=1)).squeeze(1) + dense.sum(dim=1))
        }


class _Block(nn.Module):
    """Attention ``[B, S, D]`` before a feed-forward network, with the norms in front."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.feed = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next states; ``mask`` is true where an item counts, ``[B, 1, S or 1, S]``."""
        parts = self.qkv(self.norm(x)).view(-1, self.size, 3, HEADS, DIM // HEADS)
        q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(-1, self.size, DIM))
        found: Tensor = x + self.feed(self.norm2(x))
        return found


class _PointwiseBlock(nn.Module):
    """Attention without a softmax ``[B, S, D]``."""

    distances: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.uvqk, self.out = nn.Linear(DIM, 4 * DIM), nn.Linear(DIM, DIM)
        self.norm, self.out_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.by_distance = nn.Parameter(torch.randn(2 * size - 1, HEADS) * 0.1)
        places = torch.arange(size)
        self.register_buffer("distances", places[:, None] - places[None, :] + size - 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next states; ``mask`` is 1 where an item counts, ``[B, 1, S, S]``."""
        joined = functional.silu(self.uvqk(self.norm(x)))
        u, v, q, k = (joined[:, :, i * DIM : (i + 1) * DIM] for i in range(4))
        q, k, v = (part.reshape(-1, self.size, HEADS, DIM // HEADS).transpose(1, 2) for part in (q, k, v))
        bias = self.by_distance[self.distances].permute(2, 0, 1)
        weights = functional.silu(q @ k.transpose(-1, -2) + bias) / self.size
        seen = (weights * mask) @ v
        found: Tensor = x + self.out(u * self.out_norm(seen.transpose(1, 2).reshape(-1, self.size, DIM)))
        return found
