"""Tables are cut, or kept in host memory, only where that lowers the worst rank's cost or makes room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import default_topology
from recsys.planner.fit import Problem, with_room
from recsys.planner.planner import EmbeddingShardingPlanner
from recsys.planner.search.placement import Placement
from recsys.planner.search.search import TINY_BYTES, is_simple, search
from recsys.sharding.plan.plan import ParameterSharding
from tests.recsys.planner.sets import table, with_memory

INFERENCE = Workload(is_training=False, optimizer="sgd")
#: Rows of the tables of Criteo's Kaggle data set: from 3 to ten million.
CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
#: Devices, columns, and memory of a rank in parts of its share of all tables.
CASES = [
    (4, 128, 2.4),
    (8, 16, 2.4),
    (8, 64, 2.4),
    (8, 64, 1.4),
]


def criteo(
    device: str, world_size: int, dim: int, fill: float | None, workload: Workload | None = None
) -> Problem:
    """The tables on the default topology's ranks."""
    ranks = default_topology(device, world_size=world_size)
    if fill is not None:
        num_bytes = int(sum(CRITEO) * (dim * 4 + 4) / world_size * fill)
        ranks = with_memory(ranks, hbm=num_bytes) if device == "cuda" else with_memory(ranks, ddr=num_bytes)
    tables = [table(f"t{i}", rows, dim) for i, rows in enumerate(CRITEO)]
    return Problem(
        tables=planned_tables({"": tables}, None, 512), topology=ranks, workload=workload or Workload()
    )


def planned(problem: Problem) -> dict[str, ParameterSharding]:
    planner = EmbeddingShardingPlanner(problem.topology, workload=problem.workload)
    return dict(planner.result(problem).plan.of(""))


def tiny(problem: Problem) -> set[str]:
    return {
        t.config.name
        for t in problem.tables
        if t.config.num_embeddings * t.config.embedding_dim * 4 <= TINY_BYTES
    }


def placed(problem: Problem) -> tuple[Placement, list[list[ShardingOption]]]:
    capacity = problem.capacity()
    options, misfit = with_room(problem.options(), capacity)
    assert misfit is None
    found = search(capacity, options)
    assert found.placement is not None
    return found.placement, options


@pytest.mark.parametrize(("world_size", "dim", "fill"), CASES)
def test_tiny_tables_are_neither_cut_nor_cached(world_size: int, dim: int, fill: float) -> None:
    problem = criteo("cuda", world_size, dim, fill)
    plan = planned(problem)
    for name in tiny(problem):
        assert len(plan[name].shards) <= 1, f"{name}: {plan[name].sharding_type}"
        assert plan[name].compute_kernel in ("fused", "dense")


@pytest.mark.parametrize(("world_size", "dim"), [(3, 64), (4, 128), (8, 64)])
def test_tiny_tables_are_not_cut_for_inference(world_size: int, dim: int) -> None:
    problem = criteo("cpu", world_size, dim, None, INFERENCE)
    plan = planned(problem)
    assert {name: plan[name].sharding_type for name in tiny(problem)} == dict.fromkeys(
        tiny(problem), "table_wise"
    )


@pytest.mark.parametrize(("world_size", "dim", "fill"), CASES)
def test_no_table_is_cut_or_cached_that_could_be_whole_at_the_same_cost(
    world_size: int, dim: int, fill: float
) -> None:
    placement, options = placed(criteo("cuda", world_size, dim, fill))
    worst_us = placement.cost_us
    for i, group in enumerate(options):
        chosen = placement.options[i]
        assert chosen is not None
        if is_simple(chosen):
            continue
        without = placement.copy()
        without.remove(i)
        for option in (o for o in group if is_simple(o) and o.total_us <= chosen.total_us):
            other = without.copy()
            if other.place(i, option) is None:
                assert other.cost_us > worst_us, f"t{i}: {chosen.text()} instead of {option.text()}"


def test_a_tiny_table_that_all_ranks_wait_for_is_cut() -> None:
    tables = [table("hot", 100), table("cold", 100_000)]
    constraints = {"hot": ParameterConstraints(pooling_factors=(1000.0,))}
    ranks = default_topology("cpu", world_size=2)
    problem = Problem(
        tables=planned_tables({"": tables}, constraints, 512), topology=ranks, workload=INFERENCE
    )
    assert len(planned(problem)["hot"].shards) == 2


def test_tiny_tables_are_cut_where_they_fit_on_no_rank_whole() -> None:
    rows = TINY_BYTES // (64 * 4)
    problem = Problem(
        tables=planned_tables({"": [table("t", rows)]}, None, 1),
        topology=with_memory(default_topology("cpu", world_size=2), ddr=TINY_BYTES * 3 // 4),
        workload=replace(INFERENCE, counts_buffers=False),
    )
    assert len(planned(problem)["t"].shards) == 2


def test_constraints_cut_tiny_tables() -> None:
    constraints = {"t": ParameterConstraints(sharding_types=("row_wise",))}
    problem = Problem(
        tables=planned_tables({"": [table("t", 104)]}, constraints, 512),
        topology=default_topology("cuda", world_size=3),
        workload=Workload(),
    )
    assert planned(problem)["t"].sharding_type == "row_wise"
