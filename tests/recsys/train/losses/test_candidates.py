"""Candidates over ranks are those of one rank with the whole batch: the same losses, gradients and corrections.

Shape letters: D width of the vectors, M candidates.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed as dist

from recsys.data.examples import Bags, Examples
from recsys.data.next_items import ItemCounts, NextItemColumns, next_item_dataset
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.job import TrainJob, train_over_ranks
from recsys.train.losses.candidates import ItemPlaces, find_candidates, gathered_rows
from recsys.train.losses.negatives import Negatives
from recsys.train.progress import Window
from recsys.train.stepping.ranks import ONE_RANK, Ranks
from tests.support.ranks import live_pool

_ITEMS = ItemCounts(ids=np.array([2, 5, 7, 9]), counts=np.array([8, 4, 0, 4]))


def _rows_on(rank: int, _: int) -> tuple[list[list[float]], list[list[float]]]:
    """Two ranks with no row and three."""
    own = torch.arange(2.0 * 3 * rank).reshape(3 * rank, 2).requires_grad_()
    group = dist.group.WORLD
    assert group is not None
    gathered = gathered_rows(own, [0, 3], group)
    (gathered * torch.tensor([[1.0], [2.0], [3.0]]) * (rank + 1)).sum().backward()
    assert own.grad is not None
    return gathered.tolist(), own.grad.tolist()


def test_gathered_rows_get_the_gradients_of_all_ranks() -> None:
    (rows, none), (same, grads) = live_pool(2).run(_rows_on)
    assert rows == same == [[0, 1], [2, 3], [4, 5]]
    assert (none, grads) == ([], [[3, 3], [6, 6], [9, 9]])


_OF_RANKS = (
    ItemPlaces(ids=np.array([5, 2, 5, 9]), rows=np.array([0, 0, 1, 3]), num_rows=3),
    ItemPlaces(ids=np.array([9, 4, 9]), rows=np.array([1, 1, 1]), num_rows=2),
)


def _found_on(rank: int, _: int, kind: str) -> tuple[Any, ...]:
    places = _OF_RANKS[rank]
    vectors = torch.stack((torch.from_numpy(places.ids), torch.full((len(places.ids),), rank)), dim=1).float()
    negatives = Negatives(items=_ITEMS, bags={}, kind=kind, number=1)
    found = find_candidates(places, vectors, negatives, dist.group.WORLD)
    return found.ids.tolist(), found.owners.tolist(), found.vectors.tolist(), found.num_in_batch


def test_candidates_of_ranks_are_told_apart_once() -> None:
    first, second = live_pool(2).run(_found_on, "mixed")
    # Item 9 of the first rank is a drawn one; of the second, one row has it twice.
    vectors = [[2, 0], [4, 1], [5, 0], [9, 0]]
    assert first == ([2, 4, 5, 9], [0, -1, -1, -1], vectors, 6)
    assert second == ([2, 4, 5, 9], [-1, 1, -1, -1], vectors, 6)
    first, second = live_pool(2).run(_found_on, "popularity")
    assert first[:3] == ([9], [3], [[9, 0]])
    assert second[:3] == ([9], [-1], [[9, 0]])


@pytest.mark.parametrize("kind", ["in-batch", "uniform", "popularity", "mixed"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_correction_is_how_often_an_item_is_a_candidate(kind: str, num_ranks: int) -> None:
    """Counted over many batches of items that occur as often as they should."""
    generator = np.random.default_rng(0)
    bags = {"item": Bags.single(_ITEMS.ids)}
    negatives = Negatives(items=_ITEMS, bags=bags, kind=kind, number=2)
    times = np.zeros(4)
    for _ in range(700):
        seen: set[int] = set()
        for _ in range(num_ranks):
            own = generator.choice(_ITEMS.ids, size=2, p=_ITEMS.counts / _ITEMS.counts.sum())
            # The first feature makes batches different, as draws go by what is in a batch.
            of_batch = {"user": Bags.single(generator.integers(2**40, size=2)), "item": Bags.single(own)}
            zeros = np.zeros((2, 1), dtype=np.float32)
            batch = negatives.extended(Examples(dense=zeros, bags=of_batch, labels=zeros).batch(np.arange(2)))
            ids = batch.kjt["item"].values().tolist()
            seen |= set(ids if kind in ("in-batch", "mixed") else ids[2:])
        times += np.isin(_ITEMS.ids, list(seen))
    chance = np.exp(negatives.log_chances(2 * num_ranks, num_ranks)(_ITEMS.ids))
    is_there = _ITEMS.counts > 0
    np.testing.assert_allclose(chance[is_there], times[is_there] / 700, atol=0.05)
    # An item without a training row counts as one of a single row, which none draws by popularity.
    assert np.isfinite(chance).all()
    assert (times[2] > 0) == (kind in ("uniform", "mixed"))


_CLICKS = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(
        TableSpec(name="users", num_embeddings=40, feature_names=("user",)),
        TableSpec(name="items", num_embeddings=20, feature_names=("item",)),
    ),
    weight="factor",
    held_out=0.2,
)
_SEEN = Schema(
    labels=(),
    dense=(),
    tables=(TableSpec(name="items", num_embeddings=25, feature_names=("seen",), separator="|"),),
    held_out=0.2,
)
_TOWERS = ModelConfig(model="twotower", item_features=("item",), embedding_dim=8, over_layers=(16, 8))
_OF_HISTORY = ModelConfig(
    model="sasrec", objective="next-item", history="seen", target="item", embedding_dim=8, max_history=6,
    dropout=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """193 rows to train on: the last global batch of 64 has one, and the first of two ranks none."""
    folder = tmp_path_factory.mktemp("tables")
    generator = np.random.default_rng(0)
    users, items = generator.integers(40, size=241), generator.integers(20, size=241)
    rows = [f"{u},{i},{int(u % 2 == i % 2)},{i % 3}" for u, i in zip(users, items, strict=True)]
    (folder / "clicks.csv").write_text("user,item,click,factor\n" + "\n".join(rows) + "\n")
    starts = generator.integers(24, size=241)
    seen = ["|".join(str((s + k) % 24) for k in range(1 + i % 8)) for i, s in enumerate(starts)]
    (folder / "seen.csv").write_text("seen\n" + "\n".join(seen) + "\n")
    return folder


class _Losses(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def window_done(self, window: Window) -> None:
        self.losses.append(window.loss)


def _losses(rank: int, world_size: int, folder: Path, model: ModelConfig, train: TrainConfig) -> list[float]:
    if model.objective == "click":
        dataset = table_dataset(folder / "clicks.csv", _CLICKS)
    else:
        dataset = next_item_dataset(
            folder / "seen.csv", _SEEN, NextItemColumns(history="seen", target="item")
        )
    assert dataset.num_train_rows == 3 * 64 + 1
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    callback = _Losses()
    train = replace(train, batch_size=64 // world_size)
    job = TrainJob(dataset=dataset, model=model, train=train, run=RunConfig(log_every=1))
    train_over_ranks(job, ONE_RANK if world_size == 1 else ranks, callback, whole=False)
    return callback.losses


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (_TOWERS, "softmax"),
        (_TOWERS, "bpr"),
        (_OF_HISTORY, "softmax"),
        (replace(_OF_HISTORY, model="hstu"), "softmax"),
        (_OF_HISTORY, "bpr"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.model,
)
def test_two_ranks_learn_as_one_with_the_whole_batch(tables: Path, model: ModelConfig, loss: str) -> None:
    """The loss of each step follows from the gradients of all steps before it."""
    train = TrainConfig(epochs=3, loss=loss, learning_rate=0.01, row_learning_rate=0.1, gather_negatives=True)
    alone = _losses(0, 1, tables, model, train)
    first, second = live_pool(2).run(_losses, tables, model, train)
    assert first == second
    assert alone[-1] < alone[0]
    np.testing.assert_allclose(first, alone, rtol=1e-4)
    apart, _ = live_pool(2).run(_losses, tables, model, replace(train, gather_negatives=False))
    assert not np.allclose(apart, alone, rtol=1e-2)


def test_each_rank_draws_and_all_learn_against_what_all_drew(tables: Path) -> None:
    train = TrainConfig(
        epochs=3, loss="softmax", negatives="mixed", num_negatives=4, learning_rate=0.01, row_learning_rate=0.1,
        gather_negatives=True,
    )  # fmt: skip
    for model in (_TOWERS, _OF_HISTORY):
        first, second = live_pool(2).run(_losses, tables, model, train)
        assert first == second
        assert first[-1] < first[0]


def test_losses_without_negatives_do_not_gather_them(tables: Path) -> None:
    with pytest.raises(ValueError, match="gather_negatives: got it with the loss cross-entropy, expected"):
        _losses(0, 1, tables, _TOWERS, TrainConfig(gather_negatives=True))
