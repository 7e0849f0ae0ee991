from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from recsys.as_torchrec.datasets.batch import Batch
from recsys.as_torchrec.datasets.random_batches import RandomRecDataset


def _same(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.dense_features, b.dense_features)
        and torch.equal(a.labels, b.labels)
        and torch.equal(a.sparse_features.values(), b.sparse_features.values())
        and torch.equal(a.sparse_features.lengths(), b.sparse_features.lengths())
    )


def test_shapes_and_ranges() -> None:
    dataset = RandomRecDataset(
        ["a", "b"],
        64,
        hash_sizes=[3, 1000],
        ids_per_features=[1, 4],
        min_ids_per_features=[1, 0],
        num_dense=5,
        num_batches=2,
    )
    batches = list(dataset)
    assert len(batches) == len(dataset) == 2
    for batch in batches:
        assert batch.dense_features.shape == (64, 5)
        assert set(batch.labels.tolist()) == {0, 1}
        features = batch.sparse_features.to_dict()
        assert features["a"].lengths().tolist() == [1] * 64
        assert set(features["a"].values().tolist()) == {0, 1, 2}
        assert set(features["b"].lengths().tolist()) == {0, 1, 2, 3, 4}
        assert 100 <= int(features["b"].values().max()) < 1000
    assert not _same(*batches)


@pytest.mark.parametrize(("num_generated", "repeats"), [(2, True), (-1, False)])
def test_batches_repeat_where_they_are_made_once(num_generated: int, repeats: bool) -> None:
    dataset = RandomRecDataset(["a"], 8, num_generated_batches=num_generated)
    first, _, third = islice(dataset, 3)
    assert _same(first, third) == repeats
    assert _same(next(iter(dataset)), first) == repeats
    with pytest.raises(TypeError, match="no end"):
        len(dataset)


def test_seeds() -> None:
    first, same, other = (next(iter(RandomRecDataset(["a"], 8, manual_seed=seed))) for seed in (1, 1, 2))
    assert _same(first, same)
    assert not _same(first, other)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash_sizes": [1]}, "hash_sizes: got 1 numbers, expected 2, one for each key"),
        ({"ids_per_features": [1]}, "ids_per_features: got 1 numbers"),
        ({"min_ids_per_features": [1, 2, 3]}, "min_ids_per_features: got 3 numbers"),
        ({"ids_per_feature": 2, "min_ids_per_feature": 3}, "got 3 to 2 for 'a'"),
        ({"num_generated_batches": 0}, "num_generated_batches: got 0"),
    ],
)
def test_numbers_that_do_not_fit(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RandomRecDataset(["a", "b"], 4, **arguments)
