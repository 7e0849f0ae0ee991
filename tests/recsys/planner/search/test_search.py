"""How near plans come to what is possible; that memory is kept; that bounds are bounds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from benchmarks.models.planner_sets import SetShape, random_set, small_set
from recsys.planner.cost.capacity import CustomTopologyData
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.cost.topology import Topology
from recsys.planner.evaluate import plan_of
from recsys.planner.fit import Problem, with_room
from recsys.planner.planner import EmbeddingShardingPlanner
from recsys.planner.search.bounds import of_any_plan, of_choice
from recsys.planner.search.placement import GREEDY, PARTITIONERS, Capacity, Misfit, Placement, partition
from recsys.planner.search.search import pack, search
from recsys.sharding.plan.plan import check_plan
from tests.recsys.planner import sets
from tests.support.exact_plans import least_cost_us


def prepared(problem: Problem) -> tuple[Capacity, list[list[ShardingOption]]]:
    capacity = problem.capacity()
    options, misfit = with_room(problem.options(), capacity)
    assert misfit is None
    return capacity, options


def check(problem: Problem, capacity: Capacity, placement: Placement) -> None:
    """What the placement says of its ranks is true, memory is kept, and the plan covers every table."""
    loads, hbm, ddr = ([0.0] * capacity.world_size for _ in range(3))
    for option, slots in zip(placement.options, placement.slots, strict=True):
        assert option is not None
        assert len(set(slots)) == len(option.blocks)
        for block, slot in zip(option.blocks, slots, strict=True):
            for rank in range(slot * option.span, (slot + 1) * option.span):
                loads[rank] += block.total_us
                hbm[rank] += block.hbm_bytes
                ddr[rank] += block.ddr_bytes
    assert placement.cost_us == pytest.approx(max(loads))
    assert max(hbm) <= capacity.hbm_bytes
    assert max(ddr) <= capacity.ddr_bytes
    plan = plan_of(problem.tables, placement, is_training=True)
    check_plan([t.config for t in problem.tables], plan.of(""), capacity.world_size)


@pytest.mark.parametrize("seed", range(16))
def test_small_plans_are_within_5_percent_of_the_optimum(seed: int) -> None:
    problem = small_set(seed)
    capacity, options = prepared(problem)
    found = search(capacity, options)
    best = least_cost_us(capacity, options)
    assert best is not None
    assert found.placement is not None
    check(problem, capacity, found.placement)
    assert found.least_us <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= found.placement.cost_us <= best * 1.05


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("fill", [1.15, 1.5, 100.0])
def test_large_plans_are_within_10_percent_of_the_lower_bound(fill: float, device: str) -> None:
    problem = random_set(
        SetShape(num_tables=60, ranks=(16, 8), device=device, fill=fill), random.Random(int(fill * 100))
    )
    capacity, options = prepared(problem)
    placement = search(capacity, options).placement
    assert placement is not None
    check(problem, capacity, placement)
    chosen = [option for option in placement.options if option is not None]
    assert placement.cost_us <= 1.10 * of_choice(capacity, chosen)


def test_ranks_of_different_memory_are_used_in_full() -> None:
    """The large table fits on the large rank alone, and the others on what is left beside it."""
    memory = CustomTopologyData({"hbm_cap": [400_000, 100_000], "ddr_cap": [0, 0]}, 2)
    ranks = Topology(2, "cuda", custom_topology_data=memory)
    whole = ParameterConstraints(sharding_types=["table_wise"])
    tables = [sets.table("large", 1200), sets.table("a", 300), sets.table("b", 300)]
    problem = sets.problem(tables, ranks, constraints=dict.fromkeys(("large", "a", "b"), whole), batch_size=1)
    planner = EmbeddingShardingPlanner(ranks)
    shardings = planner.result(problem).plan.of("")
    assert shardings["large"].ranks == [0]
    assert sorted(shardings[name].ranks[0] for name in "ab") == [0, 1]


def test_the_same_tables_give_the_same_plan() -> None:
    problem = small_set(3)
    capacity, options = prepared(problem)
    plans = [search(capacity, options).placement for _ in range(2)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert (plans[0].options, plans[0].slots) == (plans[1].options, plans[1].slots)


def test_brute_force_tries_everything() -> None:
    """Against a search without any bound."""
    problem = random_set(SetShape(num_tables=3, ranks=(2, 2), device="cpu", fill=1.3), random.Random(5))
    capacity, options = prepared(problem)

    def worst(i: int, loads: Sequence[float], free: Sequence[float]) -> float:
        if i == len(options):
            return max(loads)
        least = float("inf")
        for option in options[i]:
            ways: list[list[tuple[int, int]]]
            if option.span == 2:
                ways = [[(0, 0), (1, 0)]]
            elif len(option.blocks) == 2:
                ways = [[(0, 0), (1, 1)], [(1, 0), (0, 1)]]
            else:
                ways = [[(0, 0)], [(1, 0)]]
            for way in ways:
                new, left = list(loads), list(free)
                for rank, block in way:
                    new[rank] += option.blocks[block].total_us
                    left[rank] -= option.blocks[block].ddr_bytes
                if min(left) >= 0:
                    least = min(least, worst(i + 1, new, left))
        return least

    expected = worst(0, [0.0, 0.0], [float(capacity.ddr_bytes)] * 2)
    assert least_cost_us(capacity, options) == pytest.approx(expected)


@pytest.mark.parametrize("by", PARTITIONERS)
def test_partitioners_keep_memory_or_name_what_does_not_fit(by: str) -> None:
    problem = random_set(SetShape(num_tables=20, ranks=(4, 4), device="cpu", fill=1.2), random.Random(2))
    capacity, options = prepared(problem)
    whole = [next(o for o in group if o.sharding_type == "table_wise") for group in problem.options()]
    found = partition(capacity, whole, by)
    if isinstance(found, Misfit):
        assert found.memory == "ddr"
        assert 0 < found.short_bytes <= whole[found.table].max_ddr_bytes
    else:
        check(problem, capacity, found)
    packed = pack(capacity, options)
    assert isinstance(packed, Placement)
    check(problem, capacity, packed)


def test_the_greedy_partitioner_gives_the_heaviest_to_the_idlest() -> None:
    problem = random_set(SetShape(num_tables=9, ranks=(3, 3), device="cpu", fill=100.0), random.Random(1))
    whole = [next(o for o in group if o.sharding_type == "table_wise") for group in problem.options()]
    found = partition(problem.capacity(), whole, GREEDY)
    assert isinstance(found, Placement)
    by_weight = sorted(range(9), key=lambda i: -whole[i].total_us)
    assert [found.slots[i][0] for i in by_weight[:3]] == [0, 1, 2]
    assert found.loads_us.max() - found.loads_us.min() <= whole[by_weight[0]].total_us


def test_less_memory_never_lowers_the_bound() -> None:
    bounds = []
    for fill in (100.0, 1.5, 1.1):
        shape = SetShape(num_tables=12, ranks=(4, 4), device="cuda", fill=fill)
        capacity, options = prepared(random_set(shape, random.Random(7)))
        bounds.append(of_any_plan(capacity, options))
    free, *scarce = bounds
    assert min(scarce) >= free * (1 - 1e-9)
    assert max(scarce) > free * 1.001
