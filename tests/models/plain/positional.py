"""Models of positional tensors: IDs of fields ``[B, F]``, of users ``[B]``, and histories ``[B, L]``.

Shape letters: B batch, D embedding dim, F fields, L places of a history.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tests.models.plain.columns import DIM, NUM_ROWS, tower

_SIZES = tuple(NUM_ROWS.values())
_FIELDS = len(_SIZES)


class Offsets(nn.Module):
    """One table of all fields, whose IDs begin where those of the field before end.

    Args:
        dim: D.
    """

    offsets: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(_SIZES), dim)
        begins = [0, *itertools.accumulate(_SIZES)][:-1]
        self.register_buffer("offsets", torch.tensor(begins), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return rows, ``[B, F, D]``."""
        return self.table(ids + self.offsets)


class FM(nn.Module):
    """A factorization machine (Rendle, ICDM 2010)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = Offsets(1), Offsets(DIM)
        self.bias = nn.Parameter(torch.tensor([0.1]))

    def forward(self, ids: Tensor) -> Tensor:
        """Return probabilities ``[B]``."""
        factors = self.factors(ids)
        pairs = (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(-1, keepdim=True) / 2
        return torch.sigmoid(self.linear(ids).sum(1) + self.bias + pairs).squeeze(1)


class DCN(nn.Module):
    """Cross layers of vectors beside a network (Wang et al., arXiv 1708.05123)."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.fields, width = Offsets(DIM), _FIELDS * DIM
        self.weights = nn.ModuleList(nn.Linear(width, 1, bias=False) for _ in range(layers))
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(width) * 0.1) for _ in range(layers))
        self.network = tower([width, 16, 8])
        self.out = nn.Linear(width + 8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return probabilities ``[B]``."""
        x = first = self.fields(ids).view(-1, _FIELDS * DIM)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = first * weight(x) + bias + x
        return torch.sigmoid(self.out(torch.cat([x, self.network(first)], dim=1)).squeeze(1))


class WuKong(nn.Module):
    """Layers of factorization machines and linear combinations of fields (Zhang et al., arXiv 2403.02545)."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = Offsets(DIM)
        self.compressed = nn.Linear(_FIELDS, 3, bias=False)
        self.machine = nn.Sequential(nn.LayerNorm(_FIELDS * 3), nn.Linear(_FIELDS * 3, 2 * DIM), nn.ReLU())
        self.combined = nn.Linear(_FIELDS, 2, bias=False)
        self.norm = nn.LayerNorm(DIM)
        self.network = tower([_FIELDS * DIM, 8, 1])

    def forward(self, ids: Tensor) -> Tensor:
        """Return probabilities ``[B]``."""
        x = self.fields(ids)
        products = x @ self.compressed(x.transpose(1, 2))  # [B, F, 3]
        machine = self.machine(products.flatten(1)).view(-1, 2, DIM)
        combined = self.combined(x.transpose(1, 2)).transpose(1, 2)
        x = self.norm(torch.cat([machine, combined], dim=1) + x)
        return torch.sigmoid(self.network(x.flatten(1)).squeeze(1))


class UserTower(nn.Module):
    """The user's tower of two (Huang et al., CIKM 2013): a bag of the history, and the user."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(NUM_ROWS["user"], DIM)
        self.items = nn.EmbeddingBag(NUM_ROWS["item"], DIM, mode="mean", padding_idx=0)
        self.network = tower([2 * DIM, 16, DIM])

    def forward(self, user: Tensor, history: Tensor) -> Tensor:
        """Return a vector of length 1, ``[B, D]``."""
        vector = self.network(torch.cat([self.users(user), self.items(history)], dim=-1))
        return nn.functional.normalize(vector, p=2.0, dim=-1)


def fields_batch(num_rows: int, seed: int) -> tuple[Tensor]:
    """Return IDs of fields, each from zero."""
    drawn = torch.Generator().manual_seed(seed)
    columns = [torch.randint(size, (num_rows,), generator=drawn) for size in _SIZES]
    return (torch.stack(columns, dim=1),)


def tower_batch(num_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return users and histories, some of them empty."""
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 7, (num_rows, 1), generator=drawn)
    items = torch.randint(1, NUM_ROWS["item"], (num_rows, 6), generator=drawn)
    users = torch.randint(NUM_ROWS["user"], (num_rows,), generator=drawn)
    return users, items * (torch.arange(6) < lengths)
