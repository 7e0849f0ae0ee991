"""The planner's search over TorchRec's options. Parts that are given take the place of its steps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from recsys.as_torchrec.planner.cuts import as_cut, capacity_of, placed
from recsys.as_torchrec.planner.interfaces import Enumerator, Partitioner, PerfModel, Proposer, ShardingOption
from recsys.as_torchrec.planner.partitioners import GreedyPerfPartitioner
from recsys.as_torchrec.planner.perf_models import NoopPerfModel
from recsys.as_torchrec.planner.proposers import (
    MAX_PROPOSALS,
    DynamicProgrammingProposer,
    GreedyProposer,
    GridSearchProposer,
    UniformProposer,
    by_table,
)
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType
from recsys.planner.fit import with_room
from recsys.planner.search.improve import balance
from recsys.planner.search.placement import Placement
from recsys.planner.search.search import NUM_BALANCED, placements_of, search, try_proposals

Plan = list[ShardingOption]
_Key = tuple[int, ...]
_Rated = tuple[Plan, float] | None


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a planner was given; None for the search's own steps.

    Attributes:
        enumerator: Lists the options.
        proposers: Choose among them.
        partitioner: Places them.
        performance_model: Rates them.
        timeout_seconds: The time after which no more is proposed, once there is a plan.
    """

    enumerator: Enumerator | None = None
    proposers: Sequence[Proposer] | None = None
    partitioner: Partitioner | None = None
    performance_model: PerfModel | None = None
    timeout_seconds: int | None = None


@dataclass(frozen=True)
class Found:
    """The best plan of a search.

    Attributes:
        options: Its options, placed.
        num_proposals: The number of proposals that were tried.
        num_plans: The number of those that fit.
    """

    options: Plan
    num_proposals: int
    num_plans: int


def find_plan(parts: Parts, search_space: Plan, topology: Topology) -> Found:
    """Return the best plan of given options.

    Args:
        parts: The parts.
        search_space: The options of all tables.
        topology: The ranks, with the memory that is left for tables.

    Raises:
        PlannerError: Nothing fits.
    """
    steps = (parts.proposers, parts.partitioner, parts.performance_model)
    if all(step is None for step in steps):
        found = _by_own_steps(by_table(search_space), topology)
        if found is not None:
            return found
    return _by_parts(parts, search_space, topology)


def _by_own_steps(tables: list[Plan], topology: Topology) -> Found | None:
    """Return the plan of the planner's search; None where shards do not lie as the search places them."""
    cuts = [[as_cut(option, topology) for option in options] for options in tables]
    known = [[cut for cut in group if cut is not None] for group in cuts]
    if known != cuts:
        return None
    capacity = capacity_of(topology)
    kept, misfit = with_room(known, capacity)
    placement = None if misfit is not None else search(capacity, kept).placement
    if placement is None:
        return None
    plan = []
    for options, group, chosen, slots in zip(tables, known, placement.options, placement.slots, strict=True):
        at = next(i for i, cut in enumerate(group) if cut is chosen)
        plan.append(placed(options[at], group[at], slots))
    return Found(plan, 1, 1)


def _by_parts(parts: Parts, search_space: Plan, topology: Topology) -> Found:
    partitioner, model = parts.partitioner, parts.performance_model or NoopPerfModel(topology)
    proposals: dict[_Key, Plan] = {}
    fitting: list[tuple[Plan, float]] = []
    misfits: list[PlannerError] = []
    start = time.monotonic()

    def rated(key: _Key) -> _Rated:
        try:
            plan = (
                partitioner.partition(proposals[key], copy.deepcopy(topology))
                if partitioner is not None
                else _partition(proposals[key], topology)
            )
        except PlannerError as error:
            misfits.append(error)
            return None
        fitting.append((plan, model.rate(plan)))
        return fitting[-1]

    def is_over() -> bool:
        limit = parts.timeout_seconds
        return limit is not None and bool(fitting) and time.monotonic() - start > limit

    proposers = parts.proposers or [
        DynamicProgrammingProposer(),
        GreedyProposer(),
        GreedyProposer(use_depth=False),
        UniformProposer(),
        GridSearchProposer(),
    ]
    try_proposals((_proposed(p, parts, search_space, topology, proposals) for p in proposers), rated, is_over)
    if not fitting:
        raise PlannerError(
            f"no proposal of {len(proposals)} fits: {misfits[0] if misfits else 'there were none'}; give more "
            "memory, fewer constraints or a smaller storage_reservation",
            PlannerErrorType.INSUFFICIENT_STORAGE,
        )
    fitting.sort(key=lambda rated: rated[1])
    best = fitting[:1]
    if partitioner is None:
        balanced = [_partition(plan, topology, balance) for plan, _ in fitting[:NUM_BALANCED]]
        best += [(plan, model.rate(plan)) for plan in balanced]
    return Found(min(best, key=lambda rated: rated[1])[0], len(proposals), len(fitting))


def _proposed(
    proposer: Proposer, parts: Parts, search_space: Plan, topology: Topology, proposals: dict[_Key, Plan]
) -> Generator[_Key, _Rated, None]:
    """Yield the keys of what a proposer proposes, which are added to ``proposals``."""
    proposer.load(search_space, parts.enumerator)
    for _ in range(MAX_PROPOSALS):
        proposal = proposer.propose()
        if proposal is None:
            return
        key = tuple(sorted(option.storage_hash() for option in proposal))
        proposals.setdefault(key, proposal)
        plan, rating = (yield key) or (None, None)
        proposer.feedback(plan is not None, plan, rating, topology)


def _partition(
    proposal: Plan, topology: Topology, improve: Callable[[Placement], None] | None = None
) -> Plan:
    """Place options as the planner's search does, or else as ``GreedyPerfPartitioner`` does.

    Raises:
        PlannerError: They do not fit.
    """
    cuts = [as_cut(option, topology) for option in proposal]
    known = [cut for cut in cuts if cut is not None]
    placements = placements_of(capacity_of(topology), known) if len(known) == len(cuts) else []
    if not placements:
        return GreedyPerfPartitioner().partition(proposal, topology)
    best = min(placements, key=lambda placement: placement.cost_us)
    if improve is not None:
        improve(best)
    return [placed(*row) for row in zip(proposal, known, best.slots, strict=True)]
