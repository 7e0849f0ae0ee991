from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recsys.as_torchrec.datasets.criteo import (
    CAT_FEATURE_COUNT,
    DEFAULT_CAT_NAMES,
    INT_FEATURE_COUNT,
    BinaryCriteoUtils,
    InMemoryBinaryCriteoIterDataPipe,
)


def _days(folder: Path, *lengths: int) -> dict[str, Any]:
    """Files whose rows are numbered from 0, in every column."""
    paths: dict[str, list[str]] = {"dense_paths": [], "sparse_paths": [], "labels_paths": []}
    first = 0
    for day, length in enumerate(lengths):
        rows = np.arange(first, first + length).reshape(-1, 1)
        first += length
        parts = {
            "dense": np.tile(rows, INT_FEATURE_COUNT).astype(np.float32),
            "sparse": rows + 1000 * np.arange(CAT_FEATURE_COUNT),
            "labels": (rows % 2).astype(np.int32),
        }
        for name, array in parts.items():
            paths[f"{name}_paths"].append(str(folder / f"day_{day}_{name}.npy"))
            np.save(paths[f"{name}_paths"][-1], array)
    return paths


def _rows(pipe: InMemoryBinaryCriteoIterDataPipe) -> list[list[int]]:
    return [batch.dense_features[:, 0].int().tolist() for batch in pipe]


@pytest.mark.parametrize("mmap_mode", [False, True])
def test_ranks_take_turns_through_the_files(tmp_path: Path, mmap_mode: bool) -> None:
    days = _days(tmp_path, 5, 8)
    pipes = [
        InMemoryBinaryCriteoIterDataPipe(
            "train", **days, batch_size=3, rank=r, world_size=2, mmap_mode=mmap_mode
        )
        for r in range(2)
    ]
    # One row is left over, too few for two ranks: the last batches share it with the round before.
    assert [_rows(pipe) for pipe in pipes] == [[[0, 1, 2], [6, 7, 8, 9]], [[3, 4, 5], [10, 11, 12]]]
    assert [len(pipe) for pipe in pipes] == [2, 2]
    batch = next(iter(pipes[1]))
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.sparse_features.keys() == DEFAULT_CAT_NAMES
    assert batch.sparse_features["cat_2"].values().tolist() == [2003, 2004, 2005]
    assert batch.sparse_features["cat_2"].lengths().tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"drop_last": True}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({}, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ({"stage": "val"}, [[0, 1, 2, 3], [4]]),
        ({"stage": "test"}, [[5, 6, 7, 8], [9]]),
    ],
)
def test_ends_and_halves(tmp_path: Path, options: dict[str, Any], expected: list[list[int]]) -> None:
    arguments = {"stage": "train", **_days(tmp_path, 10), "batch_size": 4, "rank": 0, "world_size": 1}
    pipe = InMemoryBinaryCriteoIterDataPipe(**{**arguments, **options})
    assert _rows(pipe) == expected
    assert len(pipe) == len(expected)


def test_shuffled_ranks_have_every_row_once(tmp_path: Path) -> None:
    days = _days(tmp_path, 5, 6)
    pipes = [
        InMemoryBinaryCriteoIterDataPipe(
            "train", **days, batch_size=4, rank=r, world_size=2, shuffle_training_set=True
        )
        for r in range(2)
    ]
    found = [[row for batch in _rows(pipe) for row in batch] for pipe in pipes]
    assert [len(rows) for rows in found] == [6, 5]
    assert sorted(found[0] + found[1]) == list(range(11)) != found[0] + found[1]


def test_ids_are_taken_modulo(tmp_path: Path) -> None:
    pipe = InMemoryBinaryCriteoIterDataPipe(
        "train", **_days(tmp_path, 4), batch_size=4, rank=0, world_size=1, hashes=[7] * 25 + [3]
    )
    features = next(iter(pipe)).sparse_features
    assert features["cat_1"].values().tolist() == [n % 7 for n in range(1000, 1004)]
    assert features["cat_25"].values().tolist() == [n % 3 for n in range(25000, 25004)]
    assert features.values().dtype == torch.int64


def test_rows_of_batches_are_shuffled_together(tmp_path: Path) -> None:
    pipe = InMemoryBinaryCriteoIterDataPipe(
        "train", **_days(tmp_path, 8), batch_size=8, rank=0, world_size=1, shuffle_batches=True
    )
    batch = next(iter(pipe))
    rows = batch.dense_features[:, 0].int()
    assert sorted(rows.tolist()) == list(range(8)) != rows.tolist()
    assert torch.equal(batch.sparse_features["cat_0"].values(), rows.long())
    assert torch.equal(batch.labels, rows % 2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stage": "all"}, "stage: got 'all'"),
        ({"hashes": [1]}, "hashes: got 1 numbers, expected 26"),
        ({"path_manager_key": "s3"}, "path_manager_key: got 's3'"),
        ({"world_size": 9}, "got 8 rows for 9 ranks"),
        ({"dense_paths": []}, r"got files of \[\], \[8\] and \[8\] rows"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    arguments = {"stage": "train", **_days(tmp_path, 8), "batch_size": 4, "rank": 0, "world_size": 1}
    with pytest.raises(ValueError, match=text):
        InMemoryBinaryCriteoIterDataPipe(**{**arguments, **options})


def test_files_of_other_shapes(tmp_path: Path) -> None:
    days = _days(tmp_path, 8)
    days["sparse_paths"] = days["dense_paths"]
    with pytest.raises(ValueError, match=r"dense.npy: got an array of shape \(8, 13\), expected \[N, 26\]"):
        InMemoryBinaryCriteoIterDataPipe("train", **days, batch_size=4, rank=0, world_size=1)


def test_parts_of_files(tmp_path: Path) -> None:
    (path,) = _days(tmp_path, 8)["dense_paths"]
    assert BinaryCriteoUtils.get_shape_from_npy(path) == (8, 13)
    assert BinaryCriteoUtils.load_npy_range(path, 2, 3)[:, 0].tolist() == [2, 3, 4]
    for start, num in ((8, 1), (2, 7), (-1, 1)):
        with pytest.raises(ValueError, match="expected rows of the 8"):
            BinaryCriteoUtils.load_npy_range(path, start, num)
