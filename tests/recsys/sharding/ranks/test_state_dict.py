"""State dicts of sharded collections: the unsharded names, whole tables in parts, loaded from parts or from wholes.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor

from recsys import DistributedModelParallel, EmbeddingBagCollection, ShardingEnv, ShardingPlan
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type, random_case
from tests.recsys.sharding.ranks.oracle import OPTIMIZERS
from tests.recsys.sharding.ranks.training import Shard, group_of, sharded, sharders_for, shards_of
from tests.support.ranks import live_pool

DRAWS = {
    **{f"W=2 {i}": Draw(world_size=2) for i in range(4)},
    **{f"W=4 {i}": Draw(world_size=4) for i in range(4)},
    **{f"W=4 sequence {i}": Draw(world_size=4, sequence=True) for i in range(2)},
}


def state_of(rank: int, world_size: int, case: RankCase) -> dict[str, Any]:
    """Names, and of each sharded table: its size, its shards everywhere, and those that this rank says it holds."""
    del world_size
    model = sharded(case)
    state = model.state_dict()
    tables = {}
    for name, tensor in state.items():
        if isinstance(tensor, ShardedTensor):
            metadata = tensor.metadata()
            shards = [
                (tuple(s.shard_offsets), tuple(s.shard_sizes), s.placement.rank())
                for s in metadata.shards_metadata
            ]
            mine = [(s.offsets, s.sizes, rank) for s in shards_of(tensor)]
            tables[name] = (tuple(metadata.size), metadata.tensor_properties.dtype, shards, mine)
    return {
        "names": list(state),
        "parameters": [name for name, _ in model.named_parameters()],
        "tables": tables,
        "plain": {name: tensor for name, tensor in state.items() if type(tensor) is Tensor},
    }


@pytest.mark.parametrize("name", list(DRAWS))
def test_names_are_the_unsharded_ones_and_metadata_covers_each_table(name: str) -> None:
    case = random_case(f"state {name}", DRAWS[name])
    unsharded = case.collection().state_dict()
    results = live_pool(case.draw.world_size).run(state_of, case)
    for found in results:
        assert found["names"] == list(unsharded)
        assert {p.partition(".weight")[0] + ".weight" for p in found["parameters"]} <= set(unsharded)
        for table, weight in unsharded.items():
            if table in found["plain"]:
                assert torch.equal(found["plain"][table], weight)
                continue
            size, dtype, shards, mine = found["tables"][table]
            assert size == tuple(weight.shape)
            assert dtype == weight.dtype
            assert shards == results[0]["tables"][table][2]
            assert sorted(mine) == sorted(s for s in shards if s[2] == mine[0][2]) if mine else True
            covered = torch.zeros(size)
            for (row, column), (rows, columns), _ in shards:
                covered[row : row + rows, column : column + columns] += 1
            assert bool((covered == 1).all())


def load(rank: int, world_size: int, case: RankCase, source: str) -> tuple[dict[str, list[Shard]], list[str]]:
    """Weights after another model's have been loaded: from whole tables, or from the same plan's shards."""
    del rank, world_size
    other = replace(case, name=f"{case.name}, other numbers")
    model, giver = sharded(other), sharded(case)
    state = case.collection().state_dict() if source == "whole" else giver.state_dict()
    held = [shard.tensor for tensor in model.state_dict().values() for shard in shards_of(tensor)]
    given = [shard.tensor for tensor in giver.state_dict().values() for shard in shards_of(tensor)]
    assert not any(torch.equal(a, b) for a, b in zip(held, given, strict=True))
    answer = model.load_state_dict(state)
    return {name: shards_of(t) for name, t in model.state_dict().items()}, [
        *answer.missing_keys,
        *answer.unexpected_keys,
    ]


@pytest.mark.parametrize("source", ["whole", "shards"])
@pytest.mark.parametrize("name", list(DRAWS))
def test_loading_takes_whole_tables_and_shards(name: str, source: str) -> None:
    case = random_case(f"state {name}", DRAWS[name])
    unsharded = case.collection().state_dict()
    for weights, keys in live_pool(case.draw.world_size).run(load, case, source):
        assert keys == []
        for table, shards in weights.items():
            for shard in shards:
                assert torch.equal(shard.tensor, shard.of(unsharded[table]))


def resume(rank: int, world_size: int, case: RankCase, optimizer: str) -> bool:
    """Whether a model that loads weights and optimizer state after a step takes the same next step."""
    del world_size
    first, second = sharded(case, optimizer), sharded(replace(case, name="other numbers"), optimizer)

    def step(model: DistributedModelParallel, number: int) -> None:
        found = model(case.batch(number, rank)).wait().to_dict()
        case.loss(found, number, rank).backward()

    step(first, 0)
    second.load_state_dict(first.state_dict())
    second.fused_optimizer.load_state_dict(first.fused_optimizer.state_dict())
    before = [shard.tensor for t in first.state_dict().values() for shard in shards_of(t)]
    step(first, 1)
    step(second, 1)
    pairs = list(zip(first.state_dict().values(), second.state_dict().values(), strict=True))
    equal = [
        torch.equal(a.tensor, b.tensor)
        for of_first, of_second in pairs
        for a, b in zip(shards_of(of_first), shards_of(of_second), strict=True)
    ]
    after = [shard.tensor for of_first, _ in pairs for shard in shards_of(of_first)]
    return all(equal) and any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_training_goes_on_from_weights_and_optimizer_states(optimizer: str) -> None:
    case = case_of_every_type("resumed", Draw(world_size=4, num_steps=2), local_world_size=2)
    assert live_pool(4).run(resume, case, optimizer) == [True] * 4


def initial_rows(rank: int, world_size: int, case: RankCase) -> dict[str, list[Shard]]:
    """The state dict of tables that nobody had in memory before they were sharded."""
    del rank, world_size
    torch.manual_seed(7)
    env = ShardingEnv.from_process_group(group_of(case.draw.world_size), "cpu", case.local_world_size)
    model = DistributedModelParallel(
        EmbeddingBagCollection(case.tables, device="meta"),
        env=env,
        plan=ShardingPlan(plan={"": case.plan}),
        sharders=sharders_for(OPTIMIZERS["sgd"].fused_params()),
    )
    return {name: shards_of(tensor) for name, tensor in model.state_dict().items()}


def test_initial_rows_are_the_same_under_every_plan() -> None:
    cases = {
        "one rank": case_of_every_type("initial", Draw(world_size=1)),
        "two ranks": case_of_every_type("initial", Draw(world_size=2)),
        "four ranks": case_of_every_type("initial", Draw(world_size=4)),
        "two hosts, dense": case_of_every_type(
            "initial", Draw(world_size=4, kernels=("dense",)), local_world_size=2
        ),
    }
    # Tables of one name and size, cut in other ways: each plan is one further on.
    kinds = list(cases["one rank"].plan)
    whole: dict[str, Tensor] = {}
    for shift, case in enumerate(cases.values()):
        turned = [kinds[(i + shift) % len(kinds)] for i in range(len(kinds))]
        plan = {kind: case.plan[cut] for kind, cut in zip(kinds, turned, strict=True)}
        results = live_pool(max(2, case.draw.world_size)).run(initial_rows, replace(case, plan=plan))
        for rank, weights in enumerate(results):
            for name, shards in weights.items():
                for shard in shards:
                    known = whole.setdefault(name, torch.full((11, 32), torch.nan))
                    part = shard.of(known)
                    assert bool((part.isnan() | (part == shard.tensor)).all()), f"{name} on rank {rank}"
                    part.copy_(shard.tensor)
    for name, weight in whole.items():
        assert float(weight.abs().max()) <= 11**-0.5, name
        assert weight.unique().numel() > 0.9 * weight.numel(), name


def load_wrongly(rank: int, world_size: int, case: RankCase, what: str) -> str:
    """The message."""
    del rank, world_size
    model = sharded(case)
    state = case.collection().state_dict()
    name = "embedding_bags.by_rows.weight"
    if what == "a table is missing":
        del state[name]
    elif what == "an unknown table":
        state["embedding_bags.other.weight"] = state[name]
    elif what == "another size":
        state[name] = state[name][:-1]
    else:
        plan = {kind: case.plan[kind] for kind in case.plan}
        plan["by_rows"], plan["whole"] = plan["whole"], plan["by_rows"]
        state = sharded(replace(case, plan=plan)).state_dict()
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        return str(error)
    return "loaded"


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a table is missing", 'Missing key(s) in state_dict: "embedding_bags.by_rows.weight"'),
        ("an unknown table", 'Unexpected key(s) in state_dict: "embedding_bags.other.weight"'),
        ("another size", "embedding_bags.by_rows.weight: got another shape than the table's [11, 32]"),
        ("another plan", "load checkpoints of another plan through torch.distributed.checkpoint"),
    ],
)
def test_what_cannot_be_loaded_is_named(what: str, text: str) -> None:
    case = case_of_every_type("wrong state", Draw(world_size=2))
    for message in live_pool(2).run(load_wrongly, case, what):
        assert text in message
