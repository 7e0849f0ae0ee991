"""The search for a plan, by the cost of the worst rank. The same input, the same plan.

Shape letters: T tables, W world size.

1. Proposers propose an option for each table (``proposers.py``).
2. ``placements_of`` places the blocks of a proposal on ranks (``placement.py``).
3. ``balance`` moves and exchanges blocks of the best placements, ``choose_again`` replaces options of the worst rank's
   tables (``improve.py``).
4. ``_restarted`` repeats this from the best plan with a few tables placed elsewhere.
5. ``simplify`` makes tables whole again where the worst rank does not wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.bounds import OptionTable, of_any_plan
from recsys.planner.search.improve import balance, choose_again, tables_on
from recsys.planner.search.placement import (
    GREEDY,
    MEMORY_BALANCED,
    PARTITIONERS,
    Capacity,
    Misfit,
    Placement,
    partition,
)
from recsys.planner.search.proposers import Choice, dynamic, greedy, least_memory, uniform

#: Rows of a tiny table together: they stay in a processor's caches, so that to cut them spares no reads of memory.
TINY_BYTES = 1 << 18
# Tiny tables are cut, or kept in host memory, where that lowers the worst rank's cost by more than this factor.
_WORTH_CUTTING = 1.02
#: Number of placements that are balanced by moves and swaps, and of those whose options are changed.
NUM_BALANCED = 8
_NUM_REFINED = 3
_MOST_CHANGES = 60
# The number of restarts is this many (table, rank) pairs over the problem's, within bounds.
_RESTART_PAIRS = 10_000
_LEAST_RESTARTS, _MOST_RESTARTS = 32, 120
_GOOD_ENOUGH = 1.0005
# Kernels whose rows lie in host memory, the preferred one first.
_ON_HOST = {"fused_uvm_caching": 1, "fused_uvm": 2}
_ROUNDING = 1e-9

Options = Sequence[Sequence[ShardingOption]]
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


def search(capacity: Capacity, options: Options) -> SearchResult:
    """Return the best plan found.

    Args:
        capacity: The capacity of the ranks.
        options: The options of each table, each with room for its blocks on empty ranks.
    """
    options = [_undominated(group) for group in options]
    least_us = of_any_plan(capacity, options)
    simple = [_simple_if_tiny(group) for group in options]
    best = _best_placement(capacity, simple, least_us)
    if simple != options and (isinstance(best, Misfit) or best.cost_us > least_us * _WORTH_CUTTING):
        cut = _best_placement(capacity, options, least_us)
        if isinstance(best, Misfit) or (
            isinstance(cut, Placement) and cut.cost_us * _WORTH_CUTTING < best.cost_us
        ):
            best = cut
    if isinstance(best, Misfit):
        return SearchResult(placement=None, least_us=least_us, misfit=best)
    simplify(best, options)
    return SearchResult(placement=best, least_us=least_us)


def _best_placement(capacity: Capacity, options: Options, least_us: float) -> Placement | Misfit:
    """Return the best placement with these options, or what does not fit if nothing does."""
    table = OptionTable(options)
    proposers = (greedy(table, least_us), dynamic(table, capacity, least_us), uniform(options, table))
    tried: dict[Choice, list[Placement]] = try_proposals(
        proposers, lambda choice: placements_of(capacity, _chosen(options, choice))
    )
    placements = [placement for found in tried.values() for placement in found]
    if not placements:
        packed = pack(capacity, options)
        if isinstance(packed, Misfit):
            return packed
        placements = [packed]
    placements = _best(placements, NUM_BALANCED)
    for placement in placements:
        balance(placement)
    refined = [choose_again(p, options, _MOST_CHANGES) for p in _best(placements, _NUM_REFINED)]
    return _restarted(_best(refined, 1)[0], options, least_us)


def try_proposals(
    proposers: Iterable[Generator[Proposal, Placed, None]],
    attempt: Callable[[Proposal], Placed],
    is_over: Callable[[], bool] = lambda: False,
) -> dict[Proposal, Placed]:
    """Place each proposal once, and return what came of each.

    Args:
        proposers: They are sent what came of their last proposal.
        attempt: Places a proposal.
        is_over: Whether to stop before the next proposal.
    """
    tried: dict[Proposal, Placed] = {}
    for proposer in proposers:
        proposal = next(proposer, None)
        while proposal is not None and not is_over():
            if proposal not in tried:
                tried[proposal] = attempt(proposal)
            try:
                proposal = proposer.send(tried[proposal])
            except StopIteration:
                break
    return tried


def placements_of(capacity: Capacity, chosen: Sequence[ShardingOption]) -> list[Placement]:
    """Return placements of chosen options: by cost, and if that does not fit, by each measure of weight that does."""
    placements = []
    for by in PARTITIONERS:
        placed = partition(capacity, chosen, by)
        if isinstance(placed, Placement):
            placements.append(placed)
            if by == GREEDY:
                break
    return placements


def pack(capacity: Capacity, options: Options) -> Placement | Misfit:
    """Return a placement by memory only."""
    misfit: Misfit | None = None
    for choice in dict.fromkeys(least_memory(OptionTable(options), capacity)):
        found = partition(capacity, _chosen(options, choice), MEMORY_BALANCED)
        if isinstance(found, Placement):
            return found
        misfit = misfit or found
    assert misfit is not None
    return misfit


def _restarted(best: Placement, options: Options, least_us: float) -> Placement:
    """Repeat the local search from the best placement with a few tables placed elsewhere."""
    rng = random.Random(0)
    affordable = _RESTART_PAIRS // (len(options) * best.capacity.world_size)
    for _ in range(min(max(affordable, _LEAST_RESTARTS), _MOST_RESTARTS)):
        if best.cost_us <= least_us * _GOOD_ENOUGH:
            break
        disturbed = _disturbed(best, options, rng)
        if disturbed is not None:
            best = _best([best, choose_again(disturbed, options, _MOST_CHANGES)], 1)[0]
    return best


def _disturbed(placement: Placement, options: Options, rng: random.Random) -> Placement | None:
    """Return a copy with a few tables, one of the worst rank, placed elsewhere; None if they do not fit there."""
    new = placement.copy()
    of_worst_rank = tables_on(new, int(new.loads_us.argmax()))
    tables = list(
        {rng.choice(of_worst_rank), *rng.sample(range(len(options)), min(len(options), rng.randint(2, 4)))}
    )
    for table in tables:
        new.remove(table)
    rng.shuffle(tables)
    for table in tables:
        if new.place(table, rng.choice(options[table])) is not None:
            return None
    return new


def _best(placements: Sequence[Placement], number: int) -> list[Placement]:
    return sorted(placements, key=lambda placement: placement.cost_us)[:number]


def _chosen(options: Options, choice: Choice) -> list[ShardingOption]:
    return [group[i] for group, i in zip(options, choice, strict=True)]


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


def simplify(placement: Placement, options: Options) -> None:
    """Give tables simpler options that cost no more in all, where the worst rank's cost does not rise.

    The cost of a plan is that of its worst rank, so that the search does not tell apart what lies on the others.

    Args:
        placement: The placement to change.
        options: The options of each table.
    """
    most_us = placement.cost_us * (1 + _ROUNDING)
    for table in sorted(range(len(options)), key=lambda i: _num_bytes(options[i])):
        old, slots = placement.options[table], placement.slots[table]
        assert old is not None
        simpler = [
            o for o in options[table] if _complexity(o) < _complexity(old) and o.total_us <= old.total_us
        ]
        if not simpler:
            continue
        placement.remove(table)
        for option in sorted(simpler, key=lambda o: (_complexity(o), o.total_us)):
            if placement.place(table, option) is None:
                if placement.cost_us <= most_us:
                    break
                placement.remove(table)
        else:
            placement.restore(table, old, slots)


def is_simple(option: ShardingOption) -> bool:
    """Return whether the table lies whole in device memory, on one rank or as a copy on every rank."""
    return _complexity(option) == (0, 1)


def _simple_if_tiny(group: Sequence[ShardingOption]) -> list[ShardingOption]:
    """Return a table's options, of a tiny one only those that are simple, where there are any."""
    is_tiny = _num_bytes(group) <= TINY_BYTES
    return [option for option in group if is_tiny and is_simple(option)] or list(group)


def _complexity(option: ShardingOption) -> tuple[int, int]:
    num_parts = 1 if option.sharding_type == "data_parallel" else option.span * len(option.blocks)
    return _ON_HOST.get(option.compute_kernel, 0), num_parts


def _num_bytes(options: Sequence[ShardingOption]) -> int:
    """Return the bytes of a table's rows, by the option that has fewest: column shards of stored rows have more."""
    return min(
        sum(block.weight_bytes for block in o.blocks) * (1 if o.sharding_type == "data_parallel" else o.span)
        for o in options
    )
