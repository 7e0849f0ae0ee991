"""A model over ranks: dense layers above sharded collections train as they would in one process.

Shape letters: B batch, D embedding dimension, N number of IDs, W world size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingCollection,
    KeyedJaggedTensor,
    RowWiseAdagrad,
    ShardingEnv,
    ShardingPlan,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from recsys.optim import CombinedOptimizer, KeyedOptimizerWrapper
from recsys.sharding.plan.plan import ParameterSharding
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type, generator
from tests.recsys.sharding.ranks.oracle import LEARNING_RATE
from tests.recsys.sharding.ranks.training import Shard, group_of, sharders_for, shards_of
from tests.support.ranks import live_pool

NUM_STEPS = 3
DIM = 32
NUM_DENSE = 5
BATCH_SIZES = [[3, 0, 2, 5], [1, 4, 4, 0], [2, 2, 2, 2]]


class Towers(nn.Module):
    """Dense numbers below, pooled and single rows beside them, layers above; the dense layer below is last in time."""

    def __init__(self, pooled: nn.Module, rows: nn.Module, num_pooled: int, num_rows: int) -> None:
        super().__init__()
        self.below = nn.Linear(NUM_DENSE, DIM)
        self.sparse = nn.ModuleDict({"pooled": pooled, "rows": rows})
        self.above = nn.Sequential(
            nn.Linear(DIM * (1 + num_pooled + num_rows), 8), nn.Tanh(), nn.Linear(8, 1)
        )
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        """``[B]`` logits of ``[B, NUM_DENSE]`` and bags."""
        pooled, rows = self.sparse["pooled"](features), self.sparse["rows"](features)
        parts = [self.below(dense), pooled.values()]
        for name in sorted(rows.keys()):
            found = rows[name]
            bag_of_id = torch.arange(dense.size(0)).repeat_interleave(found.lengths())
            parts.append(torch.zeros(dense.size(0), DIM).index_add(0, bag_of_id, found.values()))
        return self.above(torch.cat(parts, dim=1)).squeeze(1)


def _cases(world_size: int) -> tuple[RankCase, RankCase]:
    """The cases of the two collections; the batches are the first's."""
    sizes = [of_step[:world_size] for of_step in BATCH_SIZES]
    local = max(1, world_size // 2)
    pooled = case_of_every_type("towers", Draw(world_size=world_size, num_steps=NUM_STEPS), local)
    rows = case_of_every_type("rows", Draw(world_size=world_size, num_steps=NUM_STEPS, sequence=True), local)
    kinds = {"whole": "table", "by_rows": "cut", "copied": "all"}
    kept = [replace(table, name=kinds[table.name]) for table in rows.tables if table.name in kinds]
    plan = {kinds[name]: sharding for name, sharding in rows.plan.items() if name in kinds}
    return replace(pooled, batch_sizes=sizes), replace(rows, tables=kept, plan=plan)


def _model(pooled: RankCase, rows: RankCase) -> Towers:
    made = Towers(
        pooled.collection(),
        rows.collection(),
        sum(len(table.feature_names) for table in pooled.tables),
        sum(len(table.feature_names) for table in rows.tables),
    )
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator(name)))
    return made


def _batch(case: RankCase, step: int, rank: int) -> tuple[Tensor, KeyedJaggedTensor, Tensor]:
    size = case.batch_sizes[step][rank]
    numbers = torch.randn(size, NUM_DENSE + 1, generator=generator(f"dense {step} {rank}"))
    return numbers[:, 1:], case.batch(step, rank), numbers[:, 0]


def _loss(model: nn.Module, case: RankCase, step: int, rank: int) -> Tensor:
    dense, features, labels = _batch(case, step, rank)
    return (model(dense, features) - labels).square().sum()


def _plan(pooled: RankCase, rows: RankCase) -> ShardingPlan:
    return ShardingPlan(plan={"sparse.pooled": pooled.plan, "sparse.rows": rows.plan})


def _learning_rate(step: int) -> float:
    return LEARNING_RATE / (1 + step)


