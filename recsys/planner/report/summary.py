"""The data of a plan's report, for text, HTML and JSON.

Shape letters: D embedding dimension, R rows, W world size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recsys.planner.cost.estimate import ShardCost
from recsys.planner.evaluate import kernel_of
from recsys.planner.planner import PlanResult


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """One table.

    Attributes:
        name: Its path in the model.
        num_embeddings: R.
        embedding_dim: D.
        num_shards: Number of shards, or of copies.
        ranks: The ranks with a part of it.
        hbm_bytes: Device memory over all ranks.
        ddr_bytes: Host memory over all ranks.
        cost_us: Cost over all ranks.
        max_rank_us: Cost on the rank where it is highest.
    """

    name: str
    num_embeddings: int
    embedding_dim: int
    data_type: str
    sharding_type: str
    compute_kernel: str
    num_shards: int
    ranks: list[int]
    hbm_bytes: int
    ddr_bytes: int
    cost_us: float
    max_rank_us: float


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank.

    Attributes:
        input_us: Time to send IDs to its shards.
        forward_us: Time to read rows and write outputs.
        output_us: Time to send outputs to the samples, and gradients back.
        backward_us: Time of the update.
    """

    rank: int
    num_shards: int
    hbm_bytes: int
    ddr_bytes: int
    cost_us: float
    input_us: float
    forward_us: float
    output_us: float
    backward_us: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One plan.

    Attributes:
        hbm_capacity_bytes: The device memory of a rank for tables, without the reserve.
        ddr_capacity_bytes: The host memory of a rank for tables.
        worst_us: Cost of the costliest rank.
        mean_us: Mean over the ranks.
        imbalance: Worst divided by mean.
        least_us: Lower bound of any plan's worst rank (0: unknown, a table fits nowhere).
        latency_us: The latency of the step's collective calls, on top of each rank's cost.
        over_capacity: Ranks that need more memory than they have; only externally made plans have any.
    """

    compute_device: str
    world_size: int
    local_world_size: int
    is_training: bool
    optimizer: str
    hbm_capacity_bytes: int
    ddr_capacity_bytes: int
    worst_rank: int
    worst_us: float
    mean_us: float
    imbalance: float
    least_us: float
    latency_us: float
    over_capacity: list[int]
    tables: list[TableSummary]
    ranks: list[RankSummary]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def summarize(result: PlanResult) -> Summary:
    """Return the report of a plan."""
    problem, capacity = result.problem, result.problem.capacity()
    ranks = _ranks(result)
    costs = [rank.cost_us for rank in ranks]
    worst, mean = max(costs), sum(costs) / len(costs)
    return Summary(
        compute_device=problem.topology.compute_device,
        world_size=problem.topology.world_size,
        local_world_size=problem.topology.local_world_size,
        is_training=problem.workload.is_training,
        optimizer=problem.workload.optimizer,
        hbm_capacity_bytes=capacity.hbm_bytes,
        ddr_capacity_bytes=capacity.ddr_bytes,
        worst_rank=costs.index(worst),
        worst_us=worst,
        mean_us=mean,
        imbalance=worst / mean if mean > 0 else 1.0,
        least_us=result.least_us,
        latency_us=result.latency_us,
        over_capacity=[
            r.rank for r in ranks if r.hbm_bytes > capacity.hbm_bytes or r.ddr_bytes > capacity.ddr_bytes
        ],
        tables=_tables(result),
        ranks=ranks,
    )


def _ranks(result: PlanResult) -> list[RankSummary]:
    counts = [0] * result.evaluation.world_size
    for shard in result.evaluation.shards:
        counts[shard.rank] += 1
    return [
        RankSummary(
            rank=rank,
            num_shards=counts[rank],
            hbm_bytes=cost.hbm_bytes,
            ddr_bytes=cost.ddr_bytes,
            cost_us=cost.total_us,
            input_us=cost.input_us,
            forward_us=cost.forward_us,
            output_us=cost.output_us,
            backward_us=cost.backward_us,
        )
        for rank, cost in enumerate(result.evaluation.of_ranks())
    ]


def _tables(result: PlanResult) -> list[TableSummary]:
    evaluation = result.evaluation
    counts = [0] * len(evaluation.tables)
    on_rank: dict[tuple[int, int], float] = {}
    for shard in evaluation.shards:
        counts[shard.table] += 1
        key = (shard.table, shard.rank)
        on_rank[key] = on_rank.get(key, 0.0) + shard.cost.total_us
    most = [0.0] * len(evaluation.tables)
    for (table, _), cost_us in on_rank.items():
        most[table] = max(most[table], cost_us)
    sums: list[ShardCost] = evaluation.of_tables()
    places = evaluation.ranks_of_tables()
    return [
        TableSummary(
            name=table.path,
            num_embeddings=table.config.num_embeddings,
            embedding_dim=table.config.embedding_dim,
            data_type=table.config.data_type.value,
            sharding_type=sharding.sharding_type,
            compute_kernel=kernel_of(sharding, result.problem.workload.is_training),
            num_shards=counts[i],
            ranks=places[i],
            hbm_bytes=sums[i].hbm_bytes,
            ddr_bytes=sums[i].ddr_bytes,
            cost_us=sums[i].total_us,
            max_rank_us=most[i],
        )
        for i, (table, sharding) in enumerate(zip(evaluation.tables, evaluation.shardings, strict=True))
    ]
