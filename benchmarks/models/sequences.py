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

_DIM = 64
_HEADS = 2
_SIZE = 50
_LAYERS = 2


class History(nn.Module):
    """A history of items and one item, of one table. A subclass says what the score is.

    Args:
        library: ``recsys`` or ``torchrec``: what collections come from.
        num_rows: Rows of the table.
    """

    features = ("history", "item")
    ids_per_feature = (_SIZE, 1)
    fewest_ids = (1, 1)

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__()
        table = library.EmbeddingConfig(
            name="goods", embedding_dim=_DIM, num_embeddings=num_rows, feature_names=["history", "item"]
        )
        self.items = library.EmbeddingCollection(tables=[table], device=torch.device("cpu"))
        self.positions = nn.Parameter(torch.randn(_SIZE, _DIM) * 0.1)

    def history_of(self, found: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the history ``[B, S, D]``, where it has items ``[B, S]``, and the item ``[B, D]``."""
        history = found["history"].to_padded_dense(_SIZE)
        there = torch.arange(_SIZE).unsqueeze(0) < found["history"].lengths().unsqueeze(1)
        return history + self.positions, there, found["item"].to_padded_dense(1).squeeze(1)


class SelfAttentive(History):
    """Causal layers; the mean state scores the item, as in SASRec."""

    causal: Tensor

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__(library, num_rows)
        self.layers = nn.ModuleList(_Block() for _ in range(_LAYERS))
        self.register_buffer("causal", torch.ones(_SIZE, _SIZE, dtype=torch.bool).tril())

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        mask = (self.causal & there.unsqueeze(1)) | torch.eye(_SIZE, dtype=torch.bool)
        for layer in self.layers:
            x = layer(x, mask.unsqueeze(1))
        state = (x * there.unsqueeze(2)).sum(dim=1)
        return {"score": torch.sigmoid((state * item).sum(dim=1) + dense.sum(dim=1))}


class Behavior(History):
    """One layer in both directions, and a network over all its vectors, as in BST."""

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__(library, num_rows)
        self.layer = _Block()
        self.over = nn.Sequential(nn.Linear((_SIZE + 1) * _DIM, 256), nn.LeakyReLU(), nn.Linear(256, 1))

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        x = self.layer(x, there.unsqueeze(1).unsqueeze(1)) * there.unsqueeze(2)
        joined = torch.cat((x.reshape(-1, _SIZE * _DIM), item), dim=1)
        return {"score": torch.sigmoid(self.over(joined).squeeze(1) + dense.sum(dim=1))}


class Pointwise(History):
    """Layers whose attention is SiLU with a bias for each distance, as in HSTU."""

    causal: Tensor

    def __init__(self, library: ModuleType, num_rows: int) -> None:
        super().__init__(library, num_rows)
        self.layers = nn.ModuleList(_PointwiseBlock() for _ in range(_LAYERS))
        self.over = nn.Linear(2 * _DIM, 1)
        self.register_buffer("causal", torch.ones(_SIZE, _SIZE).tril())

    def forward(self, dense: Tensor, features: recsys.KeyedJaggedTensor) -> dict[str, Tensor]:
        """Score a batch."""
        x, there, item = self.history_of(self.items(features))
        mask = self.causal * there.unsqueeze(1)
        for layer in self.layers:
            x = layer(x, mask.unsqueeze(1))
        state = (x * there.unsqueeze(2)).sum(dim=1)
        return {
            "score": torch.sigmoid(self.over(torch.cat((state, item), dim=1)).squeeze(1) + dense.sum(dim=1))
        }


class _Block(nn.Module):
    """Attention ``[B, S, D]`` before a feed-forward network, with the norms in front."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(_DIM, 3 * _DIM), nn.Linear(_DIM, _DIM)
        self.norm, self.norm2 = nn.LayerNorm(_DIM), nn.LayerNorm(_DIM)
        self.feed = nn.Sequential(nn.Linear(_DIM, 2 * _DIM), nn.GELU(), nn.Linear(2 * _DIM, _DIM))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next states; ``mask`` is true where an item counts, ``[B, 1, S or 1, S]``."""
        parts = self.qkv(self.norm(x)).view(-1, _SIZE, 3, _HEADS, _DIM // _HEADS)
        q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(-1, _SIZE, _DIM))
        found: Tensor = x + self.feed(self.norm2(x))
        return found


class _PointwiseBlock(nn.Module):
    """Attention without a softmax ``[B, S, D]``."""

    distances: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.uvqk, self.out = nn.Linear(_DIM, 4 * _DIM), nn.Linear(_DIM, _DIM)
        self.norm, self.out_norm = nn.LayerNorm(_DIM), nn.LayerNorm(_DIM)
        self.by_distance = nn.Parameter(torch.randn(2 * _SIZE - 1, _HEADS) * 0.1)
        places = torch.arange(_SIZE)
        self.register_buffer("distances", places[:, None] - places[None, :] + _SIZE - 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the next states; ``mask`` is 1 where an item counts, ``[B, 1, S, S]``."""
        joined = functional.silu(self.uvqk(self.norm(x)))
        u, v, q, k = (joined[:, :, i * _DIM : (i + 1) * _DIM] for i in range(4))
        q, k, v = (part.reshape(-1, _SIZE, _HEADS, _DIM // _HEADS).transpose(1, 2) for part in (q, k, v))
        bias = self.by_distance[self.distances].permute(2, 0, 1)
        weights = functional.silu(q @ k.transpose(-1, -2) + bias) / _SIZE
        seen = (weights * mask) @ v
        found: Tensor = x + self.out(u * self.out_norm(seen.transpose(1, 2).reshape(-1, _SIZE, _DIM)))
        return found
