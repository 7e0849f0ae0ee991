"""Plans for the devices of one process: for inference, counting only rows, with whole tables if they fit.

Shape letters: W world size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.planner.constants import POOLING_FACTOR
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Workload, row_bytes_of
from recsys.planner.cost.machine import Link
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import default_topology
from recsys.planner.fit import Problem
from recsys.planner.planner import EmbeddingShardingPlanner
from recsys.rows.format import HOST_ROW_ALIGNMENT
from recsys.sharding.plan.device_rows import table_path
from recsys.sharding.plan.plan import ShardingPlan

_WHOLE = ("table_wise",)
_WHOLE_OR_CUT = ("table_wise", "row_wise")


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options of the plan.

    Attributes:
        world_size: W.
        budget_bytes: Memory for rows on each device; None for no bound.
        row_alignment: The alignment of the rows, in bytes.
        expected_ids: Number of IDs that one row of a batch looks up, by table path; one per feature if not
            named.
    """

    world_size: int
    budget_bytes: int | None = None
    row_alignment: int = HOST_ROW_ALIGNMENT
    expected_ids: Mapping[str, float] | None = None


def plan_devices(
    collections: Mapping[str, Sequence[BaseEmbeddingConfig]], options: DeviceOptions
) -> ShardingPlan:
    """Place every table whole on one device, balancing lookups, or cut it by rows if it fits on none.

    If the tables still do not fit, others are cut by rows too. Without a budget, no device holds more bytes
    than its fair share plus the largest table.

    Args:
        collections: The tables of each collection, with their stored data types, by path.
        options: Options of the plan.

    Raises:
        PlanError: Names a table that does not fit, the bytes short, and what would make it fit.
    """
    sizes = {
        table_path(path, table.name): _stored_bytes(table, options)
        for path, group in collections.items()
        for table in group
    }
    budget = options.budget_bytes
    if budget is None:
        # The tables always fit, because the emptiest device holds at most the fair share.
        budget = -(-sum(sizes.values()) // options.world_size) + max(sizes.values(), default=0)
    cut = {path for path, size in sizes.items() if size > budget}
    try:
        return _plan(collections, options, budget, cut)
    except PlanError:
        return _plan(collections, options, budget, set(sizes))


def _stored_bytes(table: BaseEmbeddingConfig, options: DeviceOptions) -> int:
    return table.num_embeddings * row_bytes_of(table.data_type, table.embedding_dim, _workload(options))


def _workload(options: DeviceOptions) -> Workload:
    return Workload(is_training=False, row_alignment=options.row_alignment, counts_buffers=False)


def _plan(
    collections: Mapping[str, Sequence[BaseEmbeddingConfig]],
    options: DeviceOptions,
    budget_bytes: int,
    cut: set[str],
) -> ShardingPlan:
    topology = default_topology("cpu", world_size=options.world_size, local_world_size=options.world_size)
    memory = replace(topology.ddr, capacity_bytes=budget_bytes)
    # Between devices of one process outputs are copied without collective calls.
    link = Link(bandwidth=memory.bandwidth, latency_us=0.0)
    topology = topology.replaced(ddr=memory, intra_host=link)
    named = options.expected_ids or {}
    constraints = {
        path: ParameterConstraints(
            sharding_types=_WHOLE_OR_CUT if path in cut else _WHOLE,
            pooling_factors=(
                named[path] / max(table.num_features(), 1) if path in named else POOLING_FACTOR,
            ),
        )
        for collection, group in collections.items()
        for table in group
        for path in [table_path(collection, table.name)]
    }
    problem = Problem(
        tables=planned_tables(collections, constraints), topology=topology, workload=_workload(options)
    )
    return EmbeddingShardingPlanner(topology, workload=problem.workload).result(problem).plan
