"""Drawn items and the losses against them, by formulas written out, and trained two towers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from recsys.data.examples import Bags, Examples, LabeledBatch
from recsys.data.next_items import ItemCounts
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import LabelColumn, Schema, TableSpec
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.fitting import fit
from recsys.train.job import TrainJob
from recsys.train.losses.negatives import Negatives, candidate_losses, catalogue
from recsys.train.losses.towers import TowerItems, TowerTask
from recsys.train.stepping.next_item import Places, row_losses

_ITEMS = ItemCounts(ids=np.array([2, 5, 9]), counts=np.array([6, 3, 1]))


def _batch(items: list[int], labels: list[int]) -> LabeledBatch:
    size = len(items)
    bags = {"user": Bags.single(np.arange(size)), "item": Bags.single(np.array(items))}
    examples = Examples(
        dense=np.ones((size, 1), dtype=np.float32), bags=bags, labels=np.array(labels, dtype=np.float32)[:, None]
    )  # fmt: skip
    return examples.batch(np.arange(size))


@pytest.mark.parametrize(("kind", "shares"), [("uniform", [1 / 3] * 3), ("popularity", [0.6, 0.3, 0.1])])
def test_drawn_items_come_behind_the_rows_as_often_as_they_should(kind: str, shares: list[float]) -> None:
    bags = {"item": Bags.single(_ITEMS.ids), "genres": Bags.from_lists([[1], [], [7, 8]])}
    negatives = Negatives(items=_ITEMS, bags=bags, kind=kind, number=3000)
    batch = negatives.extended(_batch([2, 9], [1, 0]))
    drawn = batch.kjt["item"].values()[2:].numpy()
    assert (len(batch.labels), batch.num_global_rows) == (3002, 2)
    assert batch.kjt["user"].values().tolist() == [0, 1]
    assert batch.kjt["user"].lengths()[2:].sum() == 0
    np.testing.assert_allclose([(drawn == i).mean() for i in _ITEMS.ids], shares, atol=0.03)
    again = negatives.extended(_batch([2, 9], [1, 0]))
    assert torch.equal(batch.kjt.values(), again.kjt.values())


def test_the_chance_of_being_a_candidate() -> None:
    share = np.array([0.5, 0.3, 0.1])  # at most a half
    absent = {
        "in-batch": (1 - share) ** 7,
        "uniform": np.full(3, (2 / 3) ** 4),
        "popularity": (1 - share) ** 4,
        "mixed": (1 - share) ** 7 * (2 / 3) ** 4,
    }
    for kind, chance in absent.items():
        found = Negatives(items=_ITEMS, bags={}, kind=kind, number=4).log_chances(7)(_ITEMS.ids)
        np.testing.assert_allclose(found, np.log(1 - chance), rtol=1e-6)


def test_the_catalogue_has_each_item_once() -> None:
    class _Block:
        def __init__(self, items: list[list[int]], genres: list[list[int]]) -> None:
            bags = {"item": Bags.from_lists(items), "genres": Bags.from_lists(genres)}
            labels = np.zeros((len(items), 1), dtype=np.float32)
            self._examples = Examples(
                dense=np.zeros((len(items), 0), dtype=np.float32), bags=bags, labels=labels
            )

        def __len__(self) -> int:
            return len(self._examples)

        def take(self, rows: Any) -> Examples:
            return self._examples.take(rows)

    blocks = [_Block([[5], [2], [], [5]], [[1], [2, 3], [4], [9]]), _Block([[2], [1]], [[8], [6]])]
    items, bags = catalogue(iter(blocks), ["item", "genres"])
    assert (items.ids.tolist(), items.counts.tolist()) == ([1, 2, 5], [1, 2, 2])
    assert bags["item"].values.tolist() == [1, 2, 5]
    assert (bags["genres"].values.tolist(), bags["genres"].offsets.tolist()) == ([6, 2, 3, 1], [0, 1, 3, 4])


class _Vectors(torch.nn.Module):
    """Vectors of users by row, of items by ID."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.users, self.items = torch.randn(num_rows, 4), torch.randn(10, 4)

    def forward(self, _: torch.Tensor, kjt: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids = kjt["item"].values()
        users = torch.cat((self.users, torch.zeros(len(ids) - len(self.users), 4)))
        return users, self.items[ids]


@pytest.mark.parametrize("kind", ["in-batch", "uniform", "mixed"])
def test_two_towers_learn_a_corrected_softmax_over_candidates(kind: str) -> None:
    model = _Vectors(4)
    bags = {"item": Bags.single(_ITEMS.ids)}
    negatives = Negatives(items=_ITEMS, bags=bags, kind=kind, number=2)
    batch = negatives.extended(_batch([5, 2, 5, 9], [1, 0, 1, 1]))
    task = TowerTask(model, 1, TowerItems(feature="item", negatives=negatives))
    loss, step = task(batch)
    drawn = set(batch.kjt["item"].values()[4:].tolist())
    candidates = {"in-batch": {2, 5, 9}, "uniform": drawn, "mixed": {2, 5, 9} | drawn}[kind]
    chance = dict(zip([2, 5, 9], negatives.log_chances(4)(_ITEMS.ids).tolist(), strict=True))
    expected = torch.zeros(())
    for row, item in ((0, 5), (2, 5), (3, 9)):
        order = [item, *sorted(candidates - {item})]
        scores = torch.stack([model.users[row] @ model.items[i] - chance[i] for i in order])
        expected = expected + functional.cross_entropy(scores, torch.tensor(0))
    torch.testing.assert_close(step.loss, expected)
    torch.testing.assert_close(loss, expected / 4)
    assert (len(step.logits), step.labels[:, 0].tolist()) == (4, [1, 0, 1, 1])


def test_bpr_against_candidates_is_recboles_formula() -> None:
    own, scores = torch.tensor([1.0, -0.5]), torch.tensor([[0.2, 0.9, 3.0], [0.1, 0.4, 0.0]])
    left_out = torch.tensor([[False, False, True], [True, True, True]])
    expected = -torch.log(torch.sigmoid(own[0] - scores[0, :2])).mean()
    found = candidate_losses(own, scores, left_out, "bpr")
    torch.testing.assert_close(found, torch.stack((expected, torch.tensor(0.0))))


def test_next_items_are_learned_against_drawn_items_alone() -> None:
    torch.manual_seed(0)
    users, following = torch.randn(3, 1, 4), torch.randn(3, 1, 4)
    places = Places(
        ids=np.array([[2], [5], [9]]),  # the last row is a drawn item
        there=np.ones((3, 1), dtype=bool),
        learned=np.array([[True], [True], [False]]),
        num_rows=2,
    )
    negatives = Negatives(items=_ITEMS, bags={}, kind="uniform", number=1)
    found = row_losses(users, following, places, negatives)
    for row in range(2):
        scores = torch.stack([users[row, 0] @ following[row, 0], users[row, 0] @ following[2, 0]])
        torch.testing.assert_close(found[row], functional.cross_entropy(scores, torch.tensor(0)))
    assert found[2] == 0


_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(
        TableSpec(name="users", num_embeddings=40, feature_names=("user",)),
        TableSpec(name="items", num_embeddings=20, feature_names=("item",)),
    ),
    held_out=0.2,
)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users who click on the items of their own half."""
    path = tmp_path_factory.mktemp("clicks") / "clicks.csv"
    generator = np.random.default_rng(0)
    rows = [
        (int(u), int(i))
        for u, i in zip(generator.integers(40, size=3000), generator.integers(20, size=3000), strict=True)
    ]
    path.write_text("user,item,click\n" + "".join(f"{u},{i},{int(u % 2 == i % 2)}\n" for u, i in rows))
    return path


_TOWERS = ModelConfig(model="twotower", item_features=("item",), embedding_dim=8, over_layers=(16, 8))


@pytest.mark.parametrize(
    "train",
    [
        {"loss": "softmax"},
        {"loss": "softmax", "negatives": "popularity", "num_negatives": 16},
        {"loss": "softmax", "negatives": "mixed", "num_negatives": 16},
        {"loss": "bpr"},
        {"loss": "focal", "positive_weight": 2.0},
    ],
    ids=lambda train: "-".join(map(str, train.values())),
)
def test_each_loss_learns_the_planted_halves(clicks: Path, train: dict[str, Any]) -> None:
    fitted = fit(
        clicks, schema=_SCHEMA, model="twotower", item_features=("item",), embedding_dim=8, over_layers=(16, 8),
        epochs=8, batch_size=128, learning_rate=0.01, row_learning_rate=0.2, callbacks=[], **train,
    )  # fmt: skip
    auc = fitted.report.kept.held_out.auc
    assert auc is not None
    assert auc > 0.9


@pytest.mark.parametrize(
    ("model", "train", "text"),
    [
        ({"model": "dcn"}, {"loss": "softmax"}, "loss: got softmax, expected it with --model twotower"),
        ({}, {"negatives": "uniform"}, "negatives: got uniform with the loss cross-entropy"),
        ({"learn_label_weights": True}, {}, "learn_label_weights: got it with 1 labels"),
        ({}, {"label_weights": (1.0, 2.0)}, "label_weights: got 2, expected 1"),
    ],
)
def test_losses_that_do_not_fit(
    clicks: Path, model: dict[str, Any], train: dict[str, Any], text: str
) -> None:
    config = ModelConfig(**model) if model else _TOWERS
    with pytest.raises(ValueError, match=text):
        TrainJob(dataset=table_dataset(clicks, _SCHEMA), model=config, train=TrainConfig(**train))


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ({"loss": "hinge"}, "loss: got 'hinge', expected one of cross-entropy"),
        ({"negatives": "hard"}, "negatives: got 'hard', expected one of in-batch"),
        ({"num_negatives": 0}, "num_negatives: got 0, expected at least 1"),
        ({"positive_weight": 0.0}, "positive_weight: got 0.0, expected a number above 0"),
        ({"positive_weight": 2.0, "loss": "bpr"}, "positive_weight: got 2.0 with the loss bpr"),
        ({"focal_gamma": -1.0}, "focal_gamma: got -1.0, expected at least 0"),
        ({"label_weights": (0.0,)}, "label_weights: got"),
    ],
)
def test_wrong_settings(train: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TrainConfig(**train)
