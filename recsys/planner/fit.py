"""Errors of plans that do not fit: the table, the missing bytes, and tested remedies.

Shape letters: W world size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from recsys.configs import DATA_TYPE_NUM_BITS, DataType
from recsys.errors import PlanError
from recsys.planner.cost.constraints import ParameterConstraints
from recsys.planner.cost.enumerators import ShardingOption, enumerate_options
from recsys.planner.cost.estimate import Estimator, Workload
from recsys.planner.cost.machine import UNBOUNDED_BYTES
from recsys.planner.cost.tables import PlannedTable
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.planner.search.placement import Capacity, Misfit, Placement
from recsys.planner.search.search import pack

_GROWTH = (2, 4, 8, 16)
_FEWER_BITS = {
    True: (DataType.FP16,),
    False: (DataType.FP16, DataType.INT8, DataType.INT4, DataType.INT2),
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A planning problem: tables, topology and workload.

    Attributes:
        tables: The tables to place.
        topology: The topology.
        workload: The workload.
        reserved_fraction: The fraction of each rank's device memory that is not for tables.
        reserved_bytes: The bytes of each rank's device memory that are not for tables either.
    """

    tables: Sequence[PlannedTable]
    topology: Topology
    workload: Workload
    reserved_fraction: float = 0.0
    reserved_bytes: int = 0

    def capacity(self) -> Capacity:
        """Return the memory left for tables."""
        on_host = self.topology.hbm is None
        memory = [device.storage for device in self.topology.devices]
        left = [(0, self._left(m.ddr)) if on_host else (self._left(m.hbm), m.ddr) for m in memory]
        return Capacity.of(left, self.topology.local_world_size)

    def _left(self, num_bytes: int) -> int:
        return max(int(num_bytes * (1 - self.reserved_fraction)) - self.reserved_bytes, 0)

    def with_reserve(self, num_bytes: int) -> int:
        """Return the device memory that leaves this much for tables."""
        return math.ceil((num_bytes + self.reserved_bytes) / (1 - self.reserved_fraction))

    def options(self) -> list[list[ShardingOption]]:
        """Return the options of each table.

        Raises:
            PlanError: A table's constraints leave no option.
        """
        return enumerate_options(self.tables, Estimator(self.topology, self.workload))


def with_room(
    options: Sequence[Sequence[ShardingOption]], capacity: Capacity
) -> tuple[list[list[ShardingOption]], Misfit | None]:
    """Return the options that fit on empty ranks, or the table with the largest misfit that has none."""
    kept = [[option for option in group if capacity.is_room_for(option)] for group in options]
    lacking = [_nearest(i, options[i], capacity) for i, group in enumerate(kept) if not group]
    return kept, max(lacking, key=lambda misfit: misfit.short_bytes, default=None)


def _nearest(table: int, options: Sequence[ShardingOption], capacity: Capacity) -> Misfit:
    """Return the misfit of the option that comes closest to fitting."""
    found = []
    for option in options:
        hbm, ddr = option.max_hbm_bytes - capacity.hbm_bytes, option.max_ddr_bytes - capacity.ddr_bytes
        found.append(Misfit(table=table, short_bytes=max(hbm, ddr), memory="hbm" if hbm >= ddr else "ddr"))
    return min(found, key=lambda misfit: misfit.short_bytes)


def not_fitting(
    problem: Problem, options: Sequence[Sequence[ShardingOption]], misfit: Misfit
) -> PlannerError:
    """Return the error with a full explanation."""
    table = problem.tables[misfit.table]
    capacity = problem.capacity()
    topology = problem.topology
    size = min(
        option.blocks[0].weight_bytes * option.span * len(option.blocks)
        for option in _whole(options[misfit.table])
    )
    memory = "host memory" if misfit.memory == "ddr" else "device memory"
    offered = capacity.ddr_bytes if misfit.memory == "ddr" else capacity.hbm_bytes
    types = ", ".join(dict.fromkeys(option.sharding_type for option in options[misfit.table]))
    needed = sum(min(option.hbm_bytes + option.ddr_bytes for option in group) for group in options)
    remedies = list(_remedies(problem, options, misfit))
    return PlannerError(
        f"table {table.path!r}: {size} bytes do not fit, whole or cut ({types}) over {topology.world_size} "
        f"rank{'s' if topology.world_size > 1 else ''}: {misfit.short_bytes} bytes short of {memory} on the rank with "
        f"most room; each rank offers tables {offered} bytes, all tables need at least {needed} bytes together; "
        f"what makes it fit: {'; or '.join(remedies) or 'other constraints, or smaller tables'}",
        PlannerErrorType.INSUFFICIENT_STORAGE,
    )


