"""Next items: what is learned from which rows, the loss against the full softmax, and ranks against a loop.

Shape letters: B batch, D width of the vectors, H longest history.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from recsys.data.examples import Bags
from recsys.data.lines import DataError
from recsys.data.next_items import (
    ItemCounts,
    NextItemColumns,
    by_popularity,
    count_items,
    latest_ids,
    next_item_dataset,
)
from recsys.errors import CheckpointError
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.job import Trained, TrainJob, train_over_ranks
from recsys.train.losses.negatives import Negatives
from recsys.train.stepping.next_item import Places, row_losses
from recsys.train.stepping.ranks import ONE_RANK, Ranks
from tests.support.ranks import run_ranks

_COLUMNS = NextItemColumns(history="seen", target="item")
_ITEMS = 24
_SCHEMA = Schema(
    labels=(),
    dense=(),
    tables=(TableSpec(name="items", num_embeddings=_ITEMS + 1, feature_names=("seen",), separator="|"),),
    held_out=0.25,
)
_MODEL = ModelConfig(
    model="sasrec",
    objective="next-item",
    history="seen",
    target="item",
    embedding_dim=8,
    max_history=6,
    heads=2,
)
_TRAIN = TrainConfig(epochs=2, batch_size=32, learning_rate=0.01, row_learning_rate=0.1)


def _table(folder: Path, num_rows: int = 400) -> Path:
    """Write histories, of no item to nine, in which an item is followed by the next of its cycle."""
    generator = np.random.default_rng(0)
    path = folder / "histories.csv"
    lines = ["seen"]
    for i in range(num_rows):
        start = int(generator.integers(_ITEMS))
        lines.append("|".join(str((start + step) % _ITEMS) for step in range(i % 10)) or '""')
    path.write_text("\n".join(lines) + "\n")
    return path


def _job(folder: Path, data: Path, **changes: Any) -> TrainJob:
    dataset = next_item_dataset(data, _SCHEMA, _COLUMNS)
    return TrainJob(
        **{"dataset": dataset, "model": _MODEL, "train": _TRAIN, "checkpoint_dir": folder, **changes}
    )


def _trained(job: TrainJob) -> Trained:
    return train_over_ranks(job, ONE_RANK, Callback(), whole=True)


def test_histories_lose_their_last_item_to_a_column_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('seen\n1|2|3\n4\n""\n5|6\n')
    dataset = next_item_dataset(tmp_path / "t.csv", _SCHEMA, _COLUMNS)
    (block,) = dataset.train()
    bags = block.take(np.arange(3)).bags
    assert list(bags) == ["seen", "item"]
    assert (bags["seen"].values.tolist(), bags["seen"].offsets.tolist()) == ([1, 2], [0, 2, 2, 2])
    assert (bags["item"].values.tolist(), bags["item"].offsets.tolist()) == ([3, 4], [0, 1, 2, 2])
    assert dataset.splits_histories
    assert "has no column 'item'" in dataset.notices[-1]
    assert dataset.rows_as_sent is not None
    assert dataset.rows_as_sent(1).sparse == {"seen": [[5]], "item": [[6]]}


def test_a_column_of_next_items_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("seen,item\n1|2,3\n4,5\n6,7\n8,9\n")
    dataset = next_item_dataset(tmp_path / "t.csv", _SCHEMA, _COLUMNS)
    (block,) = dataset.train()
    bags = block.take(np.arange(3)).bags
    assert (bags["seen"].values.tolist(), bags["item"].values.tolist()) == ([1, 2, 4, 6], [3, 5, 7])
    assert not dataset.splits_histories


def test_schemas_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("seen,item\n1|2,3\n4,5\n")
    labels = (LabelColumn(name="click"),)
    with pytest.raises(DataError, match="got click, expected none: next-item learns"):
        next_item_dataset(tmp_path / "t.csv", replace(_SCHEMA, labels=labels), _COLUMNS)
    with pytest.raises(DataError, match="history: got 'old', expected one of"):
        next_item_dataset(tmp_path / "t.csv", _SCHEMA, replace(_COLUMNS, history="old"))


def test_items_are_counted_and_popularity_ranks_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("seen\n" + "1|2|3\n" * 6 + "1|2\n1\n" + "3|1\n5|9\n")
    dataset = next_item_dataset(tmp_path / "t.csv", replace(_SCHEMA, held_out=0.2), _COLUMNS)
    items = count_items(dataset.train(), _COLUMNS)
    assert (items.ids.tolist(), items.counts.tolist()) == ([1, 2, 3], [8, 7, 6])
    assert items.of(np.array([2, 4, 1])).tolist() == [7, 0, 8]
    found = by_popularity(dataset, items, _COLUMNS)
    assert found is not None
    # 1 is the first of three; 9 is in no training row, behind all of them.
    assert (found.num_rows, found.num_items) == (2, 3)
    assert found.ndcg == pytest.approx((1 + 1 / np.log2(5)) / 2)


def test_the_latest_ids_come_first() -> None:
    bags = Bags.from_lists([[1, 2, 3], [], [4]])
    ids, there = latest_ids(bags, 2)
    assert ids.tolist() == [[3, 2], [0, 0], [4, 0]]
    assert there.tolist() == [[True, True], [False, False], [True, False]]


def test_the_loss_is_a_corrected_softmax_over_the_items_of_other_rows() -> None:
    torch.manual_seed(0)
    users, following = torch.randn(3, 2, 4), torch.randn(3, 2, 4)
    # Rows of the target and the latest item: item 7 is in two rows, item 3 in the first alone.
    ids = np.array([[7, 3], [5, 7], [9, 0]])
    there = np.array([[True, True], [True, True], [True, False]])
    learned = np.array([[True, True], [True, False], [False, False]])
    for row, column, item in ((1, 1, 7),):
        following[row, column] = following[0, 0]
        assert ids[row, column] == item
    items = ItemCounts(ids=np.array([3, 5, 7, 9]), counts=np.array([10, 20, 30, 40]))
    places = Places(ids=ids, there=there, learned=learned, num_rows=3)
    found = row_losses(users, following, places, Negatives(items=items, bags={}))
    chance = {
        item: 1 - (1 - count / 100) ** 5 for item, count in zip([3, 5, 7, 9], [10, 20, 30, 40], strict=True)
    }
    vectors = {7: following[0, 0], 3: following[0, 1], 5: following[1, 0], 9: following[2, 0]}

    def loss(row: int, place: int, candidates: list[int]) -> torch.Tensor:
        scores = [users[row, place] @ vectors[i] - float(np.log(chance[i])) for i in candidates]
        return functional.cross_entropy(torch.stack(scores), torch.tensor(0))

    expected = torch.stack(
        [(loss(0, 0, [7, 5, 9]) + loss(0, 1, [3, 7, 5, 9])) / 2, loss(1, 0, [5, 3, 7, 9]), torch.tensor(0.0)]
    )
    torch.testing.assert_close(found, expected)


def test_cycles_are_learned(tmp_path: Path) -> None:
    data = _table(tmp_path, 1200)
    for model in ("sasrec", "hstu"):
        train = replace(_TRAIN, epochs=6)
        job = _job(tmp_path / model, data, model=replace(_MODEL, model=model), train=train)
        kept = _trained(job).kept.held_out
        reference = job.reference()
        assert reference is not None
        assert reference.ranked is not None
        # A row without an item has nothing before the next one, so that one in nine is left to chance.
        assert kept.hit_rate > 0.9 > 0.6 > reference.ranked.hit_rate
        assert kept.ndcg > 0.85
        assert kept.num_items == _ITEMS


class _Stop(Callback):
    """Stops a training in its fourth step."""

    num_steps = 0

    def batch_done(self, num_rows: int) -> None:
        self.num_steps += num_rows > 0
        if self.num_steps == 4:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["an epoch's end", "a step"])
def test_a_resumed_training_is_the_whole_one(tmp_path: Path, at: str) -> None:
    """What dropout leaves out goes by the batch, not by how many were before it in this process."""
    data = _table(tmp_path)
    whole = _trained(_job(tmp_path / "a", data))
    if at == "a step":
        with pytest.raises(KeyboardInterrupt):
            train_over_ranks(_job(tmp_path / "b", data, checkpoint_every=2), ONE_RANK, _Stop(), whole=True)
    else:
        _trained(_job(tmp_path / "b", data, train=replace(_TRAIN, epochs=1)))
    resumed = _trained(_job(tmp_path / "b", data, resume=True))
    assert whole.epochs[1].held_out == resumed.epochs[1].held_out
    assert whole.state_dict is not None
    assert resumed.state_dict is not None
    for name, tensor in whole.state_dict.items():
        assert torch.equal(tensor, resumed.state_dict[name]), name


def test_another_objective_is_not_resumed(tmp_path: Path) -> None:
    data = _table(tmp_path)
    job = _job(tmp_path / "a", data, train=replace(_TRAIN, epochs=1))
    _trained(job)
    deeper = replace(_MODEL, encoder_layers=3)
    with pytest.raises(CheckpointError, match="sequence"):
        _trained(_job(tmp_path / "a", data, model=deeper, resume=True))


def _on_rank(rank: int, world_size: int, folder: Path) -> tuple[Any, ...]:
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    job = _job(folder / "ranks", folder / "histories.csv", checkpoint_dir=None)
    trained = train_over_ranks(job, ranks, Callback(), whole=True)
    return trained.kept.held_out.num_rows, trained.kept.held_out.num_items, trained.kept.held_out.loss


def test_ranks_measure_the_same(tmp_path: Path) -> None:
    _table(tmp_path)
    first, second = run_ranks(2, _on_rank, tmp_path)
    assert first == second
    assert first[0] == sum(1 for i in range(300, 400) if i % 10)
    assert first[1] == _ITEMS


def test_objectives_and_metrics_that_do_not_fit(tmp_path: Path) -> None:
    data = _table(tmp_path)
    with pytest.raises(
        ValueError, match=r"best_metric: got 'auc', expected one of loss, hit_rate, ndcg, last"
    ):
        _job(tmp_path / "a", data, train=replace(_TRAIN, best_metric="auc"))
    with pytest.raises(ValueError, match=r"schema.labels: got none, expected at least one; without labels"):
        _job(tmp_path / "a", data, model=replace(_MODEL, objective="click"))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"objective": "rank"}, "objective: got 'rank', expected one of click, next-item"),
        ({"model": "din"}, "objective: got next-item with the model din, expected one of sasrec, hstu"),
        ({"item_features": ("color",)}, "item_features: got color with the objective next-item"),
        ({"target": ""}, "a sasrec model needs both"),
        ({"heads": 3}, "heads: got 3, expected a divisor of 8"),
        ({"dropout": 1.0}, "dropout: got 1.0, expected a share"),
        ({"encoder_layers": 0}, "model sizes"),
    ],
)
def test_model_configs(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(_MODEL, **fields)
