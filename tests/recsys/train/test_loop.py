"""Training learns what is planted, does so the same way twice, and refuses nonsense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from recsys.data.examples import Dataset
from recsys.data.sources.synthetic import NUM_ITEMS, NUM_USERS, synthetic
from recsys.models.click import build_dlrm
from recsys.train.callbacks import Callback
from recsys.train.commands.defaults import DEFAULTS
from recsys.train.config import ModelConfig, TrainConfig
from recsys.train.loop import DivergedError, evaluate
from tests.recsys.data.blocks import all_of
from tests.support.training import train

_SMALL = ModelConfig(embedding_dim=4, dense_layers=(8,), over_layers=(8,))


def _planted_auc(dataset: Dataset) -> float:
    reference = dataset.reference()
    assert reference is not None
    assert reference.name == "planted"
    assert reference.auc is not None
    return reference.auc


def test_the_planted_structure_is_learned() -> None:
    dataset = synthetic(60_000)
    defaults = DEFAULTS["synthetic"]
    torch.manual_seed(0)
    untrained = evaluate(build_dlrm(**defaults.model.arguments(dataset)), dataset)["click"]
    _, epochs = train(dataset, defaults.model, defaults.train)
    last, ceiling = epochs[-1].held_out, _planted_auc(dataset)
    assert untrained.auc is not None
    assert last.auc is not None
    assert last.ne is not None
    assert 0.5 + 0.85 * (ceiling - 0.5) < last.auc < ceiling
    assert untrained.auc < last.auc - 0.1
    assert last.ne < 0.8
    assert 0.8 < (last.calibration or 0) < 1.25


@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_the_same_seed_gives_the_same_model(optimizer: str) -> None:
    dataset = synthetic(3_000)
    config = TrainConfig(optimizer=optimizer, seed=5, learning_rate=0.01)
    states = [train(dataset, _SMALL, config)[0].state_dict() for _ in range(2)]
    other = train(dataset, _SMALL, replace(config, seed=6))[0].state_dict()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])
        assert not torch.equal(tensor, other[name])


def test_any_embedding_dim_trains() -> None:
    """FBGEMM's training lookups take multiples of 4 only."""
    dataset = synthetic(2_000)
    trained = [
        train(dataset, replace(_SMALL, embedding_dim=dim), TrainConfig(epochs=3))[1][-1] for dim in (4, 5)
    ]
    assert trained[1].held_out.loss == pytest.approx(trained[0].held_out.loss, rel=0.1)


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    train(synthetic(2_000), _SMALL, TrainConfig())
    assert torch.equal(torch.rand(3), expected)


class _Listener(Callback):
    def __init__(self) -> None:
        self.num_rows = 0
        self.epochs: list[int] = []

    def batch_done(self, num_rows: int) -> None:
        self.num_rows += num_rows

    def epoch_done(self, epoch: Any) -> None:
        self.epochs.append(epoch.number)


def test_the_watcher_hears_every_row_and_epoch() -> None:
    listener = _Listener()
    dataset = synthetic(2_000)
    model, epochs = train(dataset, _SMALL, TrainConfig(epochs=3, batch_size=700), listener)
    assert listener.num_rows == 3 * 1_800
    assert listener.epochs == [1, 2, 3]
    whole, sharded = evaluate(model, dataset)["click"], epochs[-1].held_out
    assert whole.to_json() == pytest.approx(sharded.to_json(), rel=1e-6)
    assert not model.training


def test_ids_never_trained_act_as_empty_bags() -> None:
    dataset = synthetic(2_000)
    model, _ = train(dataset, _SMALL, TrainConfig())
    (block,) = map(all_of, dataset.train())
    weight = model.state_dict()["model.sparse_arch.embedding_bag_collection.embedding_bags.user.weight"]
    unseen = np.setdiff1d(np.arange(NUM_USERS), block.bags["user"].values)
    assert len(unseen) > 100
    assert not weight[unseen].any()
    assert weight[np.unique(block.bags["user"].values)].any()


def test_divergence_is_an_error() -> None:
    config = TrainConfig(learning_rate=1e30, row_learning_rate=1e30)
    with pytest.raises(DivergedError, match="lower the learning rates"):
        train(synthetic(4_000), _SMALL, config)


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        pytest.param(TrainConfig, {"optimizer": "sgd"}, "optimizer: got 'sgd'", id="optimizer"),
        pytest.param(TrainConfig, {"epochs": 0}, "epochs: got 0", id="epochs"),
        pytest.param(TrainConfig, {"batch_size": 0}, "batch_size: got 0", id="batch-size"),
        pytest.param(TrainConfig, {"seed": -1}, "seed: got -1", id="seed"),
        pytest.param(TrainConfig, {"learning_rate": 0.0}, "learning_rate: got 0.0", id="rate"),
        pytest.param(TrainConfig, {"row_learning_rate": float("nan")}, "row_learning_rate", id="row-rate"),
        pytest.param(TrainConfig, {"row_weight_decay": -1.0}, "row_weight_decay", id="decay"),
        pytest.param(ModelConfig, {"embedding_dim": 0}, "sizes of at least 1", id="dim"),
        pytest.param(ModelConfig, {"over_layers": ()}, "one over layer", id="no-over-layer"),
    ],
)
def test_wrong_configs(kind: Any, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        kind(**fields)


def test_the_stream_is_deterministic_and_a_longer_one_starts_with_the_same_rows() -> None:
    a, b = (all_of(next(synthetic(1_000, seed=3).train())) for _ in range(2))
    (longer,) = map(all_of, synthetic(2_000, seed=3).train())
    (other,) = map(all_of, synthetic(1_000, seed=4).train())
    assert np.array_equal(a.labels, b.labels)
    assert np.array_equal(a.dense, b.dense)
    assert np.array_equal(a.dense, longer.dense[:900])
    assert not np.array_equal(a.dense, other.dense)
    for name, bags in a.bags.items():
        assert np.array_equal(bags.values, b.bags[name].values)


def test_held_out_rows_follow_the_training_rows() -> None:
    (whole,) = map(all_of, synthetic(2_000).train())
    (held_out,) = map(all_of, synthetic(1_900).held_out())
    assert np.array_equal(held_out.dense[:90], whole.dense[1_710:1_800])
    assert np.array_equal(
        held_out.bags["recent_items"].take(np.arange(90)).values,
        whole.bags["recent_items"].take(np.arange(1_710, 1_800)).values,
    )


def test_the_stream_crosses_blocks() -> None:
    dataset = synthetic(150_000)
    sizes = [len(block) for block in dataset.train()]
    assert sizes == [65_536, 65_536, 135_000 - 2 * 65_536]
    assert sum(len(block) for block in dataset.held_out()) == 15_000


def test_the_stream_is_what_it_says() -> None:
    (block,) = map(all_of, synthetic(60_000).train())
    assert 0.15 < block.labels.mean() < 0.5
    counts = np.sort(np.bincount(block.bags["item"].values, minlength=NUM_ITEMS))[::-1]
    assert counts[:10].sum() > 0.3 * counts.sum()  # Zipf: 1 % of the items take more than 30 %
    lengths = np.diff(block.bags["recent_items"].offsets)
    assert (lengths.min(), lengths.max()) == (0, 10)