def _whole(options: Sequence[ShardingOption]) -> Sequence[ShardingOption]:
    """Return the options without replication, which show the table's size."""
    return [option for option in options if option.sharding_type != "data_parallel"] or [
        replace(option, span=1) for option in options
    ]


def _remedies(problem: Problem, options: Sequence[Sequence[ShardingOption]], misfit: Misfit) -> Iterator[str]:
    more = _least_memory(problem, options)
    if more is not None:
        yield more
    local = problem.topology.local_world_size
    for factor in _GROWTH:
        world_size = problem.topology.world_size * factor
        # A single host gets more ranks; several hosts become more hosts.
        local = world_size if problem.topology.num_hosts == 1 else local
        larger = problem.topology.replaced(world_size=world_size, local_world_size=local)
        if _fits(replace(problem, topology=larger)):
            yield f"{world_size} ranks"
            break
    table = problem.tables[misfit.table]
    asked = table.constraints
    if asked.sharding_types and _fits(_relaxed(problem, misfit, replace(asked, sharding_types=None))):
        yield f"no sharding_types constraint on {table.path!r}"
    if asked.compute_kernels and _fits(_relaxed(problem, misfit, replace(asked, compute_kernels=None))):
        yield f"no compute_kernels constraint on {table.path!r} (rows in host memory)"
    for data_type in _FEWER_BITS[problem.workload.is_training]:
        smaller = [
            replace(t, config=replace(t.config, data_type=data_type))
            if DATA_TYPE_NUM_BITS[data_type] < DATA_TYPE_NUM_BITS[t.config.data_type]
            else t
            for t in problem.tables
        ]
        if smaller != list(problem.tables) and _fits(replace(problem, tables=smaller)):
            yield f"rows of {data_type.value}"
            break


def _relaxed(problem: Problem, misfit: Misfit, constraints: ParameterConstraints) -> Problem:
    tables = list(problem.tables)
    tables[misfit.table] = replace(tables[misfit.table], constraints=constraints)
    return replace(problem, tables=tables)


def _fits(problem: Problem) -> bool:
    try:
        return _packs(problem.options(), problem.capacity())
    except PlanError:
        return False


def _packs(options: Sequence[Sequence[ShardingOption]], capacity: Capacity) -> bool:
    kept, lacking = with_room(options, capacity)
    return lacking is None and isinstance(pack(capacity, kept), Placement)


def _least_memory(problem: Problem, options: Sequence[Sequence[ShardingOption]]) -> str | None:
    """Return the least device memory, or else the least host memory, in which the tables fit."""
    capacity = problem.capacity()

    def with_hbm(num_bytes: int) -> bool:
        return _packs(options, replace(capacity, hbm_bytes=num_bytes, of_ranks=None))

    def with_ddr(num_bytes: int) -> bool:
        return _packs(options, replace(capacity, ddr_bytes=num_bytes, of_ranks=None))

    if problem.topology.hbm is not None:
        found = _least(with_hbm, capacity.hbm_bytes)
        if found is not None:
            return f"{problem.with_reserve(found)} bytes of device memory per rank"
    found = _least(with_ddr, capacity.ddr_bytes)
    if found is None:
        return None
    if problem.topology.hbm is None:
        found = problem.with_reserve(found)
    return f"{found} bytes of host memory per rank"


def _least(fits: Callable[[int], bool], too_little: int) -> int | None:
    """Find the least fitting value by bisection, to one part in a million, in at most 40 trials."""
    if not fits(UNBOUNDED_BYTES):
        return None
    low, high = too_little, max(too_little, 1) * 2
    while not fits(high):
        low, high = high, high * 2
    for _ in range(40):
        if high - low <= max(high // 10**6, 1):
            break
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
