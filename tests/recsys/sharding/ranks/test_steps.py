"""Steps that are not one forward, one backward: several batches in flight, gradients of several, none for some tables,
none at all.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import (
    DistributedModelParallel,
    RowWiseAdagrad,
    ShardingEnv,
    ShardingPlan,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from recsys.kernels.training import FusedLookup
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type, named_outputs
from tests.recsys.sharding.ranks.oracle import LEARNING_RATE, OPTIMIZERS
from tests.recsys.sharding.ranks.training import Shard, group_of, sharded, sharders_for, shards_of
from tests.support.ranks import live_pool

ORDERS = {"in order": (0, 1), "the later one first": (1, 0)}


def _shards(model: DistributedModelParallel) -> dict[str, list[Shard]]:
    return {name: shards_of(tensor) for name, tensor in model.state_dict().items()}


def train_together(
    rank: int, world_size: int, case: RankCase, how: str, order: Any
) -> dict[str, list[Shard]]:
    """One update with the gradients of two batches."""
    del world_size
    model = sharded(case)
    dense = OPTIMIZERS["sgd"].dense([p for _, p in in_backward_optimizer_filter(model.named_parameters())])
    if how == "two in flight":
        lazy = [model(case.batch_to_shard(step, rank)) for step in range(2)]
        found = {step: named_outputs(lazy[step]) for step in order}
        torch.stack([case.loss(found[step], step, rank) for step in order]).sum().backward()
    else:
        for step in order:
            found = named_outputs(model(case.batch_to_shard(step, rank)))
            case.loss(found, step, rank).backward()
    dense.step()
    return _shards(model)


def _whole(case: RankCase, frozen: Collection[str] = ()) -> dict[str, Tensor]:
    """The same in one process."""
    collection = case.collection()
    _freeze(collection, frozen)
    optimizer = torch.optim.SGD(collection.parameters(), lr=LEARNING_RATE)
    for step, sizes in enumerate(case.batch_sizes):
        for rank in range(len(sizes)):
            loss = case.loss(named_outputs(collection(case.batch(step, rank))), step, rank)
            if loss.requires_grad:
                (loss / len(sizes)).backward()
    optimizer.step()
    return collection.state_dict()


def _freeze(collection: nn.Module, frozen: Collection[str]) -> None:
    for name, parameter in collection.named_parameters():
        parameter.requires_grad_(name.split(".")[1] not in frozen)


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("how", ["two in flight", "one after the other"])
@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("kernel", ["fused", "dense"])
@pytest.mark.parametrize("local_world_size", [2, 4])
def test_gradients_of_two_batches_add_up(
    local_world_size: int, kernel: str, sequence: bool, how: str, order: str
) -> None:
    draw = Draw(world_size=4, kernels=(kernel,), sequence=sequence, num_steps=2)
    case = case_of_every_type("two batches", draw, local_world_size)
    expected = _whole(case)
    for weights in live_pool(4).run(train_together, case, how, ORDERS[order]):
        for name, shards in weights.items():
            for shard in shards:
                torch.testing.assert_close(shard.tensor, shard.of(expected[name]), rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class FrozenResult:
    """What a rank found of a model with frozen tables, tables by name.

    Attributes:
        weights: after the step, by names in state dicts.
        asking: tables with a shard here that needs a gradient.
        in_backward: tables with a shard here that is marked as updated in the backward pass.
        fused: tables that the fused optimizer has.
        keeps_state: whether a lookup keeps any for its optimizer; SGD, which trains what is not frozen, has none.
    """

    weights: dict[str, list[Shard]]
    asking: set[str]
    in_backward: set[str]
    fused: set[str]
    keeps_state: bool


def train_frozen(rank: int, world_size: int, case: RankCase, frozen: list[str]) -> FrozenResult:
    """One step with tables that were frozen after they had been given an optimizer."""
    del world_size
    collection = case.collection()
    tables = [p for name, p in collection.named_parameters() if name.split(".")[1] in frozen]
    apply_optimizer_in_backward(RowWiseAdagrad, tables, {"lr": LEARNING_RATE})
    _freeze(collection, frozen)
    model = DistributedModelParallel(
        collection,
        ShardingEnv.from_process_group(group_of(case.draw.world_size), "cpu", case.local_world_size),
        plan=ShardingPlan(plan={"": case.plan}),
        sharders=sharders_for(OPTIMIZERS["sgd"].fused_params()),
    )
    dense = OPTIMIZERS["sgd"].dense([*dict(in_backward_optimizer_filter(model.named_parameters())).values()])
    # The loss needs a gradient whatever is frozen, as it does above trained layers.
    above = torch.ones((), requires_grad=True)
    (above * case.loss(named_outputs(model(case.batch_to_shard(0, rank))), 0, rank)).backward()
    dense.step()
    in_backward = in_backward_optimizer_filter(model.named_parameters(), include=True)
    lookups = [part for part in model.modules() if isinstance(part, FusedLookup)]
    return FrozenResult(
        weights=_shards(model),
        asking={name.split(".")[1] for name, p in model.named_parameters() if p.requires_grad},
        in_backward={name.split(".")[1] for name, _ in in_backward},
        fused={name.split(".")[1] for name in model.fused_optimizer.params},
        keeps_state=any(states for lookup in lookups for states in lookup.states()),
    )


FROZEN = {
    "some frozen": ["copied", "by_rows", "by_columns", "in_host"],
    "others frozen": ["whole", "in_grid"],
    "all frozen": ["copied", "by_rows", "by_columns", "in_host", "whole", "in_grid"],
}


@pytest.mark.parametrize("frozen", list(FROZEN))
@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("kernel", ["fused", "dense"])
def test_frozen_tables_stay_as_they_are(kernel: str, sequence: bool, frozen: str) -> None:
    draw = Draw(world_size=4, kernels=(kernel,), sequence=sequence, num_steps=1)
    case = case_of_every_type("frozen", draw, local_world_size=2)
    before, expected = case.collection().state_dict(), _whole(case, FROZEN[frozen])
    trained = {table.name for table in case.tables} - set(FROZEN[frozen])
    fused = trained - {"copied"} if kernel == "fused" else set()
    results = live_pool(4).run(train_frozen, case, FROZEN[frozen])
    for result in results:
        assert result.in_backward == result.asking & fused
        assert result.fused == fused
        assert not result.keeps_state
        for name, shards in result.weights.items():
            for shard in shards:
                torch.testing.assert_close(shard.tensor, shard.of(expected[name]), rtol=1e-4, atol=1e-5)
                stays = torch.equal(shard.tensor, shard.of(before[name]))
                assert stays or name.split(".")[1] in trained
    # Every trained table has a shard somewhere that asks, no frozen one does.
    assert set().union(*(result.asking for result in results)) == trained


def evaluate(rank: int, world_size: int, case: RankCase, mode: str) -> tuple[dict[str, Tensor], bool, bool]:
    """Outputs without gradients, whether they ask for any, and whether the weights stayed."""
    del world_size
    model = sharded(case).eval()
    before = _shards(model)
    with torch.inference_mode() if mode == "inference mode" else torch.no_grad():
        found = named_outputs(model(case.batch_to_shard(0, rank)))
    after = _shards(model)
    same = all(
        torch.equal(a.tensor, b.tensor) for n in before for a, b in zip(before[n], after[n], strict=True)
    )
    return (
        {name: output.clone() for name, output in found.items()},
        any(output.requires_grad for output in found.values()),
        same,
    )


@pytest.mark.parametrize("mode", ["no grad", "inference mode"])
@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("kernel", ["fused", "dense"])
def test_outputs_without_gradients(kernel: str, sequence: bool, mode: str) -> None:
    draw = Draw(world_size=4, kernels=(kernel,), sequence=sequence, num_steps=1)
    case = case_of_every_type("evaluated", draw, local_world_size=2)
    collection = case.collection()
    for rank, (found, asks, same) in enumerate(live_pool(4).run(evaluate, case, mode)):
        assert not asks
        assert same
        for name, expected in named_outputs(collection(case.batch(0, rank))).items():
            torch.testing.assert_close(found[name], expected.detach(), rtol=1e-5, atol=1e-5)