def train(rank: int, world_size: int, by_schedule: bool) -> dict[str, Any]:
    """Three steps with SGD for everything."""
    pooled, rows = _cases(world_size)
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", pooled.local_world_size)
    sharders = sharders_for({"learning_rate": LEARNING_RATE})
    model = DistributedModelParallel(_model(pooled, rows), env, plan=_plan(pooled, rows), sharders=sharders)
    left = dict(in_backward_optimizer_filter(model.named_parameters()))
    dense = KeyedOptimizerWrapper(left, lambda params: torch.optim.SGD(params, lr=LEARNING_RATE))
    optimizer = CombinedOptimizer([model.fused_optimizer, dense])
    losses = []
    for step in range(NUM_STEPS):
        if by_schedule:
            for group in optimizer.param_groups:
                group["lr"] = _learning_rate(step)
        optimizer.zero_grad()
        loss = _loss(model, pooled, step, rank)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        answers = model(*_batch(pooled, 0, rank)[:2])
    return {
        "losses": losses,
        "answers": answers,
        "state": {name: shards_of(tensor) for name, tensor in model.state_dict().items()},
        "left": list(left),
        "wrapped": isinstance(model._dmp_wrapped_module, DistributedDataParallel),
        "buffers": [name for name, _ in model.named_buffers() if name == "calls"],
    }


@pytest.mark.parametrize("by_schedule", [False, True], ids=["one rate", "scheduled rates"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_dense_layers_and_tables_train_together(world_size: int, by_schedule: bool) -> None:
    pooled, rows = _cases(world_size)
    whole = _model(pooled, rows)
    optimizer = torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(NUM_STEPS):
        if by_schedule:
            optimizer.param_groups[0]["lr"] = _learning_rate(step)
        optimizer.zero_grad()
        of_ranks = [_loss(whole, pooled, step, rank) for rank in range(world_size)]
        (torch.stack(of_ranks).sum() / world_size).backward()
        optimizer.step()
        losses.append([float(loss.detach()) for loss in of_ranks])
    expected = whole.state_dict()
    for rank, result in enumerate(live_pool(world_size).run(train, by_schedule)):
        assert result["losses"] == pytest.approx([of_step[rank] for of_step in losses], rel=1e-4)
        with torch.no_grad():
            answers = whole(*_batch(pooled, 0, rank)[:2])
        torch.testing.assert_close(result["answers"], answers, rtol=1e-4, atol=1e-5)
        assert list(result["state"]) == list(expected)
        for name, shards in result["state"].items():
            for shard in shards:
                torch.testing.assert_close(
                    shard.tensor,
                    shard.of(expected[name]),
                    rtol=1e-4,
                    atol=1e-5,
                    msg=lambda t, n=name: f"{n}: {t}",
                )
        assert result["wrapped"]
        assert result["buffers"] == ["calls"]
        # What the fused kernels train is not left to the other optimizer.
        assert set(result["left"]) == {
            *(name for name, _ in whole.named_parameters() if not name.startswith("sparse.")),
            "sparse.pooled.embedding_bags.copied.weight",
            "sparse.rows.embeddings.all.weight",
        }


def _freeze(model: nn.Module, frozen: list[str]) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen)))


def train_frozen(rank: int, world_size: int, frozen: list[str]) -> dict[str, list[Shard]]:
    """After one step of a model of which parts are frozen."""
    pooled, rows = _cases(world_size)
    model = _model(pooled, rows)
    _freeze(model, frozen)
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", pooled.local_world_size)
    sharders = sharders_for({"learning_rate": LEARNING_RATE})
    whole = DistributedModelParallel(model, env, plan=_plan(pooled, rows), sharders=sharders)
    left = [p for _, p in in_backward_optimizer_filter(whole.named_parameters())]
    loss = _loss(whole, pooled, 0, rank)
    if loss.requires_grad:
        loss.backward()
    torch.optim.SGD(left, lr=LEARNING_RATE).step()
    return {name: shards_of(tensor) for name, tensor in whole.state_dict().items()}


FROZEN = {
    "a collection": ["sparse.rows."],
    "all tables": ["sparse."],
    "all tables and the layer beside them": ["sparse.", "below."],
    "all layers": ["below.", "above."],
    "everything": [""],
}


@pytest.mark.parametrize("frozen", list(FROZEN))
def test_the_rest_of_a_model_trains_where_parts_are_frozen(frozen: str) -> None:
    pooled, rows = _cases(4)
    whole = _model(pooled, rows)
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    _freeze(whole, FROZEN[frozen])
    loss = torch.stack([_loss(whole, pooled, 0, rank) for rank in range(4)]).sum() / 4
    if loss.requires_grad:
        loss.backward()
    torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE).step()
    expected = whole.state_dict()
    for state in live_pool(4).run(train_frozen, FROZEN[frozen]):
        assert list(state) == list(expected)
        for name, shards in state.items():
            stays = name.startswith(tuple(FROZEN[frozen]))
            for shard in shards:
                torch.testing.assert_close(shard.tensor, shard.of(expected[name]), rtol=1e-4, atol=1e-5)
                assert not stays or torch.equal(shard.tensor, shard.of(before[name])), name


