"""A small two-tower model, users, items, and the oracle: the pair scorer's logit for every user and item.

Shape letters: B users, N items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys import KeyedJaggedTensor
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.inputs.signature import Signature
from recsys.managed import MCHManagedCollisionModule, VocabularyModule
from recsys.models.click import ClickModel
from recsys.models.zoo import build_two_tower, towers_of
from tests.support.helpers import kjt_of

NUM_ITEMS = 300
Bags = dict[str, list[list[int]]]
#: How raw IDs become rows in each kind of model; "mixed" maps those of the users' own table alone.
KINDS = ("index", "vocabulary", "zero_collision", "mixed")
# "words" holds the users' queries and the items' titles.
_TABLES = {"users": ("user",), "words": ("query", "title"), "items": ("item",)}
_ROWS = {"users": 50, "words": 40, "items": NUM_ITEMS + 1}
_MANAGED = {
    "index": {},
    "vocabulary": dict.fromkeys(_TABLES, "vocabulary"),
    "zero_collision": dict.fromkeys(_TABLES, "zero_collision"),
    "mixed": {"users": "zero_collision"},
}


def two_towers(kind: str = "index", *, dense: bool = True) -> ClickModel:
    """Return an untrained model whose managed tables know their IDs."""
    ids = _MANAGED[kind]
    schema = Schema(
        labels=(LabelColumn(name="click"),),
        dense=(DenseColumn(name="age", missing=30.0, std=20.0), DenseColumn(name="pro")) if dense else (),
        tables=tuple(
            TableSpec(name=name, num_embeddings=_ROWS[name], feature_names=names, ids=ids.get(name, "index"))
            for name, names in _TABLES.items()
        ),
    )
    managed = {
        "vocabulary": {"eviction": "none"},
        "zero_collision": {"eviction": "lfu", "interval": 1},
    }
    torch.manual_seed(0)
    model = build_two_tower(
        tables=[
            {
                "name": table.name,
                "num_embeddings": table.num_embeddings,
                "embedding_dim": 8,
                "feature_names": table.feature_names,
                **({"managed": managed[table.ids]} if table.is_mapped else {}),
            }
            for table in schema.tables
        ],
        dense_in_features=len(schema.dense),
        item_features=["item", "title"],
        tower_layer_sizes=[16, 6],
        inputs=schema.to_json(),
    )
    for path, module in model.named_modules():
        if isinstance(module, MCHManagedCollisionModule):
            known = torch.tensor([_raw(i) for i in range(_ROWS[path.rsplit(".", 1)[-1]] - 1)])
            if isinstance(module, VocabularyModule):
                module.set_ids(known)
            else:
                module.profile(known)
    return model.eval()


def _raw(number: int) -> int:
    return number * 1_000_003 - 17


def _ids(kind: str, feature: str, numbers: list[list[int]]) -> list[list[int]]:
    table = next(name for name, features in _TABLES.items() if feature in features)
    if table not in _MANAGED[kind]:
        return [[number % _ROWS[table] for number in bag] for bag in numbers]
    return [[_raw(number) for number in bag] for bag in numbers]


def users_of(kind: str, num_users: int) -> tuple[Tensor, Bags]:
    """Return dense features ``[B, 2]``, some missing, and bags; managed tables do not know all of the users."""
    dense = torch.randn(num_users, 2, generator=torch.Generator().manual_seed(1))
    dense[::5, 0] = torch.nan
    bags = {
        "user": [[i * 3] for i in range(num_users)],
        "query": [list(range(i, i + i % 4)) for i in range(num_users)],
    }
    return dense, {name: _ids(kind, name, numbers) for name, numbers in bags.items()}


def item_bags(kind: str) -> Bags:
    """Return the bags of the N items."""
    bags = {
        "item": [[i] for i in range(NUM_ITEMS)],
        "title": [[i % 37, i % 11, i % 40] for i in range(NUM_ITEMS)],
    }
    return {name: _ids(kind, name, numbers) for name, numbers in bags.items()}


def vectors_of(model: ClickModel, kind: str) -> Tensor:
    """Return the items' vectors ``[N, D]``."""
    nobody: Bags = {"user": [[]] * NUM_ITEMS, "query": [[]] * NUM_ITEMS}
    with torch.no_grad():
        return towers_of(model).item_vectors(_features({**nobody, **item_bags(kind)}))


def all_scores(model: ClickModel, kind: str, users: tuple[Tensor, Bags]) -> npt.NDArray[np.float32]:
    """Return the pair scorer's logits ``[B, N]``: each user with each item, pair by pair."""
    dense, bags = users
    num_users = len(dense)
    pairs = {name: [bag for bag in of for _ in range(NUM_ITEMS)] for name, of in bags.items()}
    pairs |= {name: of * num_users for name, of in item_bags(kind).items()}
    columns = None if not model.dense_widths else dense.repeat_interleave(NUM_ITEMS, dim=0)
    with torch.no_grad():
        return model.logits(columns, _features(pairs)).view(num_users, NUM_ITEMS).numpy()


def inputs_of(signature: Signature, users: tuple[Tensor, Bags]) -> list[Tensor]:
    """Return the arguments of an artifact's ``forward`` for users."""
    dense, bags = users
    features = kjt_of({use.name: bags[use.name] for use in signature.sparse})
    return [*([dense] if signature.dense else []), features.lengths(), features.values()]


def _features(bags: Bags) -> KeyedJaggedTensor:
    return kjt_of({name: bags[name] for names in _TABLES.values() for name in names})


def check_best(found: dict[str, Any], scores: npt.NDArray[np.float32], error: float) -> npt.NDArray[np.int64]:
    """Check that an answer holds the best items of each user, where the scores are off by up to ``error``.

    Args:
        found: ``scores`` and ``items``, ``[B, K]`` each.
        scores: The oracle's, ``[B, N]``.
        error: The permitted difference; items that are no further apart may change places.

    Returns:
        The items ``[B, K]``.
    """
    got, items = (np.asarray(found[name]) for name in ("scores", "items"))
    assert (got.dtype, items.dtype) == (np.float32, np.int64)
    best = -np.sort(-scores, axis=1)[:, : items.shape[1]]
    np.testing.assert_allclose(got, best, rtol=0, atol=error)
    np.testing.assert_allclose(np.take_along_axis(scores, items, axis=1), got, rtol=0, atol=error)
    assert all(len(set(row)) == len(row) for row in items.tolist())
    return items
