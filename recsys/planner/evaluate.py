"""The cost of a plan per table, rank and shard; and conversion of placements to plans.

Shape letters: W world size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from recsys.configs import BaseEmbeddingConfig
from recsys.errors import PlanError
from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.cost.estimate import Estimator, ShardCost, ShardShape
from recsys.planner.cost.tables import PlannedTable
from recsys.planner.search.placement import Placement
from recsys.sharding.plan.plan import (
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
    check_plan,
)
from recsys.sharding.plan.sharding_types import (
    column_wise,
    data_parallel,
    grid,
    row_wise,
    table_row_wise,
    table_wise,
)


@dataclass(frozen=True, kw_only=True)
class PlacedShard:
    """A placed shard.

    Attributes:
        table: Position of its table.
        rank: The rank that holds it.
        num_rows: R of the shard.
        num_columns: D of the shard.
        cost: Its bytes and times.
    """

    table: int
    rank: int
    num_rows: int
    num_columns: int
    cost: ShardCost


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A plan with its estimates.

    Attributes:
        tables: The planned tables.
        shardings: The sharding of each table.
        shards: The shards of all tables; a copy on each rank counts as one.
        world_size: W.
    """

    tables: Sequence[PlannedTable]
    shardings: Sequence[ParameterSharding]
    shards: Sequence[PlacedShard]
    world_size: int

    def of_ranks(self) -> list[ShardCost]:
        """Return the sums over each rank's shards."""
        return _sums(((shard.rank, shard.cost) for shard in self.shards), self.world_size)

    def of_tables(self) -> list[ShardCost]:
        """Return the sums over each table's shards."""
        return _sums(((shard.table, shard.cost) for shard in self.shards), len(self.tables))

    def ranks_of_tables(self) -> list[list[int]]:
        """Return the ranks of each table."""
        found: list[set[int]] = [set() for _ in self.tables]
        for shard in self.shards:
            found[shard.table].add(shard.rank)
        return [sorted(ranks) for ranks in found]


def kernel_of(sharding: ParameterSharding, is_training: bool) -> str:
    """Return a table's kernel, or the default if the plan does not name one."""
    if sharding.compute_kernel is not None:
        return sharding.compute_kernel
    return "dense" if sharding.is_replicated and is_training else "fused"


def evaluate(tables: Sequence[PlannedTable], plan: ShardingPlan, estimator: Estimator) -> Evaluation:
    """Estimate every shard of a plan.

    Raises:
        PlanError: The plan does not fit the tables or the ranks.
    """
    world_size = estimator.topology.world_size
    groups: dict[str, list[BaseEmbeddingConfig]] = {}
    for table in tables:
        groups.setdefault(table.collection, []).append(table.config)
    unknown = sorted(set(plan.plan) - set(groups))
    if unknown:
        raise PlanError(f"plan: got unknown collections {unknown}, expected {sorted(groups)}")
    for path, group in groups.items():
        check_plan(group, plan.of(path), world_size)
    shardings = [plan.of(table.collection)[table.config.name] for table in tables]
    shards = [
        shard
        for i, (table, sharding) in enumerate(zip(tables, shardings, strict=True))
        for shard in _shards(i, table, sharding, estimator)
    ]
    return Evaluation(tables=tables, shardings=shardings, shards=shards, world_size=world_size)


def _shards(
    i: int, table: PlannedTable, sharding: ParameterSharding, estimator: Estimator
) -> Iterator[PlacedShard]:
    kernel = kernel_of(sharding, estimator.workload.is_training)
    if kernel not in ("fused", "dense") and estimator.topology.compute_device == "cpu":
        raise PlanError(f"plan[{table.path!r}].compute_kernel: got {kernel}, which a cpu does not have")
    whole = (table.config.num_embeddings, table.config.embedding_dim)
    places = (
        [(whole, rank) for rank in range(estimator.topology.world_size)]
        if sharding.is_replicated
        else [(shard.shard_sizes, shard.rank) for shard in sharding.shards]
    )
    known: dict[tuple[int, int], ShardCost] = {}
    for sizes, rank in places:
        if sizes not in known:
            known[sizes] = estimator.shard(
                table,
                ShardShape(
                    sharding_type=sharding.sharding_type,
                    compute_kernel=kernel,
                    num_rows=sizes[0],
                    num_columns=sizes[1],
                ),
            )
        yield PlacedShard(table=i, rank=rank, num_rows=sizes[0], num_columns=sizes[1], cost=known[sizes])


