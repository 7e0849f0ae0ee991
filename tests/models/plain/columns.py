"""Models of one float tensor, whose columns are IDs, numbers and places of histories, as DeepCTR-Torch has them.

Shape letters: B batch, D embedding dim, F fields, L places of a history, P pairs of fields.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Columns of X: four IDs, two numbers, six places of a history padded with zeros at its end, and its length.
IDS = ("user", "item", "category", "hour")
NUM_ROWS = {"user": 60, "item": 50, "category": 12, "hour": 24}
NUMBERS = slice(4, 6)
HISTORY = slice(6, 12)
LENGTH = slice(12, 13)
DIM = 8


class Columns(nn.Module):
    """A table for each ID column, read by its place in X; the history reads the table of items.

    Args:
        dim: D.
    """

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(NUM_ROWS[name], dim) for name in IDS})

    def fields(self, x: Tensor) -> list[Tensor]:
        """Return the rows of the ID columns, each ``[B, 1, D]``."""
        return [self.tables[name](x[:, i : i + 1].long()) for i, name in enumerate(IDS)]

    def history(self, x: Tensor) -> Tensor:
        """Return the mean of the history's rows, ``[B, 1, D]``; zeros if it is empty."""
        items = x[:, HISTORY].long()
        mask = (items != 0).float().unsqueeze(2)
        return (self.tables["item"](items) * mask).sum(1, keepdim=True) / (mask.sum(1, keepdim=True) + 1e-8)

    def stacked(self, x: Tensor) -> Tensor:
        """Return all fields, ``[B, F, D]``."""
        return torch.cat([*self.fields(x), self.history(x)], dim=1)


def tower(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class WideAndDeep(nn.Module):
    """Weights of a single column beside a network (Cheng et al., arXiv 1606.07792)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = Columns(1), Columns()
        self.wide_numbers = nn.Linear(2, 1)
        self.network = tower([5 * DIM + 2, 16, 1])

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities ``[B, 1]``."""
        return torch.sigmoid(self.linear(x) + self.network(self.flat(x)))

    def linear(self, x: Tensor) -> Tensor:
        """Return the sum of the wide weights, ``[B, 1]``; it is added to in place, as a user might."""
        found = x.new_zeros((x.shape[0], 1))
        found += self.wide.stacked(x).squeeze(-1).sum(1, keepdim=True)
        found += self.wide_numbers(x[:, NUMBERS])
        return found

    def flat(self, x: Tensor) -> Tensor:
        """Return all fields and numbers side by side."""
        return torch.cat([self.deep.stacked(x).flatten(1), x[:, NUMBERS]], dim=1)


class DeepFM(WideAndDeep):
    """A factorization machine over the tables of the network (Guo et al., arXiv 1703.04247)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities ``[B, 1]``."""
        fields = self.deep.stacked(x)
        squares = fields.sum(1) ** 2 - (fields**2).sum(1)
        return torch.sigmoid(self.linear(x) + 0.5 * squares.sum(1, keepdim=True) + self.network(self.flat(x)))


class XDeepFM(WideAndDeep):
    """A compressed interaction network (Lian et al., arXiv 1803.05170)."""

    def __init__(self, maps: Sequence[int] = (6, 4)) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(5 * before, after, 1) for before, after in itertools.pairwise([5, *maps])
        )
        self.out = nn.Linear(sum(maps), 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities ``[B, 1]``."""
        first = hidden = self.deep.stacked(x)
        sums = []
        for convolution in self.convolutions:
            outer = torch.einsum("bhd,bmd->bhmd", hidden, first)
            hidden = torch.relu(convolution(outer.reshape(x.shape[0], -1, DIM)))
            sums.append(hidden.sum(-1))
        return torch.sigmoid(self.linear(x) + self.out(torch.cat(sums, 1)) + self.network(self.flat(x)))


class AFM(nn.Module):
    """Attention over products of pairs of fields (Xiao et al., arXiv 1708.04617)."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = Columns(1), Columns()
        self.attention = nn.Sequential(nn.Linear(DIM, 4), nn.ReLU(), nn.Linear(4, 1, bias=False))
        self.out = nn.Parameter(torch.randn(DIM, 1) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities ``[B, 1]``."""
        fields = torch.split(self.deep.stacked(x), 1, dim=1)
        pairs = torch.cat([a * b for a, b in itertools.combinations(fields, 2)], dim=1)  # [B, P, D]
        weights = torch.softmax(self.attention(pairs), dim=1)
        linear = self.wide.stacked(x).squeeze(-1).sum(1, keepdim=True)
        return torch.sigmoid(linear + (weights * pairs).sum(1) @ self.out)


class DIN(nn.Module):
    """Attention of the target item over the history (Zhou et al., arXiv 1706.06978)."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = Columns()
        self.unit = tower([4 * DIM, 8, 1])
        self.network = tower([5 * DIM + 2, 16, 1])

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities ``[B, 1]``."""
        fields = self.columns.fields(x)
        history = self.columns.tables["item"](x[:, HISTORY].long())  # [B, L, D]
        target = fields[1].expand(-1, history.shape[1], -1)
        scores = self.unit(torch.cat([target, history, target - history, target * history], -1)).squeeze(-1)
        places = torch.arange(history.shape[1], device=x.device)
        mask = places.unsqueeze(0) < x[:, LENGTH].long()  # [B, L]
        scores = torch.where(mask, scores, torch.zeros_like(scores))
        pooled = scores.unsqueeze(1) @ history  # [B, 1, D]
        flat = torch.cat([*fields, pooled], dim=1).flatten(1)
        return torch.sigmoid(self.network(torch.cat([flat, x[:, NUMBERS]], dim=1)))


def batch(num_rows: int, seed: int) -> Tensor:
    """Return X, ``[B, 13]``."""
    drawn = torch.Generator().manual_seed(seed)
    ids = [torch.randint(NUM_ROWS[name], (num_rows, 1), generator=drawn) for name in IDS]
    lengths = torch.randint(0, 7, (num_rows, 1), generator=drawn)
    items = torch.randint(1, NUM_ROWS["item"], (num_rows, 6), generator=drawn)
    numbers = torch.rand(num_rows, 2, generator=drawn)
    return torch.cat([*ids, numbers, items * (torch.arange(6) < lengths), lengths], dim=1).float()
