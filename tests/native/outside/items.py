"""A model with two large tables, and copies of it with other rows."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from tests.support.helpers import bag

NUM_DELTAS = 5
#: Enough for chunks of several nodes.
NUM_ITEMS, NUM_USERS = 2_000, 900


class Items(nn.Module):
    """Two tables, one of them of two features, beside a small one that stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = EmbeddingBagCollection(
            [
                bag("items", NUM_ITEMS, 16, ["item", "seen"]),
                bag("users", NUM_USERS, 24, ["user"]),
                bag("days", 7, 16, ["day"]),
            ]
        )
        self.layer = nn.Linear(16 + 16 + 24 + 16, 3)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """Scores, and a vector that shows wrong rows at once."""
        pooled = self.bags(features)
        return {"scores": self.layer(pooled.values()), "item": pooled["item"]}


def moved(old: Items, seed: int) -> Items:
    """A copy with other rows here and there."""
    new, generator = copy.deepcopy(old), torch.Generator().manual_seed(seed)
    for table in new.bags.embedding_bags.values():
        weight = table.weight
        rows = torch.rand(weight.shape[0], generator=generator) < 0.3
        weight.data[rows] += torch.randn(int(rows.sum()), weight.shape[1], generator=generator)
    return new
