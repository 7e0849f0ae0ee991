from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recsys.as_torchrec.datasets import criteo
from recsys.as_torchrec.datasets.criteo import BinaryCriteoUtils, InMemoryBinaryCriteoIterDataPipe
from recsys.as_torchrec.datasets.random_batches import RandomRecDataset

theirs = pytest.importorskip("torchrec.datasets.random", reason="torchrec is not installed (group: peer)")
their_criteo = pytest.importorskip("torchrec.datasets.criteo")
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


def _files(folder: Path) -> dict[str, list[str]]:
    random = np.random.default_rng(0)
    paths: dict[str, list[str]] = {"dense_paths": [], "sparse_paths": [], "labels_paths": []}
    for day, length in enumerate((9, 14)):
        parts = {
            "dense": random.normal(size=(length, 13)).astype(np.float32),
            "sparse": random.integers(0, 1 << 31, (length, 26), dtype=np.int64),
            "labels": random.integers(0, 2, (length, 1), dtype=np.int32),
        }
        for name, array in parts.items():
            paths[f"{name}_paths"].append(str(folder / f"{day}_{name}.npy"))
            np.save(paths[f"{name}_paths"][-1], array)
    return paths


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_last": True},
        {"shuffle_batches": True},
        {"shuffle_training_set": True, "shuffle_training_set_random_seed": 3},
        {"mmap_mode": True, "hashes": list(range(5, 31))},
        {"stage": "val", "hashes": [9] * 26},
        {"stage": "test"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (2, 4), (2, 11), (3, 2)])
def test_criteo_batches_are_theirs(
    tmp_path: Path, options: dict[str, Any], world_size: int, batch_size: int
) -> None:
    files = _files(tmp_path)
    for rank in range(world_size):
        arguments = {"stage": "train", **files, "batch_size": batch_size, "rank": rank, **options}
        # Theirs draws from NumPy's global state.
        peer = their_criteo.InMemoryBinaryCriteoIterDataPipe(**arguments, world_size=world_size)
        their = list(peer)
        ours = InMemoryBinaryCriteoIterDataPipe(**arguments, world_size=world_size)
        assert len(ours) == len(their)
        for mine, expected in zip(ours, their, strict=True):
            assert torch.equal(mine.dense_features, expected.dense_features)
            assert torch.equal(mine.labels, expected.labels)
            assert mine.labels.dtype == expected.labels.dtype
            assert torch.equal(mine.sparse_features.values(), expected.sparse_features.values())
            assert torch.equal(mine.sparse_features.lengths(), expected.sparse_features.lengths())
            assert mine.sparse_features.keys() == expected.sparse_features.keys()


@pytest.mark.parametrize("last_row", [None, 10, 15])
def test_row_ranges_are_theirs(last_row: int | None) -> None:
    for world_size in (1, 2, 3, 7):
        for rank in range(world_size):
            arguments = ([4, 1, 6, 9], rank, world_size, 3, last_row)
            expected = their_criteo.BinaryCriteoUtils.get_file_row_ranges_and_remainder(*arguments)
            assert BinaryCriteoUtils.get_file_row_ranges_and_remainder(*arguments) == expected


def test_names_of_columns_are_theirs() -> None:
    for name in ("DEFAULT_COLUMN_NAMES", "DEFAULT_CAT_NAMES", "DAYS", "TOTAL_TRAINING_SAMPLES"):
        assert getattr(criteo, name) == getattr(their_criteo, name)
