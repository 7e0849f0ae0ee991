"""Models that retrieve items: what they are made of, and what cannot be one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.managed import ManagedCollisionEmbeddingBagCollection
from recsys.models.click import build_dlrm
from recsys.models.retrieval import bags_with, item_digest, retrieval_model
from recsys.models.zoo import build_two_tower, towers_of
from tests.support.models.two_towers import two_towers, vectors_of

_TABLE = {"name": "t", "num_embeddings": 9, "embedding_dim": 4, "feature_names": ["f"]}


def test_a_part_of_a_collection_maps_the_raw_ids_that_it_needs() -> None:
    bags: Any = towers_of(two_towers("mixed")).sparse_arch.embedding_bag_collection
    user: Any = bags_with(bags, ["user", "query"])
    assert isinstance(user, ManagedCollisionEmbeddingBagCollection)
    assert [(t.name, t.feature_names) for t in user.embedding_bag_configs()] == [
        ("users", ["user"]),
        ("words", ["query"]),
    ]
    assert list(user.managed_collision_collection.managed_collision_modules()) == ["users"]
    item: Any = bags_with(bags, ["item", "title"])
    assert not isinstance(item, ManagedCollisionEmbeddingBagCollection)
    assert [t.feature_names for t in item.embedding_bag_configs()] == [["title"], ["item"]]
    assert [t.feature_names for t in bags.embedding_bag_configs()] == [["user"], ["query", "title"], ["item"]]


def _dense_user() -> Any:
    return build_two_tower(
        tables=[_TABLE], dense_in_features=2, item_features=["f"], tower_layer_sizes=[8, 6]
    )


def _dlrm() -> Any:
    return build_dlrm(
        tables=[_TABLE], dense_in_features=2, dense_arch_layer_sizes=[4], over_arch_layer_sizes=[8, 1]
    )


@pytest.mark.parametrize(
    ("make", "vectors", "k", "text"),
    [
        (_dlrm, torch.ones(5, 6), 1, "model: got a DLRM, which has no towers"),
        (_dense_user, torch.ones(5, 6), 1, "sparse features \\['f'\\], which are all the items'"),
        (two_towers, torch.ones(5, 6), 0, "top_k: got 0, expected 1 to 5"),
        (two_towers, torch.ones(5, 6), 6, "top_k: got 6, expected 1 to 5"),
        (two_towers, torch.ones(5, 7), 1, "\\[5, 7\\], expected torch.float32 \\[N, 6\\]"),
        (two_towers, torch.ones(5, 6).double(), 1, "torch.float64 \\[5, 6\\], expected torch.float32"),
        (two_towers, torch.tensor([[0.0] * 6, [torch.inf] * 6]), 1, "row 1 has NaN or infinite numbers"),
    ],
    ids=["no towers", "no user", "no items", "k", "width", "dtype", "infinite"],
)
def test_what_does_not_fit(make: Any, vectors: Tensor, k: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        retrieval_model(make(), vectors, k)


@pytest.mark.parametrize("kind", ["index", "zero_collision"])
def test_the_digest_follows_what_the_vectors_are_made_of(kind: str) -> None:
    towers = towers_of(two_towers(kind))
    before = item_digest(towers)
    assert item_digest(towers_of(two_towers(kind))) == before
    tensors = dict(towers.named_parameters())
    found = {}
    for name in tensors:
        with torch.no_grad():
            tensors[name].view(-1)[-1] += 1
        found[name] = item_digest(towers) != before
        before = item_digest(towers)
    assert {name for name, changed in found.items() if changed} == {
        name for name in tensors if ".item" in name or ".words." in name
    }


def test_the_digest_follows_the_rows_of_raw_ids() -> None:
    model = two_towers("zero_collision")
    towers, before = towers_of(model), vectors_of(model, "zero_collision")
    digest = item_digest(towers)
    modules: Any = towers.sparse_arch.embedding_bag_collection
    rows = modules.managed_collision_collection.managed_collision_modules()["items"].rows
    rows[:2] = rows[:2].flip(0)
    assert not torch.equal(vectors_of(model, "zero_collision"), before)
    assert item_digest(towers) != digest
