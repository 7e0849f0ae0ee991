from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch

from recsys.data.datasets.random import RandomRecDataset

theirs = pytest.importorskip("torchrec.datasets.random", reason="torchrec is not installed (extra: peer)")
pytestmark = pytest.mark.peer


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"ids_per_feature": 3, "hash_size": 7},
        {"ids_per_features": [1, 4], "hash_sizes": [5, 60], "num_generated_batches": -1},
        {"ids_per_feature": 3, "min_ids_per_feature": 0, "num_dense": 2, "num_generated_batches": 2},
    ],
)
def test_random_batches_are_theirs(arguments: dict[str, Any]) -> None:
    ours, peer = (
        room(["a", "b"], 6, manual_seed=4, num_batches=5, **arguments)
        for room in (RandomRecDataset, theirs.RandomRecDataset)
    )
    pairs = list(zip(ours, islice(peer, 5), strict=True))
    assert len(pairs) == 5
    for mine, their in pairs:
        assert torch.equal(mine.dense_features, their.dense_features)
        assert torch.equal(mine.labels, their.labels)
        assert torch.equal(mine.sparse_features.values(), their.sparse_features.values())
        lengths = mine.sparse_features.lengths()
        assert torch.equal(lengths, their.sparse_features.lengths())
        assert lengths.dtype == their.sparse_features.lengths().dtype
