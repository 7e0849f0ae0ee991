"""Models of a dict of tensors by feature, as FuxiCTR has them: IDs ``[B]``, numbers ``[B]`` and histories ``[B, L]``.

Shape letters: B batch, D embedding dim, F fields, H heads, K experts, L places of a history.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models.plain.columns import DIM, IDS, NUM_ROWS, tower

# The history pads with the ID 0, whose row is zero.
_FIELDS = len(IDS) + 2
_FLAT = _FIELDS * DIM


class Fields(nn.Module):
    """A table for each feature; the history shares that of items, and is averaged over its items."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(NUM_ROWS[name], DIM, padding_idx=0) for name in IDS})
        self.price = nn.Linear(1, DIM, bias=False)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the fields, ``[B, F, D]``."""
        found = {name: table(inputs[name]) for name, table in self.tables.items()}
        found["price"] = self.price(inputs["price"].view(-1, 1))
        history = self.tables["item"](inputs["clicked"])
        count = (inputs["clicked"] > 0).sum(1, keepdim=True)
        found["clicked"] = history.sum(1) / (count + 1e-12)
        return torch.stack(list(found.values()), dim=1)


class DCNv2(nn.Module):
    """Cross layers of whole matrices beside a network (Wang et al., arXiv 2008.13535)."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = Fields()
        self.crosses = nn.ModuleList(nn.Linear(_FLAT, _FLAT) for _ in range(2))
        self.network = tower([_FLAT, 16, 8])
        self.out = nn.Linear(_FLAT + 8, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``y_pred``, ``[B, 1]``."""
        x = first = self.fields(inputs).flatten(1)
        for cross in self.crosses:
            x = x + first * cross(x)
        return {"y_pred": self.out(torch.cat([x, self.network(first)], -1)).sigmoid()}


class AutoInt(nn.Module):
    """Self-attention over fields (Song et al., arXiv 1810.11921)."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.fields, self.heads = Fields(), heads
        self.projections = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.out = nn.Linear(_FLAT, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``y_pred``, ``[B, 1]``."""
        x = self.fields(inputs)
        query, key, value, residual = (projection(x) for projection in self.projections)
        query, key, value = (
            torch.cat(one.chunk(self.heads, dim=-1), dim=0) for one in (query, key, value)
        )  # [H B, F, D / H]
        found = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
        found = torch.cat(found.chunk(self.heads, dim=0), dim=-1)
        return {"y_pred": self.out(torch.relu(found + residual).flatten(1)).sigmoid()}


class AFN(nn.Module):
    """Products of powers of fields, as sums of logarithms (Cheng et al., arXiv 1909.03276)."""

    def __init__(self, neurons: int = 4) -> None:
        super().__init__()
        self.fields = Fields()
        self.powers = nn.Linear(_FIELDS, neurons)
        self.norm_logs, self.norm_products = nn.BatchNorm1d(_FIELDS), nn.BatchNorm1d(neurons)
        self.network = tower([neurons * DIM, 8, 1])

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``y_pred``, ``[B, 1]``."""
        logs = self.norm_logs(torch.log(torch.clamp(self.fields(inputs).abs(), min=1e-5)))
        products = torch.exp(self.powers(logs.transpose(2, 1))).transpose(2, 1)
        return {"y_pred": self.network(self.norm_products(products).flatten(1)).sigmoid()}


class FinalMLP(nn.Module):
    """Two networks, each with a gate by some features, and a bilinear fusion (Mao et al., arXiv 2304.00902)."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.fields, self.heads = Fields(), heads
        self.gate = nn.Sequential(nn.Linear(DIM, _FLAT), nn.Sigmoid())
        self.bias = nn.Parameter(torch.randn(1, DIM) * 0.2)
        self.first, self.second = tower([_FLAT, 16, 8]), tower([_FLAT, 8])
        self.of_first, self.of_second = nn.Linear(8, 1), nn.Linear(8, 1)
        self.both = nn.Parameter(torch.randn(heads, 8 // heads, 8 // heads) * 0.3)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``y_pred``, ``[B, 1]``."""
        flat = self.fields(inputs).flatten(1)
        first = self.first(flat * self.gate(self.fields.tables["user"](inputs["user"])) * 2)
        second = self.second(flat * self.gate(self.bias.repeat(flat.size(0), 1)) * 2)
        heads_first = first.view(-1, self.heads, 8 // self.heads)
        heads_second = second.view(-1, self.heads, 8 // self.heads)
        both = torch.einsum("bhx,hxy,bhy->b", heads_first, self.both, heads_second)
        return {"y_pred": (self.of_first(first) + self.of_second(second) + both.unsqueeze(1)).sigmoid()}


class MaskNet(nn.Module):
    """Blocks that a mask of the whole instance multiplies, one after the other (Wang et al., arXiv 2102.07619)."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = Fields()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(_FIELDS))
        widths = (_FLAT, 16, 8)
        self.masks = nn.ModuleList(tower([_FLAT, 12, width]) for width in widths[:-1])
        self.hidden = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b, bias=False), nn.LayerNorm(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.out = nn.Linear(8, 1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``y_pred``, ``[B, 1]``."""
        fields = self.fields(inputs)
        instance = fields.flatten(1)
        x = torch.cat([norm(fields[:, i]) for i, norm in enumerate(self.norms)], dim=1)
        for mask, hidden in zip(self.masks, self.hidden, strict=True):
            x = hidden(mask(instance) * x)
        return {"y_pred": self.out(x).sigmoid()}


class MMoE(nn.Module):
    """Experts that gates mix for each task (Ma et al., KDD 2018)."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.fields = Fields()
        self.experts = nn.ModuleList(tower([_FLAT, 16, 8]) for _ in range(experts))
        self.gates = nn.ModuleDict({task: nn.Linear(_FLAT, experts) for task in ("click", "buy")})
        self.towers = nn.ModuleDict({task: tower([8, 4, 1]) for task in ("click", "buy")})

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a probability ``[B]`` for each task."""
        flat = self.fields(inputs).flatten(1)
        experts = torch.stack([functional.relu(expert(flat)) for expert in self.experts], dim=1)  # [B, K, 8]
        found = {}
        for task, gate in self.gates.items():
            mixed = torch.einsum("bk,bkd->bd", gate(flat).softmax(-1), experts)
            found[f"{task}_pred"] = self.towers[task](mixed).sigmoid().squeeze(-1)
        return found


def batch(num_rows: int, seed: int) -> dict[str, Tensor]:
    """Return the features."""
    drawn = torch.Generator().manual_seed(seed)
    found = {name: torch.randint(1, NUM_ROWS[name], (num_rows,), generator=drawn) for name in IDS}
    lengths = torch.randint(0, 7, (num_rows, 1), generator=drawn)
    items = torch.randint(1, NUM_ROWS["item"], (num_rows, 6), generator=drawn)
    numbers = torch.rand(num_rows, generator=drawn)
    return {**found, "price": numbers, "clicked": items * (torch.arange(6) < lengths)}
