"""From models to plans; plans that cannot fit; plans that others made; the same plan on every rank."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection
from recsys.configs import EmbeddingBagConfig
from recsys.errors import PlanError
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.topology import Topology
from recsys.planner.evaluate import differences
from recsys.planner.fit import Problem
from recsys.planner.planner import EmbeddingShardingPlanner, topology_here
from recsys.planner.report.summary import summarize
from recsys.sharding.plan.plan import ShardingPlan, check_plan
from recsys.sharding.plan.sharding_types import row_wise, table_wise
from tests.recsys.planner.sets import problem, table, topology, with_memory
from tests.support.helpers import sequence
from tests.support.ranks import live_pool

INFERENCE = Workload(is_training=False, row_alignment=1, counts_buffers=False)


class TwoCollections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection([table("a", 100), table("b", 2000)], device="meta")
        self.rows = EmbeddingCollection([sequence("a", 500, 32, ["x"])], device="meta")
        self.dense = nn.Linear(1000, 1000, device="meta")


def planner(ranks: Topology, **options: Any) -> EmbeddingShardingPlanner:
    return EmbeddingShardingPlanner(ranks, **{"reserved_fraction": 0.0, **options})


def result_of(made: Problem) -> Any:
    return EmbeddingShardingPlanner(made.topology, workload=made.workload).result(made)


def test_all_collections_of_a_model_are_planned() -> None:
    model = TwoCollections()
    plan = planner(topology(4)).plan(model)
    assert set(plan.plan) == {"bags", "rows"}
    check_plan(model.bags.embedding_bag_configs(), plan.of("bags"), 4)
    check_plan(model.rows.embedding_configs(), plan.of("rows"), 4)
    assert ShardingPlan.from_json(plan.to_json()) == plan
    assert all(t.compute_kernel is not None for group in plan.plan.values() for t in group.values())


def test_sharders_say_which_collections_are_planned() -> None:
    class Sharder:
        module_type = EmbeddingCollection

    assert set(planner(topology(2)).plan(TwoCollections(), [Sharder()]).plan) == {"rows"}
    with pytest.raises(PlanError, match=r"sharders: got .*object.*expected sharders"):
        planner(topology(2)).plan(TwoCollections(), [object()])
    with pytest.raises(
        PlanError,
        match=r"model: Linear holds no recsys\.EmbeddingBagCollection or recsys\.EmbeddingCollection",
    ):
        planner(topology(2)).plan(nn.Linear(1, 1))


def test_dense_layers_and_the_reserve_leave_less_memory() -> None:
    ranks = with_memory(topology(2), hbm=50_000_000)
    dense_bytes = 1_001_000 * 4
    made = planner(ranks, reserved_fraction=0.1).problem(TwoCollections())
    assert made.capacity().hbm_bytes == 45_000_000 - 4 * dense_bytes
    asked = planner(ranks, workload=INFERENCE).problem(TwoCollections())
    assert asked.capacity().hbm_bytes == 50_000_000 - dense_bytes


def test_busy_tables_are_spread() -> None:
    tables = [table(f"t{i}", 100_000) for i in range(8)]
    busy = {name: ParameterConstraints(pooling_factors=(50.0,)) for name in ("t0", "t3")}
    plan = result_of(problem(tables, topology(2), constraints=busy)).plan.of("")
    assert {rank for name in busy for rank in plan[name].ranks or (0, 1)} == {0, 1}


@pytest.mark.parametrize(
    ("constraints", "kernel"),
    [
        ({}, "fused_uvm_caching"),
        ({"cache_load_factor": 0.9}, "fused_uvm"),
        ({"compute_kernels": ("fused_uvm",)}, "fused_uvm"),
    ],
    ids=["a cache fits", "only UVM fits", "asked"],
)
def test_tables_larger_than_all_device_memory_lie_in_host_memory(
    constraints: dict[str, Any], kernel: str
) -> None:
    ranks = with_memory(topology(1), hbm=200_000_000, ddr=2_000_000_000)
    tables = [table("large", 2_000_000), table("small", 10_000)]
    asked = {"large": ParameterConstraints(pooling_factors=(20.0,), **constraints)}
    plan = result_of(problem(tables, ranks, constraints=asked)).plan.of("")
    assert plan["large"].compute_kernel == kernel
    assert plan["small"].compute_kernel == "fused"


def test_uvm_is_not_chosen_where_device_memory_suffices() -> None:
    tables = [table(f"t{i}", 10_000 * (i + 1)) for i in range(10)]
    result = result_of(problem(tables, topology(2)))
    assert {t.compute_kernel for t in summarize(result).tables} <= {"fused", "dense"}


def remedies(error: PlanError) -> str:
    return str(error).split("what makes it fit: ")[1]


def test_a_table_that_fits_nowhere_is_named_with_the_bytes_short_and_a_remedy_that_works() -> None:
    ranks = with_memory(topology(2), hbm=33_000, ddr=0)
    made = problem([table("large", 1000, kind=DataType.INT8), table("small", 10)], ranks, INFERENCE)
    with pytest.raises(
        PlanError,
        match=r"table 'large': 68000 bytes do not fit.*over 2 ranks: 1000 bytes short of device memory",
    ) as caught:
        result_of(made)
    text = remedies(caught.value)
    found = re.search(r"(\d+) bytes of device memory per rank", text)
    assert found
    enough = int(found[1])
    result_of(replace(made, topology=with_memory(ranks, hbm=enough)))
    with pytest.raises(PlanError):
        result_of(replace(made, topology=with_memory(ranks, hbm=enough - 1)))
    assert "4 ranks" in text
    result_of(replace(made, topology=with_memory(topology(4), hbm=33_000, ddr=0)))
    assert "rows of INT4" in text


def test_constraints_that_stand_in_the_way_are_named() -> None:
    ranks = with_memory(topology(2), hbm=200_000, ddr=400_000)
    asked = ParameterConstraints(sharding_types=("table_wise",), compute_kernels=("fused",))
    tables = [table("t", 1000)]
    with pytest.raises(PlanError, match="table 't'") as caught:
        result_of(problem(tables, ranks, Workload(counts_buffers=False), {"t": asked}))
    assert "no sharding_types constraint on 't'" in remedies(caught.value)
    assert "no compute_kernels constraint on 't'" in remedies(caught.value)


def test_too_many_tables_for_all_ranks_together() -> None:
    tables = [table(f"t{i}", 1000, kind=DataType.INT8) for i in range(5)]
    ranks = with_memory(topology(2, device="cpu"), ddr=160_000)
    with pytest.raises(
        PlanError, match=r"68000 bytes do not fit.*bytes short of host memory.*at least 340000"
    ) as caught:
        result_of(problem(tables, ranks, INFERENCE))
    found = re.search(r"(\d+) bytes of host memory per rank", remedies(caught.value))
    assert found
    assert 170_000 <= int(found[1]) <= 204_000
    enough = with_memory(ranks, ddr=int(found[1]))
    check_plan(tables, result_of(problem(tables, enough, INFERENCE)).plan.of(""), 2)


def test_inference_plans_name_no_kernel_and_keep_no_copies() -> None:
    tables = [table(f"t{i}", 1000 * (i + 1), kind=DataType.INT8) for i in range(6)]
    plan = result_of(problem(tables, topology(2), INFERENCE)).plan.of("")
    assert {t.compute_kernel for t in plan.values()} == {None}
    assert not any(t.is_replicated for t in plan.values())


def test_an_edited_plan_is_estimated_as_it_is() -> None:
    tables = [table("a", 1000), table("b", 1001)]
    made = problem(tables, topology(2))
    mine = ShardingPlan(plan={"": {"a": table_wise(tables[0], 1), "b": row_wise(tables[1], [1, 0])}})
    summary = summarize(EmbeddingShardingPlanner(made.topology).evaluated(made, mine))
    assert [t.ranks for t in summary.tables] == [[1], [0, 1]]
    assert summary.worst_rank == 1
    assert summary.worst_us >= summary.least_us
    assert summary.over_capacity == []
    tight = replace(made, topology=with_memory(made.topology, hbm=300_000))
    assert summarize(EmbeddingShardingPlanner(tight.topology).evaluated(tight, mine)).over_capacity == [1]


def test_the_search_knows_what_its_plan_costs() -> None:
    tables = [table(f"t{i}", 997 * (i + 3), 64) for i in range(12)]
    result = result_of(problem(tables, topology(4, 2)))
    summary = summarize(result)
    again = EmbeddingShardingPlanner(result.problem.topology).evaluated(result.problem, result.plan)
    assert summarize(again) == replace(summary, least_us=again.least_us)
    assert again.least_us == pytest.approx(result.least_us)
    assert summary.mean_us <= summary.worst_us
    assert sum(rank.cost_us for rank in summary.ranks) == pytest.approx(
        sum(t.cost_us for t in summary.tables)
    )
    for part in ("hbm_bytes", "ddr_bytes"):
        assert sum(getattr(r, part) for r in summary.ranks) == sum(getattr(t, part) for t in summary.tables)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (ShardingPlan(plan={}), "missing collection ''"),
        (ShardingPlan(plan={"": {}, "x": {}}), r"unknown collections \['x'\]"),
        (ShardingPlan(plan={"": {"a": table_wise(table("a", 10), 7)}}), r"got ranks \[7\]"),
    ],
    ids=["missing", "unknown", "rank"],
)
def test_plans_that_do_not_fit_the_tables(plan: ShardingPlan, message: str) -> None:
    made = problem([table("a", 10)], topology(2))
    with pytest.raises(PlanError, match=message):
        EmbeddingShardingPlanner(made.topology).evaluated(made, plan)


def test_differences_name_the_tables_that_changed() -> None:
    tables: list[EmbeddingBagConfig] = [table("a", 10), table("b", 10), table("c", 10)]
    before = ShardingPlan(plan={"x": {t.name: table_wise(t, 0) for t in tables}})
    after = ShardingPlan(
        plan={
            "x": {
                "a": table_wise(tables[0], 0),
                "b": row_wise(tables[1], [0, 1]),
                "d": table_wise(tables[2], 1),
            }
        }
    )
    assert differences(before, before) == []
    assert differences(before, after) == [
        "x.b: table_wise on ranks 0 (10×64) → row_wise on ranks 0-1 (5×64)",
        "x.c: table_wise on ranks 0 (10×64) → not there",
        "x.d: not there → table_wise on ranks 1 (10×64)",
    ]


def plan_together(rank: int, world_size: int, rows: int) -> Any:
    """Only the first rank's model has the tables that are planned."""
    ranks = with_memory(topology(world_size, device="cpu"), ddr=10**7)
    model = EmbeddingBagCollection([table("t", rows if rank == 0 else 1)], device="meta")
    made = EmbeddingShardingPlanner(ranks, 10, reserved_fraction=0.0)
    try:
        return made.collective_plan(model).to_json()
    except PlanError as error:
        return str(error)