def _sums(costs: Iterator[tuple[int, ShardCost]], size: int) -> list[ShardCost]:
    names = [field.name for field in fields(ShardCost)]
    sums = [dict.fromkeys(names, 0.0) for _ in range(size)]
    for i, cost in costs:
        into = sums[i]
        for name in names:
            into[name] += getattr(cost, name)
    return [
        ShardCost(**{name: int(v) if name.endswith("_bytes") else v for name, v in values.items()})  # type: ignore[arg-type]
        for values in sums
    ]


def plan_of(tables: Sequence[PlannedTable], placement: Placement, is_training: bool) -> ShardingPlan:
    """Return a placement as a plan, tables in their order."""
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for table, option, slots in zip(tables, placement.options, placement.slots, strict=True):
        assert option is not None
        sharding = _cut(table.config, option, slots, placement)
        kernel = option.compute_kernel if is_training else None
        tables_of = plan.setdefault(table.collection, EmbeddingModuleShardingPlan())
        tables_of[table.config.name] = _planned(table, sharding, kernel, placement)
    return ShardingPlan(plan=plan)


def _planned(
    table: PlannedTable, sharding: ParameterSharding, kernel: str | None, placement: Placement
) -> ParameterSharding:
    """Return a sharding with its kernel, the constraint's settings and the devices of its ranks."""
    capacity = placement.capacity
    on_cuda = capacity.hbm_bytes > 0
    return ParameterSharding(
        sharding.sharding_type,
        kernel,
        ranks=list(range(capacity.world_size)) if sharding.is_replicated else None,
        shards=[
            replace(s, placement=f"rank:{s.rank}/cuda:{s.rank % capacity.local_world_size}") if on_cuda else s
            for s in sharding.shards
        ],
        **table.constraints.plan_settings(),
    )


def _cut(
    table: BaseEmbeddingConfig, option: ShardingOption, slots: Sequence[int], placement: Placement
) -> ParameterSharding:
    capacity = placement.capacity
    match option.sharding_type:
        case "data_parallel":
            return data_parallel(table)
        case "table_wise":
            return table_wise(table, slots[0])
        case "column_wise":
            return column_wise(table, slots)
        case "table_column_wise":
            return ParameterSharding(option.sharding_type, shards=column_wise(table, slots).shards)
        case "row_wise":
            return row_wise(table, range(capacity.world_size))
        case "table_row_wise":
            return table_row_wise(table, slots[0], capacity.local_world_size)
    return grid(table, slots, capacity.local_world_size)


def differences(before: ShardingPlan, after: ShardingPlan) -> list[str]:
    """Return the differences between two plans, one line per changed table."""
    lines = []
    old = {(path, name): t for path, group in before.plan.items() for name, t in group.items()}
    new = {(path, name): t for path, group in after.plan.items() for name, t in group.items()}
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            path = f"{key[0]}.{key[1]}" if key[0] else key[1]
            lines.append(f"{path}: {_summary(old, key)} → {_summary(new, key)}")
    return lines


def _summary(plan: Mapping[tuple[str, str], ParameterSharding], key: tuple[str, str]) -> str:
    if key not in plan:
        return "not there"
    sharding = plan[key]
    kernel = f" {sharding.compute_kernel}" if sharding.compute_kernel else ""
    if sharding.is_replicated:
        return f"{sharding.sharding_type}{kernel} on all ranks"
    sizes = sorted({f"{s.shard_sizes[0]}×{s.shard_sizes[1]}" for s in sharding.shards})
    shown = ", ".join(sizes[:3]) + (", …" if len(sizes) > 3 else "")
    return f"{sharding.sharding_type}{kernel} on ranks {ranks_text(sharding.ranks)} ({shown})"


def runs_of(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last rank of each run of consecutive ranks."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return runs


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as ``0-3,7``."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs_of(ranks))
