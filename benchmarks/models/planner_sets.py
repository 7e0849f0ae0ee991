"""Random sets of tables to plan, small ones whose optimum can be found and large ones.

Shape letters: D embedding dim, R rows, T tables, W world size.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from recsys.configs import EmbeddingBagConfig
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.machine import Link
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import default_topology
from recsys.planner.fit import Problem

_DIMS = (16, 32, 64, 128, 256)
#: Total memory as a multiple of the tables' minimum, divided evenly.
_FILLS = (1.1, 1.3, 2.0, 100.0)
# (W, ranks per host), and the most tables for which the optimum is found in about a second.
_SMALL = (((2, 2), 7), ((3, 3), 7), ((4, 2), 5), ((4, 4), 5))
_LARGE = ((8, 8), (16, 8), (32, 8), (64, 8), (128, 8))


@dataclass(frozen=True, kw_only=True)
class SetShape:
    """The parameters of a random set.

    Attributes:
        num_tables: T.
        ranks: W, ranks per host.
        device: ``cuda`` or ``cpu``.
        fill: memory in parts of what the tables need at least.
        largest_exponent: of 10, for R; the smallest is 3.
    """

    num_tables: int
    ranks: tuple[int, int]
    device: str
    fill: float
    largest_exponent: float = 7.3


def small_set(seed: int) -> Problem:
    """A set whose optimum can be found."""
    rng = random.Random(seed)
    ranks, most = rng.choice(_SMALL)
    shape = SetShape(
        num_tables=rng.randint(2, most),
        ranks=ranks,
        device=rng.choice(("cuda", "cpu")),
        fill=rng.choice(_FILLS),
        largest_exponent=6.5,
    )
    return random_set(shape, rng)


def large_set(seed: int) -> Problem:
    """A set of 2 to 12 tables a rank, 20 to 600 in all."""
    rng = random.Random(seed)
    ranks = rng.choice(_LARGE)
    num_tables = min(max(int(ranks[0] * rng.uniform(2, 12)), 20), 600)
    device = rng.choice(("cuda", "cpu"))
    return random_set(
        SetShape(num_tables=num_tables, ranks=ranks, device=device, fill=rng.choice(_FILLS)), rng
    )


def random_set(shape: SetShape, rng: random.Random) -> Problem:
    """Tables whose rows and pooling factors are spread evenly over magnitudes (pooling factors from 1 to 100).

    There is no reserve and no cost per shard, so that only the quality of the search matters.
    """
    tables, constraints = [], {}
    for i in range(shape.num_tables):
        name = f"t{i}"
        rows = int(10 ** rng.uniform(3, shape.largest_exponent))
        tables.append(
            EmbeddingBagConfig(
                name=name, num_embeddings=rows, embedding_dim=rng.choice(_DIMS), feature_names=[f"f{i}"]
            )
        )
        constraints[name] = ParameterConstraints(pooling_factors=(10 ** rng.uniform(0, 2),))
    topology = default_topology(shape.device, world_size=shape.ranks[0], local_world_size=shape.ranks[1])
    free = Link(bandwidth=topology.intra_host.bandwidth, latency_us=0.0)
    problem = Problem(
        tables=planned_tables({"": tables}, constraints),
        topology=topology.replaced(shard_us=0.0, intra_host=free),
        workload=Workload(),
    )
    return _with_memory(problem, shape.fill)


def _with_memory(problem: Problem, fill: float) -> Problem:
    """As much device memory as the fill says, but at least a twentieth more than the bulkiest block needs."""
    options = problem.options()
    needed = sum(min(_bytes(option) for option in group) for group in options)
    bulkiest = max(min(_bytes(o) / o.span / len(o.blocks) for o in group) for group in options)
    capacity = int(max(needed / problem.topology.world_size * fill, bulkiest * 1.05))
    topology = problem.topology
    if topology.hbm is None:
        return replace(
            problem, topology=topology.replaced(ddr=replace(topology.ddr, capacity_bytes=capacity))
        )
    return replace(problem, topology=topology.replaced(hbm=replace(topology.hbm, capacity_bytes=capacity)))


def _bytes(option: ShardingOption) -> float:
    return float(option.hbm_bytes + option.ddr_bytes)
