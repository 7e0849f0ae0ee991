"""Quality of the planner's plans, and planning time.

    python -m benchmarks.planner

1. Small random sets: the plan's worst rank against the optimum over all options and all placements.
2. Large random sets: against max(total / W, largest shard) of the plan's own options, and against the lower bound of
   any plan with any options.
3. Planning time: 1 000 tables on 128 ranks; 100 tables on 8 ranks beside TorchRec's planner.

Costs are the planner's own estimates: this measures the search, not the cost model.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.tables import table_of
from benchmarks.models.planner_sets import SetShape, large_set, random_set, small_set
from recsys.planner.fit import Problem, with_room
from recsys.planner.planner import EmbeddingShardingPlanner
from recsys.planner.search.bounds import of_choice
from recsys.planner.search.search import search
from tests.support.exact_plans import least_cost_us


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """A distribution of ratios of the plan's worst rank to a reference.

    Attributes:
        name: the reference.
        aim: upper limit of the ratios, if any: the bound of any plan is not tight, because it treats tables
            as divisible.
        ratios: sorted.
        num_without_plan: sets for which the planner found no plan.
        num_impossible: of those, the sets for which no plan exists.
    """

    name: str
    aim: float | None
    ratios: Sequence[float]
    num_without_plan: int = 0
    num_impossible: int = 0

    @property
    def num_beyond_aim(self) -> int:
        """Number of ratios above the aim."""
        return 0 if self.aim is None else sum(ratio > self.aim for ratio in self.ratios)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        quantiles = {f"p{q}": self.at(q / 100) for q in (0, 50, 90, 95, 99, 100)}
        return {
            "name": self.name,
            "aim": self.aim,
            "num_sets": len(self.ratios),
            "num_beyond_aim": self.num_beyond_aim,
            "num_without_plan": self.num_without_plan,
            "num_impossible": self.num_impossible,
            **quantiles,
        }

    def at(self, part: float) -> float:
        """Return this quantile of the ratios."""
        return self.ratios[min(int(part * len(self.ratios)), len(self.ratios) - 1)]


def against_optimum(num_sets: int) -> Ratios:
    """Small sets, brute force."""
    ratios, without, impossible = [], 0, 0
    for seed in range(num_sets):
        problem = small_set(seed)
        capacity = problem.capacity()
        options, misfit = with_room(problem.options(), capacity)
        best = None if misfit else least_cost_us(capacity, options)
        placement = None if misfit else search(capacity, options).placement
        if placement is None:
            without += 1
            impossible += best is None
        else:
            assert best is not None
            ratios.append(placement.cost_us / best)
    return Ratios(
        name="optimum, by brute force",
        aim=1.05,
        ratios=sorted(ratios),
        num_without_plan=without,
        num_impossible=impossible,
    )


def against_bounds(num_sets: int) -> Iterator[Ratios]:
    """Large sets, both lower bounds."""
    of_chosen, of_any, without = [], [], 0
    for seed in range(num_sets):
        problem = large_set(seed)
        capacity = problem.capacity()
        options, misfit = with_room(problem.options(), capacity)
        found = None if misfit else search(capacity, options)
        if found is None or found.placement is None:
            without += 1
            continue
        cost_us = found.placement.cost_us
        chosen = [option for option in found.placement.options if option is not None]
        of_chosen.append(cost_us / of_choice(capacity, chosen))
        of_any.append(cost_us / found.least_us)
    for name, ratios, aim in (
        ("max(total / W, largest shard) of the plan", of_chosen, 1.10),
        ("lower bound of any plan", of_any, None),
    ):
        yield Ratios(name=name, aim=aim, ratios=sorted(ratios), num_without_plan=without)


def planning_s(num_tables: int, ranks: tuple[int, int], fill: float) -> tuple[float, Problem]:
    """Processor time (of one core) from tables to a checked plan, and what was planned."""
    shape = SetShape(num_tables=num_tables, ranks=ranks, device="cuda", fill=fill)
    problem = random_set(shape, random.Random(0))
    planner = EmbeddingShardingPlanner(problem.topology)
    start = time.process_time()
    planner.result(problem)
    return time.process_time() - start, problem


def peer_s(problem: Problem) -> float | None:
    """TorchRec's planner with its defaults on the same tables and pooling factors; None without TorchRec.

    It gets twice the memory: its default reservation for dense layers and inputs would leave none for the tables.
    """
    if find_spec("torchrec") is None:
        return None
    logging.disable(logging.WARNING)
    torchrec = import_module("torchrec")
    planner = import_module("torchrec.distributed.planner")
    sharder = import_module("torchrec.distributed.embeddingbag").EmbeddingBagCollectionSharder
    types = import_module("torchrec.distributed.planner.types")
    tables = [
        torchrec.EmbeddingBagConfig(
            name=t.config.name,
            num_embeddings=t.config.num_embeddings,
            embedding_dim=t.config.embedding_dim,
            feature_names=list(t.config.feature_names),
        )
        for t in problem.tables
    ]
    model = torchrec.EmbeddingBagCollection(tables=tables, device=import_module("torch").device("meta"))
    topology = problem.topology
    peer = planner.EmbeddingShardingPlanner(
        topology=planner.Topology(
            world_size=topology.world_size,
            local_world_size=topology.local_world_size,
            compute_device="cuda",
            hbm_cap=topology.hbm_bytes * 2,
            ddr_cap=topology.ddr_bytes,
        ),
        constraints={
            t.config.name: types.ParameterConstraints(
                pooling_factors=list(t.constraints.pooling_factors or ())
            )
            for t in problem.tables
        },
    )
    start = time.process_time()
    peer.plan(model, [sharder()])
    return time.process_time() - start


def bars(distributions: Sequence[Ratios]) -> list[Bar]:
    """Return a bar for the worst set of each distribution with an aim."""
    return [
        Bar(f"worst rank ÷ {d.name}, the worst of {len(d.ratios)} sets", d.aim, d.at(1.0), is_most=True)
        for d in distributions
        if d.aim is not None
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    epilog = f"exit codes: 0 measured, 2 bad usage, {MISSED_TEXT}"
    parser = make_parser("planner", __doc__, epilog, has_bars=True)
    parser.add_argument("--small-sets", type=int, default=300, help="for the optimum (default: 300)")
    parser.add_argument("--large-sets", type=int, default=60, help="for the lower bounds (default: 60)")
    return run(parser, argv, _measured)


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    distributions = [against_optimum(args.small_sets), *against_bounds(args.large_sets)]
    times: dict[str, float | None] = {}
    for fill in (2.0, 1.1):
        times[f"1 000 tables × 128 ranks, memory for {fill} times the tables"], _ = planning_s(
            1000, (128, 8), fill
        )
    times["100 tables × 8 ranks"], problem = planning_s(100, (8, 8), 2.0)
    times["100 tables × 8 ranks, TorchRec"] = peer_s(problem)
    return Measured(
        data={"distributions": [d.to_json() for d in distributions], "planning_s": times},
        shown=_tables(distributions, times),
        bars=bars(distributions),
    )


def _tables(distributions: Sequence[Ratios], times: dict[str, float | None]) -> list[Table]:
    rows = []
    for d in distributions:
        without = (
            f"{d.num_without_plan} ({d.num_impossible})" if d.num_impossible else f"{d.num_without_plan}"
        )
        parts = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "worst": 1.0}
        quantiles = {name: f"{d.at(part):.4f}" for name, part in parts.items()}
        sets = {"sets": str(len(d.ratios)), "no plan (of those: none exists)": without}
        rows.append({"over": d.name, **sets, **quantiles})
    speed = [
        {"what": name, "seconds of one core": "not installed" if seconds is None else f"{seconds:.2f}"}
        for name, seconds in times.items()
    ]
    return [table_of("the plan's worst rank over …", rows), table_of("planning", speed)]


if __name__ == "__main__":
    sys.exit(main())
