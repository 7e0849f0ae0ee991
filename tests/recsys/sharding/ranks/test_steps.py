"""Steps that are not one forward, one backward: several batches in flight, gradients of several, none at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys import DistributedModelParallel, in_backward_optimizer_filter
from tests.ranks import live_pool
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type, named_outputs
from tests.recsys.sharding.ranks.oracle import LEARNING_RATE, OPTIMIZERS
from tests.recsys.sharding.ranks.training import Shard, sharded, shards_of

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


def _whole(case: RankCase) -> dict[str, Tensor]:
    """The same in one process."""
    collection = case.collection()
    optimizer = torch.optim.SGD(collection.parameters(), lr=LEARNING_RATE)
    for step, sizes in enumerate(case.batch_sizes):
        for rank in range(len(sizes)):
            (case.loss(named_outputs(collection(case.batch(step, rank))), step, rank) / len(sizes)).backward()
    optimizer.step()
    return collection.state_dict()


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
