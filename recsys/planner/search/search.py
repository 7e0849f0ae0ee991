"""The search for a plan: proposals, partitions, and local search from the best of them. The same input, the same plan.

Shape letters: T tables, W world size.

1. ``proposers`` propose an option for each table, and hear what came of it.
2. ``partition`` places the blocks of a proposal on ranks.
3. ``balance`` moves and swaps blocks of the best placements, ``choose_again`` exchanges options of the busiest rank,
   ``reshuffle`` redistributes the blocks of a few ranks.
4. ``simplify`` makes tables whole again where that costs nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.bounds import OptionTable, of_any_plan
from recsys.planner.search.improve import balance, choose_again
from recsys.planner.search.partitioners import (
    GREEDY,
    MEMORY_BALANCED,
    PARTITIONERS,
    Capacity,
    Misfit,
    Placement,
    partition,
)
from recsys.planner.search.proposers import Choice, dynamic, greedy, least_memory, uniform
from recsys.planner.search.reshuffle import reshuffle
from recsys.planner.search.simplify import of_tiny_tables, simplify

# Number of partitions that are balanced by moves and swaps, and of those whose options are changed.
_NUM_BALANCED = 8
_NUM_REFINED = 3
_MOST_CHANGES = 60
# Small problems are restarted from perturbed plans: the number of restarts is this many (table, rank) pairs
# over the problem's.
_RESTART_PAIRS = 2_500
_MOST_RESTARTS = 120
_GOOD_ENOUGH = 1.0005
# Blocks are redistributed if a plan is above the lower bound by more than this factor.
_WELL_BALANCED = 1.01
_NUM_DEALT_ROUNDS = 400
# Tiny tables are cut, or kept in host memory, where that lowers the worst rank's cost by more than this factor.
_WORTH_CUTTING = 1.02
# Shares of a rank's memory that a block may take in ``pack``.
_LARGEST_FILLS = (1.0, 0.5, 0.25, 0.1, 0.03)

Proposal = TypeVar("Proposal", bound=Hashable)
Placed = TypeVar("Placed")


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The result of the search.

    Attributes:
        placement: The best placement; None if nothing fits.
        least_us: Lower bound of the cost of any plan.
        misfit: If nothing fits, the block that the attempt with the least memory could not place.
    """

    placement: Placement | None
    least_us: float
    misfit: Misfit | None = None


def try_proposals(
    proposers: Iterable[Generator[Proposal, Placed, None]],
    place: Callable[[Proposal], Placed],
    is_over: Callable[[], bool] = lambda: False,
) -> dict[Proposal, Placed]:
    """Place each proposal once, and return what came of each.

    Args:
        proposers: They are sent what came of their last proposal.
        place: Places a proposal.
        is_over: Whether to stop before the next proposal.
    """
    tried: dict[Proposal, Placed] = {}
    for proposer in proposers:
        proposal = next(proposer, None)
        while proposal is not None and not is_over():
            if proposal not in tried:
                tried[proposal] = place(proposal)
            try:
                proposal = proposer.send(tried[proposal])
            except StopIteration:
                break
    return tried