def marks(rank: int, world_size: int) -> dict[str, str]:
    """Which optimizer trains each table, where some are marked before they are sharded."""
    del rank
    pooled, rows = _cases(world_size)
    model = _model(pooled, rows)
    tables = dict(model.sparse["pooled"].named_parameters())
    marked = [tables["embedding_bags.by_rows.weight"], tables["embedding_bags.whole.weight"]]
    apply_optimizer_in_backward(RowWiseAdagrad, marked, {"lr": 0.5})
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", pooled.local_world_size)
    sharded = DistributedModelParallel(model, env, plan=_plan(pooled, rows), sharders=sharders_for())
    states = sharded.fused_optimizer.state_dict()["state"]
    return {name: ",".join(sorted(state)) for name, state in states.items()}


def test_marked_tables_have_their_own_optimizer() -> None:
    for states in live_pool(2).run(marks):
        assert {name: state for name, state in states.items() if state} == {
            "sparse.pooled.embedding_bags.by_rows.weight": "by_rows.momentum1",
            "sparse.pooled.embedding_bags.whole.weight": "whole.momentum1",
        }


def planned(rank: int, world_size: int) -> dict[str, list[Shard]]:
    """Weights of a model whose plan the planner makes."""
    del rank, world_size
    pooled, rows = _cases(2)
    model = DistributedModelParallel(_model(pooled, rows))
    assert set(model.plan.plan) == {"sparse.pooled", "sparse.rows"}
    assert set(model.sharded_modules()) == {"sparse.pooled", "sparse.rows"}
    return {name: shards_of(tensor) for name, tensor in model.state_dict().items()}


def test_without_a_plan_the_planner_makes_one() -> None:
    expected = _model(*_cases(2)).state_dict()
    results = live_pool(2).run(planned)
    for name, weight in expected.items():
        seen = torch.zeros(weight.shape)
        for weights in results:
            for shard in weights[name]:
                shard.of(seen).add_(1)
                assert torch.equal(shard.tensor, shard.of(weight)), name
        assert bool((seen >= 1).all()), name


def only_dense(rank: int, world_size: int) -> tuple[bool, bool]:
    """Whether a model of one collection is wrapped, and whether it is found at the path ``""``."""
    del rank
    pooled, _ = _cases(world_size)
    plan: dict[str, dict[str, ParameterSharding]] = {"": dict(pooled.plan)}
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", pooled.local_world_size)
    model = DistributedModelParallel(pooled.collection(), env, plan=ShardingPlan(plan=plan))
    return isinstance(model._dmp_wrapped_module, DistributedDataParallel), "" in model.sharded_modules()


def test_a_collection_alone_is_a_model() -> None:
    assert live_pool(2).run(only_dense) == [(False, True)] * 2


def from_meta(rank: int, world_size: int) -> bool:
    """Whether a model that is on the meta device as a whole gets real layers, equal on all ranks, and trains."""
    pooled, rows = _cases(world_size)
    torch.manual_seed(3)
    with torch.device("meta"):
        model = Towers(
            EmbeddingBagCollection(pooled.tables),
            EmbeddingCollection(rows.tables),
            sum(len(table.feature_names) for table in pooled.tables),
            sum(len(table.feature_names) for table in rows.tables),
        )
    model.register_buffer("calls", torch.zeros(1))
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", pooled.local_world_size)
    sharded = DistributedModelParallel(model, env, plan=_plan(pooled, rows), sharders=sharders_for())
    before = {name: p.detach().clone() for name, p in sharded.named_parameters()}
    _loss(sharded, pooled, 2, rank).backward()
    moved = [name for name, p in sharded.named_parameters() if not torch.equal(before[name], p)]
    graded = [name for name, p in sharded.named_parameters() if p.grad is not None]
    return (
        all(p.device.type == "cpu" for p in sharded.parameters()) and bool(moved) and "below.weight" in graded
    )


def test_models_on_the_meta_device_become_real() -> None:
    assert live_pool(2).run(from_meta) == [True] * 2
