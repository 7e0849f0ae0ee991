"""Learning over ranks is learning on one rank: under every plan, with uneven and empty batches, to the same model."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.checkpoint.single_file import empty_model
from recsys.data.sources.synthetic import MAX_RECENT_ITEMS, NUM_USERS, synthetic
from recsys.embedding import EmbeddingBagCollection
from recsys.errors import PlanError
from recsys.model_parallel import DistributedModelParallel
from recsys.sharding.plan.plan import ShardingPlan
from recsys.sharding.sharders import EmbeddingBagCollectionSharder
from recsys.train.callbacks import Callback
from recsys.train.config import ModelConfig, RunConfig, TrainConfig
from recsys.train.loop import Loop
from recsys.train.progress import Epoch, Window
from recsys.train.stepping.ranks import ONE_RANK, Ranks, one_rank_plan, process_group, whole_state_dict
from recsys.train.stepping.trainer import Trainer
from tests.recsys.train.plans import COLLECTION_PATH, SEQUENCES_PATH, mixed_plan
from tests.support.helpers import bag, random_plan
from tests.support.ranks import live_pool

_SMALL = ModelConfig(embedding_dim=16, dense_layers=(8,), over_layers=(8,))
_DIN = replace(
    _SMALL, model="din", history="recent_items", target="item", max_history=6, attention_layers=(4,)
)
# 1 801 training rows: the last global batch of 301 gives ranks 150 and 151 rows.
_NUM_ROWS = 2_001
_CONFIG = TrainConfig(
    epochs=2, batch_size=150, row_learning_rate=0.1, learning_rate=0.01, row_weight_decay=1e-3
)


class _Windows(Callback):
    def __init__(self) -> None:
        self.windows: list[Window] = []

    def window_done(self, window: Window) -> None:
        self.windows.append(window)


def _fit(
    rank: int,
    world_size: int,
    config: TrainConfig,
    plan: ShardingPlan | None,
    num_rows: int,
    model: ModelConfig = _SMALL,
) -> tuple[list[Epoch], list[Window], Any]:
    """What was measured, and on rank 0 the whole model."""
    dataset = synthetic(num_rows)
    ranks = Ranks(rank=rank, world_size=world_size, local_world_size=world_size)
    config = replace(config, batch_size=config.batch_size * 2 // world_size)
    callback = _Windows()
    trainer = Trainer(model.factory, model.arguments(dataset), config, ranks, plan)
    epochs = Loop(trainer, dataset, config, RunConfig(log_every=4), callback).fit().epochs
    return epochs, callback.windows, trainer.whole_state_dict()


def _fit_alone(
    config: TrainConfig, num_rows: int = _NUM_ROWS, model: ModelConfig = _SMALL
) -> tuple[list[Epoch], list[Window], Any]:
    with process_group(ONE_RANK):
        return _fit(0, 1, config, None, num_rows, model)


def _dense(plan: ShardingPlan) -> ShardingPlan:
    """The same cuts, every table trained by an optimizer of ours."""
    return ShardingPlan(
        plan={
            path: {name: sharding.with_kernel("dense") for name, sharding in tables.items()}
            for path, tables in plan.plan.items()
        }
    )


def _mixed() -> ShardingPlan:
    return mixed_plan(synthetic(_NUM_ROWS), 16)


def _whole_rows() -> ShardingPlan:
    """No table is cut by columns: each row has one state, as on one rank."""
    return mixed_plan(synthetic(_NUM_ROWS), 16, ("rw", "tw", "dp"))


def _items_by_rows() -> ShardingPlan:
    """A plan for a DIN: the table of history and target is cut by rows."""
    return mixed_plan(synthetic(_NUM_ROWS), 16, ("tw", "rw", "dp"), unpooled="item")


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        pytest.param(_SMALL, _whole_rows(), id="fused"),
        pytest.param(_SMALL, _dense(_whole_rows()), id="dense"),
        pytest.param(_DIN, _items_by_rows(), id="din-fused"),
        pytest.param(_DIN, _dense(_items_by_rows()), id="din-dense"),
    ],
)
def test_two_ranks_learn_what_one_learns(model: ModelConfig, plan: ShardingPlan) -> None:
    config = replace(_CONFIG, row_weight_decay=0.0)
    alone, windows, expected = _fit_alone(config, model=model)
    (epochs, found_windows, found), (others, _, nothing) = live_pool(2).run(
        _fit, config, plan, _NUM_ROWS, model
    )
    assert nothing is None
    assert [e.held_out for e in epochs] == [e.held_out for e in others]
    assert [w.step for w in found_windows] == [w.step for w in windows] == [4, 7, 8, 12, 14]
    assert [w.num_rows for w in found_windows] == [w.num_rows for w in windows]
    for a, b in zip(alone, epochs, strict=True):
        assert b.train_loss == pytest.approx(a.train_loss, rel=1e-4)
        assert b.held_out.auc == pytest.approx(a.held_out.auc, abs=1e-3)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        # Adagrad makes much of small gradients, and ranks add them up in another order.
        torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=1e-2, msg=name)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        pytest.param(_SMALL, _mixed(), id="mixed"),
        pytest.param(_SMALL, _dense(_mixed()), id="dense"),
        pytest.param(_SMALL, None, id="planner"),
        pytest.param(_DIN, mixed_plan(synthetic(_NUM_ROWS), 16, unpooled="item"), id="din-mixed"),
        pytest.param(_DIN, None, id="din-planner"),
    ],
)
def test_any_plan_learns_as_well_with_a_penalty(model: ModelConfig, plan: ShardingPlan | None) -> None:
    # Blocks of columns have states of their own, so results differ a little.
    alone, _, _ = _fit_alone(_CONFIG, model=model)
    (epochs, _, _), _ = live_pool(2).run(_fit, _CONFIG, plan, _NUM_ROWS, model)
    assert epochs[-1].train_loss == pytest.approx(alone[-1].train_loss, rel=0.01)


def test_two_ranks_accumulate_what_one_accumulates() -> None:
    config = replace(_CONFIG, batch_size=60, epochs=1, row_weight_decay=0.0, schedule="cosine")
    config = replace(config, accumulate=2, clip_norm=1.0)  # of 5 batches
    alone, _, expected = _fit_alone(config, 600)
    (epochs, _, found), _ = live_pool(2).run(_fit, config, _whole_rows(), 600)
    assert epochs[0].train_loss == pytest.approx(alone[0].train_loss, rel=1e-4)
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=1e-4)


def test_a_rank_without_rows_takes_part() -> None:
    # 1 801 rows in blocks of one global batch of 1 800: the last step has one row for two ranks.
    config = replace(_CONFIG, batch_size=900, epochs=1)
    alone, _, _ = _fit_alone(config)
    (epochs, windows, _), _ = live_pool(2).run(_fit, config, _mixed(), _NUM_ROWS)
    assert [w.num_rows for w in windows] == [1_801]
    assert epochs[0].step == 2
    assert epochs[0].train_loss == pytest.approx(alone[0].train_loss, rel=1e-3)


@pytest.mark.parametrize("plan", [_mixed(), _dense(_mixed())], ids=["mixed", "dense"])
def test_rows_that_no_rank_touched_are_zero(plan: ShardingPlan) -> None:
    (_, _, found), _ = live_pool(2).run(_fit, replace(_CONFIG, epochs=1), plan, _NUM_ROWS)
    (block,) = synthetic(_NUM_ROWS).train()
    users = np.unique(block.take(np.arange(len(block))).bags["user"].values)
    unseen = np.setdiff1d(np.arange(NUM_USERS), users)
    weight = found[f"{COLLECTION_PATH}.embedding_bags.user.weight"]
    assert len(unseen) > 100
    assert not weight[unseen].any()
    assert weight[users].any(dim=1).all()


@pytest.mark.parametrize(
    ("model", "table"),
    [
        pytest.param(_SMALL, f"{COLLECTION_PATH}.embedding_bags.user.weight", id="pooled"),
        # A dense gradient does not tell which IDs of the history were looked up and cut off, so none is.
        pytest.param(
            replace(_DIN, max_history=MAX_RECENT_ITEMS),
            f"{SEQUENCES_PATH}.embeddings.item.weight",
            id="unpooled",
        ),
    ],
)
def test_the_penalty_is_that_of_the_row_wise_adagrad_of_dense_gradients(
    model: ModelConfig, table: str
) -> None:
    """Steps of the fused kernel with the penalty against those of the dense kernel, which has it in its optimizer."""
    dataset = synthetic(_NUM_ROWS)
    arguments = model.arguments(dataset)
    config = replace(_CONFIG, row_weight_decay=0.01, schedule="cosine", warmup_steps=2)
    no_penalty = replace(config, row_weight_decay=0.0)
    plan = one_rank_plan(empty_model(model.factory, arguments))
    (block,) = dataset.train()
    examples = block.take(np.arange(200))
    batches = [examples.batch(np.arange(start, start + 50)) for start in (0, 50, 100, 150)]
    found: list[dict[str, Tensor]] = []
    for kernel, of_config in ((plan, config), (_dense(plan), config), (plan, no_penalty)):
        with process_group(ONE_RANK):
            trainer = Trainer(model.factory, arguments, of_config, ONE_RANK, kernel)
            list(trainer.steps(iter(batches), of_config.rates(0, 1, 4)))
            found.append(trainer.whole_state_dict() or {})
    fused, dense, less = found
    for name, tensor in dense.items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-4, rtol=1e-3, msg=name)
    assert (less[table] - dense[table]).abs().max() > 1e-3  # the penalty does show


def test_a_plan_for_other_ranks_is_refused() -> None:
    dataset = synthetic(_NUM_ROWS)
    with process_group(ONE_RANK), pytest.raises(PlanError, match=r"got ranks \[1\], expected 0 to 0"):
        Trainer(_SMALL.factory, _SMALL.arguments(dataset), _CONFIG, ONE_RANK, mixed_plan(dataset, 16))


def _gathers(rank: int, world_size: int) -> list[str]:
    """On rank 0 the names of tables that came together other than they were cut."""
    torch.manual_seed(0)
    tables = [bag(f"t{i}", 9 + i, 16, [f"f{i}"]) for i in range(6)]
    module = EmbeddingBagCollection(tables=tables)
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    plan = random_plan(random.Random(3), tables, world_size)
    model = DistributedModelParallel(
        module, plan=ShardingPlan(plan={"": plan}), sharders=[EmbeddingBagCollectionSharder()]
    )
    found = whole_state_dict(model)
    assert (found is None) == (rank > 0)
    if found is None:
        return []
    assert set(found) == set(expected)
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


def test_the_whole_model_is_put_together_from_any_shards() -> None:
    assert live_pool(2).run(_gathers) == [[], []]
