"""Tables and problems in one line, for the planner's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recsys import DataType, EmbeddingBagConfig
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.estimate import Workload
from recsys.planner.cost.machine import Link, Memory
from recsys.planner.cost.tables import planned_tables
from recsys.planner.cost.topology import Topology
from recsys.planner.fit import Problem
from tests.support.helpers import bag

#: Round numbers, so that tests can say what a cost is: 1 GB/s is 1 byte a ns.
HBM = Memory(
    capacity_bytes=10**9,
    bandwidth=1e12,
    row_read_ns=1.0,
    row_read_bandwidth=1e12,
    row_update_ns=2.0,
    row_update_bandwidth=5e11,
)
DDR = replace(HBM, capacity_bytes=10**10, bandwidth=1e10, row_read_bandwidth=1e10, row_update_bandwidth=5e9)


def topology(world_size: int, local: int | None = None, device: str = "cuda", **changes: Any) -> Topology:
    """Ranks with round numbers."""
    made = Topology(
        compute_device=device,
        world_size=world_size,
        local_world_size=local or world_size,
        hbm=HBM if device == "cuda" else None,
        ddr=DDR,
        intra_host=Link(bandwidth=1e11, latency_us=10.0),
        inter_host=Link(bandwidth=1e10, latency_us=20.0),
        host_link=Link(bandwidth=2e10, latency_us=5.0),
        shard_us=0.0,
    )
    return made.replaced(**changes)


def with_memory(made: Topology, *, hbm: int | None = None, ddr: int | None = None) -> Topology:
    """The same ranks with other capacities in bytes."""
    if hbm is not None:
        assert made.hbm is not None
        made = made.replaced(hbm=replace(made.hbm, capacity_bytes=hbm))
    return made if ddr is None else made.replaced(ddr=replace(made.ddr, capacity_bytes=ddr))


def table(name: str, rows: int, dim: int = 64, kind: DataType = DataType.FP32) -> EmbeddingBagConfig:
    """A pooled table with one feature."""
    return replace(bag(name, rows, dim, [f"of {name}"]), data_type=kind)


def problem(
    tables: list[EmbeddingBagConfig],
    ranks: Topology,
    workload: Workload | None = None,
    constraints: Mapping[str, ParameterConstraints] | None = None,
    batch_size: int = 100,
) -> Problem:
    """Tables of one collection, nothing reserved."""
    return Problem(
        tables=planned_tables({"": tables}, constraints, batch_size),
        topology=ranks,
        workload=workload or Workload(),
    )
