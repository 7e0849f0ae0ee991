"""The search of a plan by given parts: enumerator, proposers, partitioner and performance model."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recsys.planner.cost.topology import Topology
from recsys.planner.parts.interfaces import (
    Enumerator,
    Partitioner,
    PerfModel,
    PlannerError,
    PlannerErrorType,
    Proposer,
    ShardingOption,
)
from recsys.planner.parts.partitioners import GreedyPerfPartitioner
from recsys.planner.parts.perf_models import NoopPerfModel
from recsys.planner.parts.proposers import (
    MAX_PROPOSALS,
    DynamicProgrammingProposer,
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
)
from recsys.sharding.plan.plan import (
    DATA_PARALLEL,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)


@dataclass
class Parts:
    """What a planner was given; defaults for None.

    Attributes:
        enumerator: Lists the options.
        proposers: Choose among them; a dynamic program, greedy, uniform and all by default.
        partitioner: Places them.
        performance_model: Rates them.
        callbacks: Change the best plan.
        timeout_seconds: Of the search; None for no bound.
    """

    enumerator: Enumerator | None = None
    proposers: Sequence[Proposer] | None = None
    partitioner: Partitioner | None = None
    performance_model: PerfModel | None = None
    callbacks: Sequence[Callable[[list[ShardingOption]], list[ShardingOption]]] = field(default_factory=list)
    timeout_seconds: int | None = None

    @property
    def are_given(self) -> bool:
        """Whether there is any, so that the planner's own search does not do."""
        found = (
            self.enumerator,
            self.proposers,
            self.partitioner,
            self.performance_model,
            self.timeout_seconds,
        )
        return any(part is not None for part in found) or bool(self.callbacks)


@dataclass(frozen=True)
class Found:
    """The best plan of a search.

    Attributes:
        options: Its options, placed.
        num_proposals: How many choices were tried.
        num_plans: How many of them fit.
    """

    options: list[ShardingOption]
    num_proposals: int
    num_plans: int


def search_by(parts: Parts, search_space: list[ShardingOption], topology: Topology) -> Found:
    """Return the best plan that the parts find.

    Args:
        parts: The parts.
        search_space: The options of all tables.
        topology: The ranks, with the memory that is left for tables.

    Raises:
        PlannerError: No choice fits.
    """
    partitioner = parts.partitioner or GreedyPerfPartitioner()
    model = parts.performance_model or NoopPerfModel(topology)
    proposers = parts.proposers or [
        DynamicProgrammingProposer(),
        GreedyProposer(),
        GreedyProposer(use_depth=False),
        UniformProposer(),
        GridSearchProposer(),
    ]
    start = time.monotonic()
    best: tuple[float, list[ShardingOption]] | None = None
    misfit: PlannerError | None = None
    rated: dict[tuple[int, ...], tuple[bool, list[ShardingOption] | None, float | None]] = {}
    for proposer in proposers:
        proposer.load(search_space, parts.enumerator)
        for _ in range(MAX_PROPOSALS):
            proposal = proposer.propose()
            is_late = parts.timeout_seconds is not None and time.monotonic() - start > parts.timeout_seconds
            if proposal is None or (is_late and best is not None):
                break
            key = tuple(sorted(option.storage_hash() for option in proposal))
            if key not in rated:
                try:
                    plan = partitioner.partition(proposal, copy.deepcopy(topology))
                except PlannerError as error:
                    misfit = misfit or error
                    rated[key] = False, None, None
                else:
                    rated[key] = True, plan, model.rate(plan)
                    rating = rated[key][2]
                    assert rating is not None
                    if best is None or rating < best[0]:
                        best = rating, plan
            fits, plan_of_key, rating_of_key = rated[key]
            proposer.feedback(fits, plan_of_key, rating_of_key, topology)
    if best is None:
        raise PlannerError(
            f"no proposal of {len(rated)} fits: {misfit or 'there were none'}; give more memory, fewer constraints "
            "or a smaller storage_reservation",
            PlannerErrorType.INSUFFICIENT_STORAGE,
        )
    options = best[1]
    for callback in parts.callbacks:
        options = callback(options)
    return Found(options, len(rated), sum(fits for fits, _, _ in rated.values()))


def plan_of_options(options: Sequence[ShardingOption], topology: Topology) -> ShardingPlan:
    """Return placed options as a plan.

    Raises:
        PlannerError: A shard has no rank.
    """
    plan: dict[str, EmbeddingModuleShardingPlan] = {}
    for option in options:
        shards = []
        for shard in option.shards:
            if shard.rank is None:
                raise PlannerError(
                    f"table {option.fqn!r}: got a shard without a rank, expected one for each",
                    PlannerErrorType.INVALID_RANK_ASSIGNMENT,
                )
            device = "cpu" if topology.hbm is None else f"cuda:{shard.rank % topology.local_world_size}"
            shards.append(
                ShardMetadata(
                    shard_offsets=(shard.offset[0], shard.offset[1]),
                    shard_sizes=(shard.size[0], shard.size[1]),
                    rank=shard.rank,
                    placement=f"rank:{shard.rank}/{device}",
                )
            )
        is_replicated = option.sharding_type == DATA_PARALLEL
        plan.setdefault(option.path, EmbeddingModuleShardingPlan())[option.name] = ParameterSharding(
            option.sharding_type,
            option.compute_kernel,
            ranks=[shard.rank for shard in shards],
            cache_params=option.cache_params,
            enforce_hbm=option.enforce_hbm,
            stochastic_rounding=option.stochastic_rounding,
            bounds_check_mode=option.bounds_check_mode,
            output_dtype=option.output_dtype,
            shards=() if is_replicated else shards,
        )
    return ShardingPlan(plan)
