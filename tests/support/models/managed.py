"""A model with tables of all kinds of mappings, which meets other IDs in training.

Shape letters: N number of IDs.
"""

from __future__ import annotations

import copy
import random

import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.managed import (
    HashZchManagedCollisionModule,
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
    VocabularyModule,
)
from tests.support.helpers import bag, kjt_of

POOL = [2**63 - 1, -(2**63), *range(-20, 60), *random.Random(1).sample(range(-(2**62), 2**62 - 1), 60)]
USERS, WARES, WORDS = (f"bags._embedding_module.{name}" for name in ("users", "wares", "words"))


class Managed(nn.Module):
    """Tables of all kinds of mappings, a table that takes rows, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [
            bag("users", 12, 16, ["user", "friend"]),
            bag("days", 7, 16, ["day"]),
            bag("wares", 24, 16, ["ware"]),
            bag("words", 20, 16, ["word"]),
        ]
        modules = {
            "users": MCHManagedCollisionModule(12, None, LRU_EvictionPolicy(), 1),
            "wares": HashZchManagedCollisionModule(24, None, 2),
            "words": VocabularyModule(20),
        }
        modules["words"].set_ids(torch.tensor(POOL[:5]))
        self.bags = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables), ManagedCollisionCollection(modules, tables), embeddings_only=True
        )
        self.layer = nn.Linear(2, 16)

    def forward(self, price: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        """A score, and what it is made of."""
        pooled = self.bags(features)
        total = torch.relu(self.layer(price)) + pooled["user"] + pooled["friend"] * pooled["day"]
        return {"score": (total + pooled["ware"] + pooled["word"]).sum(dim=1), "user": pooled["user"]}


def trained(old: Managed, seed: int) -> Managed:
    """A copy that has met other IDs, whose rows have other numbers."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    new = copy.deepcopy(old)
    modules = new.bags.managed_collision_collection.managed_collision_modules()
    for table in ("users", "wares"):
        modules[table].train()(torch.tensor(rng.sample(POOL, rng.randrange(2, 12)), dtype=torch.int64))
    words = modules["words"]
    assert isinstance(words, VocabularyModule)
    words.set_ids(torch.tensor(rng.sample(POOL, rng.randrange(1, 19))))
    for table in new.bags.embedding_module.embedding_bags.values():
        moved = torch.rand(table.weight.shape[0], generator=generator) < 0.3
        table.weight.data[moved] += torch.randn(int(moved.sum()), 16, generator=generator)
    return new.eval()


def train_managed(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    """A step on raw IDs, some of them new."""
    rng = random.Random(seed)
    bags = {name: [[i] for i in rng.sample(POOL, 6)] for name in ("user", "friend", "ware", "word")}
    optimizer.zero_grad()
    features = kjt_of({**bags, "day": [[i] for i in range(6)]})
    model(torch.rand(6, 2), features)["score"].sum().backward()
    optimizer.step()


def batch() -> list[Tensor]:
    """All IDs of the pool, known or not."""
    bags = [[i] for i in POOL]
    features = kjt_of(
        {
            "user": bags,
            "friend": bags[::-1],
            "day": [[i % 7] for i in range(len(POOL))],
            "ware": bags,
            "word": bags,
        }
    )
    price = torch.randn(len(POOL), 2, generator=torch.Generator().manual_seed(0))
    return [price, features.lengths(), features.values()]
