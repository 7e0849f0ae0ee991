"""TorchRec's options as those of the planner's search, and placed ones as a plan."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from recsys.as_torchrec.planner.interfaces import PartitionByType, Shard, ShardingOption
from recsys.planner.cost.enumerators import ShardingOption as Cut
from recsys.planner.cost.estimate import ShardCost
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.planner.search.placement import Capacity
from recsys.sharding.plan.plan import (
    DATA_PARALLEL,
    EmbeddingModuleShardingPlan,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)


def placed(option: ShardingOption, cut: Cut, slots: Sequence[int]) -> ShardingOption:
    """Return a copy of an option with the ranks of its shards."""
    ranks = [slot * cut.span + i for slot in slots for i in range(cut.span)]
    found = copy.copy(option)
    found.shards = [replace(shard, rank=rank) for shard, rank in zip(option.shards, ranks, strict=True)]
    return found


def capacity_of(topology: Topology) -> Capacity:
    """Return the memory of the ranks."""
    left = [(device.storage.hbm, device.storage.ddr) for device in topology.devices]
    return Capacity.of(left, topology.local_world_size)


def as_cut(option: ShardingOption, topology: Topology) -> Cut | None:
    """Return an option as the search's.

    None where the search would place its shards otherwise: columns on one of several hosts, more columns than ranks,
    tables that lie together, and rows on ranks of different memory.
    """
    local, num_shards = topology.local_world_size, option.num_shards
    match PartitionByType(option.partition_by):
        case PartitionByType.UNIFORM:
            span = topology.world_size
        case PartitionByType.DEVICE:
            span = 1
        case PartitionByType.HOST if len({shard.offset[1] for shard in option.shards}) > 1:
            span = 1 if topology.num_hosts == 1 else 0
        case _:
            span = local
    if not span or num_shards % span or option.dependency is not None:
        return None
    blocks = [option.shards[i : i + span] for i in range(0, num_shards, span)]
    if len(blocks) > topology.world_size // span:
        return None
    if span > 1 and len({(d.storage.hbm, d.storage.ddr) for d in topology.devices}) > 1:
        return None
    return _of_blocks(option, span, blocks)


def totals(option: ShardingOption) -> Cut:
    """Return an option as one whose shards are blocks of their own, wherever they lie."""
    return _of_blocks(option, 1, [[shard] for shard in option.shards])


def _of_blocks(option: ShardingOption, span: int, blocks: Sequence[Sequence[Shard]]) -> Cut:
    return Cut(
        sharding_type=option.sharding_type,
        compute_kernel=option.compute_kernel,
        span=span,
        blocks=tuple(_cost(block, option.tensor.element_size()) for block in blocks),
    )


def _cost(shards: Sequence[Shard], element_bytes: int) -> ShardCost:
    """Return the cost of a block on each of its ranks: that of its largest shard."""
    storage = [shard.storage for shard in shards if shard.storage is not None]
    perf = [shard.perf for shard in shards if shard.perf is not None]
    return ShardCost(
        hbm_bytes=max(s.hbm for s in storage),
        ddr_bytes=max(s.ddr for s in storage),
        weight_bytes=max(shard.size[0] * shard.size[1] for shard in shards) * element_bytes,
        optimizer_bytes=0,
        buffer_bytes=0,
        input_us=max(p.input_dist_comms for p in perf),
        forward_us=max(p.total for p in perf),
        output_us=0.0,
        backward_us=0.0,
    )


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