def search(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> SearchResult:
    """Return the best plan found, by the cost of the worst rank.

    Args:
        capacity: The capacity of the ranks.
        options: The options of each table, each with room for its blocks on empty ranks.
    """
    options = [_undominated(group) for group in options]
    least_us = of_any_plan(capacity, options)
    simple = of_tiny_tables(options)
    found = _found(capacity, simple, least_us)
    if simple != options and (found.placement is None or found.placement.cost_us > least_us * _WORTH_CUTTING):
        every = _found(capacity, options, least_us)
        if found.placement is None or (
            every.placement is not None and every.placement.cost_us * _WORTH_CUTTING < found.placement.cost_us
        ):
            found = every
    if found.placement is not None:
        simplify(found.placement, options)
    return found


def _found(capacity: Capacity, options: Sequence[Sequence[ShardingOption]], least_us: float) -> SearchResult:
    """Return the best plan with these options."""
    table = _option_table(capacity, options)
    proposers = (greedy(table, least_us), dynamic(table, capacity, least_us), uniform(options, table))

    def place(choice: Choice) -> list[Placement]:
        return partitions(capacity, [group[i] for group, i in zip(options, choice, strict=True)])

    tried: dict[Choice, list[Placement]] = try_proposals(proposers, place)
    placements = [placement for found in tried.values() for placement in found]
    if not placements:
        packed = pack(capacity, options)
        if isinstance(packed, Misfit):
            return SearchResult(placement=None, least_us=least_us, misfit=packed)
        placements.append(packed)
    placements = sorted(placements, key=lambda p: p.cost_us)[:_NUM_BALANCED]
    for placement in placements:
        balance(placement)
    placements = sorted(placements, key=lambda p: p.cost_us)[:_NUM_REFINED]
    best = min((_refined(p, options, least_us) for p in placements), key=lambda p: p.cost_us)
    return SearchResult(placement=_restarted(best, options, least_us), least_us=least_us)


def partitions(capacity: Capacity, chosen: Sequence[ShardingOption]) -> list[Placement]:
    """Return placements of chosen options: by cost, and if that does not fit, by each measure of weight that does."""
    placements = []
    for by in PARTITIONERS:
        placed = partition(capacity, chosen, by)
        if isinstance(placed, Placement):
            placements.append(placed)
            if by == GREEDY:
                break
    return placements


def _refined(placement: Placement, options: Sequence[Sequence[ShardingOption]], least_us: float) -> Placement:
    refined = choose_again(placement, options, _MOST_CHANGES)
    if refined.cost_us > least_us * _WELL_BALANCED:
        reshuffle(refined, random.Random(0), _NUM_DEALT_ROUNDS, least_us * _WELL_BALANCED)
        refined = choose_again(refined, options, _MOST_CHANGES)
    return refined


def pack(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> Placement | Misfit:
    """Return a placement by memory only: choices with little memory and ever smaller blocks."""
    misfit: Misfit | None = None
    for choice in dict.fromkeys(_by_memory(capacity, options)):
        chosen = [group[i] for group, i in zip(options, choice, strict=True)]
        found = partition(capacity, chosen, MEMORY_BALANCED)
        if isinstance(found, Placement):
            return found
        misfit = misfit or found
    assert misfit is not None
    return misfit


def _by_memory(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> Iterator[Choice]:
    table = _option_table(capacity, options)
    of_rank = [
        max(o.max_hbm_bytes / max(capacity.hbm_bytes, 1), o.max_ddr_bytes / max(capacity.ddr_bytes, 1))
        for group in options
        for o in group
    ]
    for largest in _LARGEST_FILLS:
        yield least_memory(table, of_rank, largest)
    table.fill = table.hbm + 1e-6 * table.ddr
    yield least_memory(table, of_rank, _LARGEST_FILLS[0])


def _option_table(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> OptionTable:
    table = OptionTable(options)
    world_size = capacity.world_size
    table.fill = (
        table.hbm / max(capacity.hbm_bytes * world_size, 1)
        + table.ddr / max(capacity.ddr_bytes * world_size, 1)
        + 1e-15 * table.total_us
    )
    return table


def _undominated(options: Sequence[ShardingOption]) -> list[ShardingOption]:
    """Remove options that another one beats or equals in cost and memory, in total and at most on a rank."""
    kept: list[tuple[ShardingOption, tuple[float, ...]]] = []
    keys = [
        (o.total_us, o.max_us, o.hbm_bytes, o.ddr_bytes, o.max_hbm_bytes, o.max_ddr_bytes) for o in options
    ]
    for i in sorted(range(len(options)), key=lambda i: (keys[i], i)):
        if not any(all(a <= b for a, b in zip(key, keys[i], strict=True)) for _, key in kept):
            kept.append((options[i], keys[i]))
    return [option for option, _ in kept]


def _restarted(best: Placement, options: Sequence[Sequence[ShardingOption]], least_us: float) -> Placement:
    """Repeat the local search from the best placement with a few tables placed elsewhere."""
    num_tables, world_size = len(options), best.capacity.world_size
    rng = random.Random(0)
    for _ in range(min(_MOST_RESTARTS, _RESTART_PAIRS // (num_tables * world_size))):
        if best.cost_us <= least_us * _GOOD_ENOUGH:
            return best
        disturbed = _disturbed(best, options, rng)
        if disturbed is not None:
            again = choose_again(disturbed, options, _MOST_CHANGES)
            if again.cost_us < best.cost_us:
                best = again
    return best


def _disturbed(
    placement: Placement, options: Sequence[Sequence[ShardingOption]], rng: random.Random
) -> Placement | None:
    new = placement.copy()
    num_tables = len(options)
    tables = rng.sample(range(num_tables), min(num_tables, rng.randint(2, 4)))
    for table in tables:
        new.remove(table)
    rng.shuffle(tables)
    for table in tables:
        if new.place(table, rng.choice(options[table])) is not None:
            return None
    return new
