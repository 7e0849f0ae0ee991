"""Touched rows, against the rows whose bits change.

Shape letters: W world size.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import (
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingCollection,
    RowWiseAdagrad,
    ShardingEnv,
    ShardingPlan,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)
from recsys.managed import (
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.optim import KeyedOptimizerWrapper
from recsys.train.stepping.ranks import whole_state_dict
from recsys.training import TouchedRows
from tests.recsys.sharding.ranks.cases import Draw, RankCase, case_of_every_type, named_outputs, random_case
from tests.recsys.sharding.ranks.training import group_of, sharders_for
from tests.support.helpers import bag, kjt_of, sequence
from tests.support.ranks import live_pool

NUM_STEPS = 4
FEATURES = {"a": [[1, 5], [5]], "b": [[2], [7, 2]]}


def changed_rows(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, list[int]]:
    """Of each table by its name in the state dict, the rows whose bits differ."""
    return {
        name: (weight.view(torch.int32) != after[name].view(torch.int32))
        .any(dim=1)
        .nonzero()
        .flatten()
        .tolist()
        for name, weight in before.items()
    }


def looked_up(case: RankCase, world_size: int, steps: range) -> dict[str, list[int]]:
    """Of each table of a case, the rows that batches of all ranks read."""
    found = {}
    for table in case.tables:
        batches = [case.batch(step, rank).to_dict() for step in steps for rank in range(world_size)]
        ids = [batch[feature].values() for batch in batches for feature in table.feature_names]
        found[table.name] = torch.cat(ids).unique().tolist()
    return found


def train_case(rank: int, _world_size: int, case: RankCase, adagrad: bool) -> list[tuple[Any, Any]]:
    """Two halves of a training: what changed (rank 0), and what each rank is told."""
    group = group_of(case.draw.world_size)
    env = ShardingEnv.from_process_group(group, "cpu", case.local_world_size)
    model = DistributedModelParallel(
        case.collection(), env, plan=ShardingPlan(plan={"": case.plan}), sharders=sharders_for()
    )
    left = dict(in_backward_optimizer_filter(model.named_parameters()))
    kind = torch.optim.Adagrad if adagrad else torch.optim.Adam
    dense = KeyedOptimizerWrapper(left, lambda params: kind(params, lr=0.1)) if left else None
    touched = TouchedRows(model, ("default", "other"), dense)
    found = []
    for half in (range(2), range(2, 4)):
        before = whole_state_dict(model)
        for step in half:
            if dense is not None:
                dense.zero_grad()
            outputs = named_outputs(model(case.batch_to_shard(step, rank)))
            case.loss(outputs, step, rank).backward()
            if dense is not None:
                dense.step()
        model.eval()
        with torch.no_grad():
            model(case.batch_to_shard(0, rank))
        model.train()
        changed = None if rank else changed_rows(before or {}, whole_state_dict(model) or {})
        if rank:
            whole_state_dict(model)
        found.append((changed, {name: rows.tolist() for name, rows in touched.rows().items()}))
    both = {name: rows.tolist() for name, rows in touched.rows("other").items()}
    return [*found, (None, both)]


def check(case: RankCase, results: list[list[tuple[Any, Any]]], world_size: int, *, adagrad: bool) -> None:
    for half, steps in enumerate((range(2), range(2, 4))):
        changed = results[0][half][0]
        expected = looked_up(case, world_size, steps)
        for result in results[:world_size]:
            assert result[half][1] == results[0][half][1]
        for name, rows in results[0][half][1].items():
            table = next(table for table in case.tables if table.name == name)
            sharding = case.plan[name]
            is_dense = sharding.is_replicated or sharding.compute_kernel == "dense"
            every = list(range(table.num_embeddings))
            assert rows == (expected[name] if adagrad or not is_dense or not expected[name] else every), name
            kind = "embeddings" if case.draw.sequence else "embedding_bags"
            assert set(changed[f"{kind}.{name}.weight"]) <= set(rows), name
        assert any(changed.values())
    # The other consumer was asked once: it gets both halves.
    for name, rows in results[0][2][1].items():
        assert rows == sorted({*results[0][0][1][name], *results[0][1][1][name]})


@pytest.mark.parametrize("adagrad", [True, False], ids=["adagrad", "adam"])
@pytest.mark.parametrize("sequence", [False, True], ids=["pooled", "rows"])
@pytest.mark.parametrize("kernel", ["fused", "dense"])
def test_tables_of_every_sharding_type(kernel: str, sequence: bool, adagrad: bool) -> None:
    draw = Draw(world_size=2, sequence=sequence, kernels=(kernel,), num_steps=NUM_STEPS)
    case = case_of_every_type("touched", draw, 1)
    check(case, live_pool(2).run(train_case, case, adagrad), 2, adagrad=adagrad)


@pytest.mark.parametrize("seed", range(6))
def test_any_shards(seed: int) -> None:
    draw = Draw(world_size=2, kernels=("fused", "dense"), num_steps=NUM_STEPS)
    case = random_case(f"touched {seed}", draw)
    sizes = [[3, 4] for _ in range(NUM_STEPS)]
    case = replace(case, batch_sizes=sizes)
    results = live_pool(2).run(train_case, case, True)
    for half, steps in enumerate((range(2), range(2, 4))):
        expected = looked_up(case, 2, steps)
        for name, rows in results[1][half][1].items():
            assert rows == expected[name]


def pooled(seed: int = 0) -> EmbeddingBagCollection:
    torch.manual_seed(seed)
    return EmbeddingBagCollection([bag("x", 20, 8, ["a"]), bag("y", 30, 8, ["b", "a"])])


def step(model: nn.Module, optimizer: torch.optim.Optimizer, features: dict[str, list[list[int]]]) -> None:
    optimizer.zero_grad()
    model(kjt_of(features)).values().square().sum().backward()
    optimizer.step()


def lists(rows: dict[str, Tensor]) -> dict[str, list[int]]:
    return {name: found.tolist() for name, found in rows.items()}


class TestUnsharded:
    def test_rows_with_a_gradient(self) -> None:
        model = pooled()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
        touched = TouchedRows(model, optimizer=optimizer)
        assert touched.tables == ["x", "y"]
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        step(model, optimizer, FEATURES)
        expected = {"x": [1, 5], "y": [1, 2, 5, 7]}
        assert {
            name.split(".")[1]: rows for name, rows in changed_rows(before, model.state_dict()).items()
        } == expected
        assert lists(touched.rows(clear=False)) == expected
        assert lists(touched.rows()) == expected
        assert lists(touched.rows()) == {"x": [], "y": []}

    @pytest.mark.parametrize(
        ("make", "whole"),
        [
            (lambda p: torch.optim.SGD(p, lr=0.1), False),
            (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
            (lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=0.1), True),
            (lambda p: torch.optim.Adam(p, lr=0.1), True),
            (lambda p: RowWiseAdagrad(p, lr=0.1, weight_decay=0.1), False),
        ],
        ids=["sgd", "momentum", "decay", "adam", "row-wise"],
    )
    def test_all_rows_where_the_optimizer_may_change_them(self, make: Any, whole: bool) -> None:
        model = pooled()
        optimizer = make(list(model.parameters()))
        touched = TouchedRows(model, optimizer=optimizer)
        step(model, optimizer, {"a": [[3]], "b": [[4]]})
        touched.clear()
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        step(model, optimizer, FEATURES)
        rows = lists(touched.rows())
        assert rows == ({"x": [*range(20)], "y": [*range(30)]} if whole else {"x": [1, 5], "y": [1, 2, 5, 7]})
        for name, changed in changed_rows(before, model.state_dict()).items():
            assert set(changed) <= set(rows[name.split(".")[1]])

    def test_all_rows_without_a_known_optimizer(self) -> None:
        model = pooled()
        touched = TouchedRows(model)
        model(kjt_of(FEATURES))
        assert lists(touched.rows()) == {"x": [*range(20)], "y": [*range(30)]}

    def test_an_optimizer_in_the_backward_pass(self) -> None:
        model = pooled()
        apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
        touched = TouchedRows(model)
        model(kjt_of(FEATURES)).values().sum().backward()
        assert lists(touched.rows())["x"] == [1, 5]

    def test_what_does_not_train_touches_nothing(self) -> None:
        model = pooled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        touched = TouchedRows(model, optimizer=optimizer)
        with torch.no_grad():
            model(kjt_of(FEATURES))
        model.eval()
        model(kjt_of(FEATURES))
        model.train()
        model.embedding_bags["x"].weight.requires_grad_(False)
        step(model, optimizer, FEATURES)
        assert lists(touched.rows()) == {"x": [], "y": [1, 2, 5, 7]}
        touched.close()
        step(model, optimizer, FEATURES)
        assert not any(rows.numel() for rows in touched.rows().values())

    def test_loaded_weights(self) -> None:
        model = nn.ModuleDict({"inner": pooled()})
        touched = TouchedRows(model)
        model.load_state_dict(nn.ModuleDict({"inner": pooled(1)}).state_dict())
        assert lists(touched.rows()) == {"inner.x": [*range(20)], "inner.y": [*range(30)]}

    def test_rows_of_sequences(self) -> None:
        model = EmbeddingCollection([sequence("s", 9, 4, ["f", "g"])])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        touched = TouchedRows(model, optimizer=optimizer)
        found = model(kjt_of({"f": [[3, 3]], "g": [[8]]}))
        torch.cat([rows.values() for rows in found.values()]).sum().backward()
        assert lists(touched.rows()) == {"s": [3, 8]}

    def test_rows_with_a_new_owner(self) -> None:
        torch.manual_seed(0)
        table = bag("t", 5, 4, ["f"])
        module = MCHManagedCollisionModule(5, None, LRU_EvictionPolicy(), 1)
        model = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection([table]),
            ManagedCollisionCollection({"t": module}, [table]),
            embeddings_only=True,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        touched = TouchedRows(model, optimizer=optimizer)
        assert touched.tables == ["_embedding_module.t"]
        before = model.state_dict()["_embedding_module.embedding_bags.t.weight"].clone()
        for ids in ([100, 200], [300, 400, 500], [600]):
            step(model, optimizer, {"f": [ids]})
        after = model.state_dict()["_embedding_module.embedding_bags.t.weight"]
        changed = (before != after).any(dim=1).nonzero().flatten().tolist()
        assert len(changed) > 3
        assert set(changed) <= set(touched.rows()["_embedding_module.t"].tolist())


def reset_and_load(rank: int, world_size: int) -> list[Any]:
    """What is told of rows that are reset, and of loaded weights."""
    case = case_of_every_type("touched", Draw(world_size=world_size), 1)
    env = ShardingEnv.from_process_group(group_of(world_size), "cpu", 1)
    model = DistributedModelParallel(
        case.collection(), env, plan=ShardingPlan(plan={"": case.plan}), sharders=sharders_for()
    )
    touched = TouchedRows(model)
    collection = model.sharded_modules()[""]
    for table in case.tables:
        collection.reset_rows(table.name, torch.tensor([0, 10]), torch.ones(2, table.embedding_dim))
    reset = lists(touched.rows())
    touched.mark("by_rows", torch.tensor([rank * 7]))
    marked = lists(touched.rows())
    model.load_state_dict(case.collection().state_dict())
    return [reset, marked, lists(touched.rows())]


def test_sharded_rows_that_are_overwritten() -> None:
    case = case_of_every_type("touched", Draw(world_size=2), 1)
    for reset, marked, loaded in live_pool(2).run(reset_and_load):
        assert reset == {table.name: [0, 10] for table in case.tables}
        assert {name: rows for name, rows in marked.items() if rows} == {"by_rows": [0, 7]}
        assert loaded == {table.name: [*range(11)] for table in case.tables}


def test_wrong_consumers() -> None:
    with pytest.raises(ValueError, match="between 1 and 8 different names"):
        TouchedRows(pooled(), ["a", "a"])
    with pytest.raises(ValueError, match="has no tables"):
        TouchedRows(nn.Linear(2, 2))
    touched = TouchedRows(pooled(), ["a"])
    with pytest.raises(ValueError, match="consumer: got 'b', expected one of"):
        touched.rows("b")
    with pytest.raises(ValueError, match="table: got 'z', expected one of"):
        touched.mark("z")


def test_copies_of_a_model_mark_nothing() -> None:
    model = pooled()
    touched = TouchedRows(model)
    twin = copy.deepcopy(model)
    twin(kjt_of(FEATURES)).values().sum().backward()
    twin.load_state_dict(model.state_dict())
    assert not any(rows.numel() for rows in touched.rows().values())
