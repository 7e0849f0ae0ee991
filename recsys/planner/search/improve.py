"""Local search: moves, swaps and cycles of blocks between the worst rank and others; other options for its tables.

Shape letters: W world size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.placement import Floats, Placement

# Gains below this share of a cost are rounding errors.
_LEAST_GAIN = 1e-9
# Number of least busy ranks that swaps are tried with.
_NUM_PARTNERS = 32
# Cycles over three ranks are tried while the worst rank is above the mean by this factor, with at most this
# many blocks.
_BALANCED_ENOUGH = 1.01
_MOST_PARTNERS = 500
# The position of an empty block in a cycle: none is moved.
_EMPTY = -1
# Other options: loads are compared by the sum of their powers, which is close to the maximum but still shows
# progress on one of several equally busy ranks.
_POWER = 24
# Tables of the worst rank, the costliest first, for which other options are tried.
_NUM_CANDIDATES = 24


class _Blocks:
    """The blocks of single ranks, as arrays."""

    def __init__(self, placement: Placement) -> None:
        found = [
            (table, i, block.total_us, block.hbm_bytes, block.ddr_bytes, placement.slots[table][i])
            for table, option in enumerate(placement.options)
            if option is not None and option.span == 1
            for i, block in enumerate(option.blocks)
        ]
        rows = np.array(found, dtype=np.float64).reshape(-1, 6)
        self.table = rows[:, 0].astype(np.int64)
        self.block = rows[:, 1].astype(np.int64)
        self.cost_us = rows[:, 2]
        self.hbm = rows[:, 3]
        self.ddr = rows[:, 4]
        self.rank = rows[:, 5].astype(np.int64)
        # A rank holds at most one column block of a table.
        self.taken = np.zeros((len(placement.options), placement.capacity.world_size), dtype=bool)
        self.taken[self.table, self.rank] = True


def balance(placement: Placement, most_steps: int = 2000) -> None:
    """Move and swap blocks until the worst rank cannot be improved; memory stays within the capacity."""
    blocks = _Blocks(placement)
    for _ in range(most_steps):
        worst = int(placement.loads_us.argmax())
        here = np.flatnonzero(blocks.rank == worst)
        if not here.size:
            return
        now = float(placement.loads_us[worst])
        moved_us, mover, target = _best_move(placement, blocks, here, worst)
        swapped_us, ours, theirs = _best_swap(placement, blocks, here, worst)
        if min(moved_us, swapped_us) >= now * (1 - _LEAST_GAIN):
            cycle = _find_cycle(placement, blocks, here, worst)
            if cycle is None:
                return
            for block, rank in cycle:
                _shift(placement, blocks, block, rank)
        elif moved_us <= swapped_us:
            _shift(placement, blocks, mover, target)
        else:
            other = int(blocks.rank[theirs])
            _shift(placement, blocks, ours, other)
            _shift(placement, blocks, theirs, worst)


def _shift(placement: Placement, blocks: _Blocks, i: int, rank: int) -> None:
    table = int(blocks.table[i])
    blocks.taken[table, blocks.rank[i]] = False
    blocks.taken[table, rank] = True
    blocks.rank[i] = rank
    placement.move(table, int(blocks.block[i]), rank)


def _have_room(
    placement: Placement, ranks: slice | NDArray[np.int64], more_hbm: Floats, more_ddr: Floats
) -> NDArray[np.bool_]:
    """Return which ranks have room for so much more; negative numbers free memory."""
    fits: NDArray[np.bool_] = (placement.free_hbm[ranks] >= more_hbm) & (
        placement.free_ddr[ranks] >= more_ddr
    )
    return fits


def _best_move(
    placement: Placement, blocks: _Blocks, here: NDArray[np.int64], worst: int
) -> tuple[float, int, int]:
    cost = blocks.cost_us[here, None]
    after = np.maximum(placement.loads_us[worst] - cost, placement.loads_us[None, :] + cost)
    fits = _have_room(placement, slice(None), blocks.hbm[here, None], blocks.ddr[here, None])
    after = np.where(fits & ~blocks.taken[blocks.table[here]], after, np.inf)
    best = int(after.argmin())
    i, rank = divmod(best, after.shape[1])
    return float(after[i, rank]), int(here[i]), rank


def _best_swap(
    placement: Placement, blocks: _Blocks, here: NDArray[np.int64], worst: int
) -> tuple[float, int, int]:
    loads = placement.loads_us
    partners = np.zeros(len(loads), dtype=bool)
    partners[np.argsort(loads, kind="stable")[:_NUM_PARTNERS]] = True
    partners[worst] = False
    there = np.flatnonzero(partners[blocks.rank])
    if not there.size:
        return np.inf, 0, 0
    other = blocks.rank[there]
    delta = blocks.cost_us[here, None] - blocks.cost_us[None, there]
    after = np.maximum(loads[worst] - delta, loads[other][None, :] + delta)
    more_hbm = blocks.hbm[here, None] - blocks.hbm[None, there]
    more_ddr = blocks.ddr[here, None] - blocks.ddr[None, there]
    allowed = (
        _have_room(placement, slice(worst, worst + 1), -more_hbm, -more_ddr)
        & _have_room(placement, other, more_hbm, more_ddr)
        & ~blocks.taken[blocks.table[here][:, None], other[None, :]]
        & ~blocks.taken[blocks.table[there], worst][None, :]
    )
    after = np.where(allowed, after, np.inf)
    best = int(after.argmin())
    i, j = divmod(best, after.shape[1])
    return float(after[i, j]), int(here[i]), int(there[j])


def _find_cycle(
    placement: Placement, blocks: _Blocks, here: NDArray[np.int64], worst: int
) -> list[tuple[int, int]] | None:
    """Move a block of the worst rank to a second, one of that to a third, and one of that to the worst.

    The second and the third block are optional. Cycles help if memory leaves no room for swaps.

    Returns:
        Blocks with their new ranks, or None if there is no gain, or only a small possible one.
    """
    now = float(placement.loads_us[worst])
    if now <= placement.loads_us.mean() * _BALANCED_ENOUGH:
        return None
    others = _other_blocks(placement, blocks, worst)
    best_us, best = now * (1 - _LEAST_GAIN), None
    for i in here.tolist():
        found = _best_cycle_of(placement, blocks, i, others, best_us)
        if found is not None:
            best_us, second, third = found
            best = i, second, third
    if best is None:
        return None
    i, second, third = best
    moves = [(i, int(others.rank[second]))]
    if others.block[second] != _EMPTY:
        moves.append((int(others.block[second]), int(others.rank[third])))
    if others.block[third] != _EMPTY:
        moves.append((int(others.block[third]), worst))
    return moves


@dataclass(frozen=True, kw_only=True)
class _OtherBlocks:
    """Blocks of other ranks than the worst, and an empty block on each of these ranks, as arrays.

    Attributes:
        block: Their positions in ``_Blocks``, or ``_EMPTY``.
        taken: For each of them and each rank whether that holds a block of the same table.
    """

    block: NDArray[np.int64]
    cost_us: Floats
    hbm: Floats
    ddr: Floats
    rank: NDArray[np.int64]
    taken: NDArray[np.bool_]


def _other_blocks(placement: Placement, blocks: _Blocks, worst: int) -> _OtherBlocks:
    there = _partners(placement, blocks, worst)
    world_size = placement.capacity.world_size
    ranks = np.flatnonzero(np.arange(world_size) != worst)
    nothing = np.zeros(len(ranks))
    taken = np.zeros((len(there) + len(ranks), world_size), dtype=bool)
    taken[: len(there)] = blocks.taken[blocks.table[there]]
    return _OtherBlocks(
        block=np.concatenate([there, np.full(len(ranks), _EMPTY)]),
        cost_us=np.concatenate([blocks.cost_us[there], nothing]),
        hbm=np.concatenate([blocks.hbm[there], nothing]),
        ddr=np.concatenate([blocks.ddr[there], nothing]),
        rank=np.concatenate([blocks.rank[there], ranks]),
        taken=taken,
    )


def _best_cycle_of(
    placement: Placement, blocks: _Blocks, i: int, others: _OtherBlocks, below_us: float
) -> tuple[float, int, int] | None:
    """Return the best cycle that begins with a block of the worst rank.

    Returns:
        The highest load of its three ranks, which is below ``below_us``, and the positions of the second and the third
        block in ``others``; None if there is no such cycle.
    """
    loads, worst = placement.loads_us, int(blocks.rank[i])
    cost, hbm, ddr, rank = others.cost_us, others.hbm, others.ddr, others.rank
    more_hbm, more_ddr = blocks.hbm[i] - hbm, blocks.ddr[i] - ddr
    to_second = loads[rank] + blocks.cost_us[i] - cost
    second = np.flatnonzero(
        (to_second < below_us)
        & _have_room(placement, rank, more_hbm, more_ddr)
        & ~blocks.taken[blocks.table[i], rank]
    )
    back = loads[worst] - blocks.cost_us[i] + cost
    third = np.flatnonzero(
        (back < below_us)
        & _have_room(placement, slice(worst, worst + 1), -more_hbm, -more_ddr)
        & ~others.taken[:, worst]
    )
    if not second.size or not third.size:
        return None
    to_third = loads[rank[third]][None, :] + cost[second, None] - cost[None, third]
    after = np.maximum(np.maximum(to_third, to_second[second, None]), back[None, third])
    allowed = (
        _have_room(
            placement, rank[third], hbm[second, None] - hbm[None, third], ddr[second, None] - ddr[None, third]
        )
        & ~others.taken[second[:, None], rank[third][None, :]]
        & (rank[second, None] != rank[None, third])
    )
    after = np.where(allowed, after, np.inf)
    j, k = divmod(int(after.argmin()), after.shape[1])
    return (float(after[j, k]), int(second[j]), int(third[k])) if after[j, k] < below_us else None


def _partners(placement: Placement, blocks: _Blocks, worst: int) -> NDArray[np.int64]:
    """Return blocks of other ranks, of the least busy ones if there are many."""
    by_load = np.argsort(placement.loads_us[blocks.rank], kind="stable")
    others: NDArray[np.int64] = by_load[blocks.rank[by_load] != worst]
    return others[:_MOST_PARTNERS]


def choose_again(
    placement: Placement, options: Sequence[Sequence[ShardingOption]], most_rounds: int
) -> Placement:
    """Try other options for the tables of the worst rank, one at a time, with moves and swaps in between.

    Args:
        placement: The start; it is not changed.
        options: The options of each table.
        most_rounds: The maximum number of changes.
    """
    best = placement.copy()
    balance(best)
    for _ in range(most_rounds):
        changed = _one_change(best, options)
        if changed is None:
            return best
        balance(changed)
        best = changed
    return best


def _one_change(placement: Placement, options: Sequence[Sequence[ShardingOption]]) -> Placement | None:
    """Return a copy with the change of one table's option that lowers the loads' power sum most, if any lowers it.

    The changes are tried in ``placement`` itself, which ends as it was but for the rounding of loads.
    """
    worst = int(placement.loads_us.argmax())
    scale = max(placement.cost_us, 1e-9)
    least = _potential(placement, scale) * (1 - _LEAST_GAIN)
    found: tuple[int, ShardingOption] | None = None
    for table in tables_on(placement, worst):
        old, slots = placement.options[table], placement.slots[table]
        assert old is not None
        placement.remove(table)
        for option in options[table]:
            if placement.place(table, option) is None:
                potential = _potential(placement, scale)
                if potential < least:
                    least, found = potential, (table, option)
                placement.remove(table)
        placement.restore(table, old, slots)
    if found is None:
        return None
    changed = placement.copy()
    changed.remove(found[0])
    misfit = changed.place(found[0], found[1])
    assert misfit is None
    return changed


def _potential(placement: Placement, scale_us: float) -> float:
    return float(((placement.loads_us / scale_us) ** _POWER).sum())


def tables_on(placement: Placement, rank: int) -> list[int]:
    """Return the tables that cost the rank most."""
    found = [
        (-option.max_us, table)
        for table, option in enumerate(placement.options)
        if option is not None
        and any(slot * option.span <= rank < (slot + 1) * option.span for slot in placement.slots[table])
    ]
    return [table for _, table in sorted(found)[:_NUM_CANDIDATES]]
