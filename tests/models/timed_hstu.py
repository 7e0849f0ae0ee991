"""An HSTU that keeps its history jagged, after the public description of MLPerf's DLRMv3.

Positions count back from the last item, and times from the last one's; both give rows that are added to the history.

Shape letters: B batch, D embedding dim, H heads, L history length, N number of IDs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from recsys.ops import fbgemm


class TimedPositions(nn.Module):
    """Adds a row for the place and a row for the age of each item of a history."""

    def __init__(self, dim: int, size: int, num_places: int, num_ages: int) -> None:
        super().__init__()
        self.size, self.num_places, self.num_ages = size, num_places, num_ages
        self.by_place = nn.Parameter(torch.randn(num_places, dim) * 0.1)
        self.by_age = nn.Parameter(torch.randn(num_ages + 1, dim) * 0.1)

    def forward(self, rows: Tensor, offsets: Tensor, lengths: Tensor, times: Tensor) -> Tensor:
        """Return ``[N, D]``."""
        places = torch.arange(self.size, device=rows.device).expand(lengths.size(0), self.size)
        places = (lengths.unsqueeze(1) - places).clamp(min=0, max=self.num_places - 1)
        padded = fbgemm.jagged_to_padded_dense(times.unsqueeze(-1).float(), [offsets], [self.size], 0.0)
        padded = padded.squeeze(-1)
        last = padded.gather(1, (lengths - 1).clamp(min=0, max=self.size - 1).unsqueeze(1).long())
        ages = torch.sqrt((last - padded).clamp(min=1e-6) / 60.0).clamp(min=0, max=self.num_ages).long()
        added = torch.index_select(self.by_place, 0, places.reshape(-1)) + torch.index_select(
            self.by_age, 0, ages.view(-1)
        )
        dense = added.view(lengths.size(0), self.size, -1)
        found: Tensor = fbgemm.jagged_dense_elementwise_add_jagged_output(rows, [offsets], dense)[0]
        return found


class JaggedLayer(nn.Module):
    """Pointwise attention over a jagged history."""

    mask: Tensor

    def __init__(self, dim: int, heads: int, size: int) -> None:
        super().__init__()
        self.dim, self.heads, self.size = dim, heads, size
        self.uvqk_weight = nn.Parameter(torch.randn(dim, 4 * dim) * 0.2)
        self.uvqk_bias = nn.Parameter(torch.zeros(4 * dim))
        self.norm_weight, self.norm_bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("mask", torch.ones(size, size).tril().unsqueeze(0), persistent=False)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        """Return ``[N, D]``."""
        normed = functional.layer_norm(x, (self.dim,), self.norm_weight, self.norm_bias, 1e-6)
        uvqk = functional.silu(torch.addmm(self.uvqk_bias, normed, self.uvqk_weight))
        u, v, q, k = torch.split(uvqk, [self.dim] * 4, dim=1)
        q, k, v = (
            fbgemm.jagged_to_padded_dense(part, [offsets], [self.size], 0.0).view(
                -1, self.size, self.heads, self.dim // self.heads
            )
            for part in (q, k, v)
        )
        weights = functional.silu(torch.einsum("bnhd,bmhd->bhnm", q, k) * self.dim**-0.5) / self.size
        seen = torch.einsum("bhnm,bmhd->bnhd", weights * self.mask.unsqueeze(1), v).flatten(2)
        jagged = fbgemm.dense_to_jagged(seen, [offsets], x.size(0))[0]
        found: Tensor = x + self.out(functional.layer_norm(jagged, [self.dim]) * u)
        return found


class TimedHSTU(nn.Module):
    """Items, their actions and times; the last state scores a candidate for two tasks."""

    def __init__(self, dim: int = 8, size: int = 12, heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(21)
        self.size = size
        self.tables = EmbeddingCollection(
            tables=[
                EmbeddingConfig(
                    name="items", embedding_dim=dim, num_embeddings=50, feature_names=["item", "candidate"]
                ),
                EmbeddingConfig(
                    name="actions", embedding_dim=dim, num_embeddings=6, feature_names=["action"]
                ),
            ]
        )
        self.positions = TimedPositions(dim, size, num_places=10, num_ages=20)
        self.layers = nn.ModuleList([JaggedLayer(dim, heads, size) for _ in range(2)])
        self.tasks = nn.ModuleDict({task: nn.Linear(2 * dim, 1) for task in ("click", "like")})

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Return the scores ``[B]`` of each task."""
        found = self.tables(features)
        items = found["item"]
        offsets, lengths = items.offsets(), items.lengths()
        x = items.values() + found["action"].values()
        x = self.positions(x, offsets, lengths, features["time"].values())
        for layer in self.layers:
            x = layer(x, offsets)
        padded = fbgemm.jagged_to_padded_dense(x, [offsets], [self.size], 0.0)
        at = (lengths - 1).clamp(min=0, max=self.size - 1).view(-1, 1, 1).long()
        state = functional.normalize(padded.gather(1, at.expand(-1, 1, padded.size(2))).squeeze(1), dim=1)
        candidate = found["candidate"].to_padded_dense(1).squeeze(1)
        both = torch.cat([state, candidate], dim=1)
        return {task: head(both).squeeze(1) for task, head in self.tasks.items()}