def test_every_rank_gets_the_first_ones_plan_or_its_error() -> None:
    first, second = live_pool(2).run(plan_together, 1000)
    assert first == second
    assert ShardingPlan.from_json(first).of("")["t"].shards[-1].rows[1] in (1000, 500)
    first, second = live_pool(2).run(plan_together, 10**6)
    assert first == second
    assert "table 't': 256000000 bytes do not fit" in first


def plan_here(rank: int, world_size: int) -> Any:
    del rank
    model = EmbeddingBagCollection([table("t", 1000)], device="meta")
    wrong = EmbeddingShardingPlanner(topology(world_size + 1))
    with pytest.raises(PlanError, match=r"topology\.world_size: got 3, expected the group's 2"):
        wrong.collective_plan(model)
    return sorted(EmbeddingShardingPlanner().collective_plan(model).ranks() | {0})


def test_without_a_topology_the_process_group_is_planned_for() -> None:
    first, second = live_pool(2).run(plan_here)
    assert first == second
    assert set(first) <= {0, 1}


def test_ranks_on_a_host_are_planned_for_its_memory_whatever_devices_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a device was looked for"))
    here = topology_here(device="cpu", local_world_size=1)
    assert (here.compute_device, here.world_size, here.local_world_size, here.hbm) == ("cpu", 1, 1, None)


def test_no_number_of_the_planner_is_taken_for_granted() -> None:
    with pytest.raises(PlanError, match="batch_size: got 0"):
        EmbeddingShardingPlanner(topology(1), 0)
    with pytest.raises(PlanError, match="reserved_fraction: got 1"):
        EmbeddingShardingPlanner(topology(1), reserved_fraction=1.0)
    with pytest.raises(PlanError, match=r"constraints: got unknown tables \['nobody'\]"):
        planner(topology(1), constraints={"nobody": ParameterConstraints()}).plan(TwoCollections())
    asked = {"bags.b": ParameterConstraints(pooling_factors=(1.0, 2.0))}
    with pytest.raises(PlanError, match=r"pooling_factors: got 2 numbers, expected one or 1"):
        planner(topology(1), constraints=asked).plan(TwoCollections())


def test_nothing_is_allocated_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a plan read a tensor")

    monkeypatch.setattr(torch.Tensor, "tolist", refuse)
    monkeypatch.setattr(torch.Tensor, "item", refuse)
    planner(topology(2)).plan(TwoCollections())
