"""The placement of chosen options' blocks on ranks.

Shape letters: H hosts, L ranks per host, T tables, W world size.

Blocks of all ranks are placed first, then blocks of hosts, then blocks of single ranks, each kind heaviest
first. The partitioners differ in the measure of weight and in the choice of the rank: ``GREEDY`` uses cost,
``MEMORY_BALANCED`` bytes, which finds placements where cost finds none, and ``BOTH_BALANCED`` the scarcer of
the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.cost.estimate import ShardCost

GREEDY = "greedy"
MEMORY_BALANCED = "memory_balanced"
BOTH_BALANCED = "both_balanced"
PARTITIONERS = (GREEDY, BOTH_BALANCED, MEMORY_BALANCED)
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """The memory of the ranks for tables.

    Attributes:
        world_size: W.
        local_world_size: L.
        hbm_bytes: The device memory of each rank, of the largest where they differ.
        ddr_bytes: The host memory of each rank, of the largest where they differ.
        of_ranks: The device and host memory of each rank where they differ.
    """

    world_size: int
    local_world_size: int
    hbm_bytes: int
    ddr_bytes: int
    of_ranks: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, of_ranks: Sequence[tuple[int, int]], local_world_size: int) -> Capacity:
        """Return the capacity of ranks with such device and host memory, which may differ."""
        return cls(
            world_size=len(of_ranks),
            local_world_size=local_world_size,
            hbm_bytes=max(hbm for hbm, _ in of_ranks),
            ddr_bytes=max(ddr for _, ddr in of_ranks),
            of_ranks=tuple(of_ranks) if len(set(of_ranks)) > 1 else None,
        )

    def is_room_for(self, option: ShardingOption) -> bool:
        """Return whether its blocks fit on empty ranks."""
        return option.max_hbm_bytes <= self.hbm_bytes and option.max_ddr_bytes <= self.ddr_bytes


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A block that a partition could not place.

    Attributes:
        table: Position of the table.
        short_bytes: Missing bytes on the rank with most room (for a block on several ranks, on the fullest of
            them).
        memory: ``hbm`` or ``ddr``.
    """

    table: int
    short_bytes: int
    memory: str


class Placement:
    """Options with their blocks' slots (a rank, a host, or 0 for all ranks), and the load of the ranks.

    Args:
        capacity: The memory of the ranks.
        num_tables: T.
        mean_us: The ranks' mean load once all tables are placed, by which ``BOTH_BALANCED`` measures loads.
    """

    def __init__(self, capacity: Capacity, num_tables: int, mean_us: float) -> None:
        self.capacity = capacity
        self.mean_us = mean_us
        self.options: list[ShardingOption | None] = [None] * num_tables
        self.slots: list[list[int]] = [[] for _ in range(num_tables)]
        self.loads_us: Floats = np.zeros(capacity.world_size)
        self.free_hbm: Floats = np.full(capacity.world_size, float(capacity.hbm_bytes))
        self.free_ddr: Floats = np.full(capacity.world_size, float(capacity.ddr_bytes))
        if capacity.of_ranks is not None:
            self.free_hbm, self.free_ddr = np.array(capacity.of_ranks, dtype=np.float64).T.copy()

    @property
    def cost_us(self) -> float:
        """The cost of the worst rank."""
        return float(self.loads_us.max())

    def copy(self) -> Placement:
        """Return an independent copy."""
        new = Placement(self.capacity, 0, self.mean_us)
        new.options, new.slots = list(self.options), [list(slots) for slots in self.slots]
        new.loads_us, new.free_hbm, new.free_ddr = (
            self.loads_us.copy(),
            self.free_hbm.copy(),
            self.free_ddr.copy(),
        )
        return new

    def ranks_of(self, span: int, slot: int) -> slice:
        """Return the ranks of a slot."""
        return slice(slot * span, slot * span + span)

    def add(self, table: int, block: ShardCost, span: int, slot: int) -> None:
        """Place one more block of a table whose option is set."""
        self.slots[table].append(slot)
        self._count(block, self.ranks_of(span, slot), 1)

    def remove(self, table: int) -> None:
        """Remove a table's blocks from the ranks."""
        option = self.options[table]
        if option is not None:
            for block, slot in zip(option.blocks, self.slots[table], strict=True):
                self._count(block, self.ranks_of(option.span, slot), -1)
        self.options[table], self.slots[table] = None, []

    def restore(self, table: int, option: ShardingOption, slots: Sequence[int]) -> None:
        """Place a table, which is on no rank, on given slots: that undoes ``remove`` but for the rounding of loads."""
        self.options[table], self.slots[table] = option, []
        for block, slot in zip(option.blocks, slots, strict=True):
            self.add(table, block, option.span, slot)

    def move(self, table: int, block: int, slot: int) -> None:
        """Move a block to another slot."""
        option = self.options[table]
        assert option is not None
        self._count(option.blocks[block], self.ranks_of(option.span, self.slots[table][block]), -1)
        self._count(option.blocks[block], self.ranks_of(option.span, slot), 1)
        self.slots[table][block] = slot

    def place(self, table: int, option: ShardingOption, by: str = GREEDY) -> Misfit | None:
        """Place all blocks of a table; change nothing if one does not fit."""
        self.options[table] = option
        for block in option.blocks:
            misfit = self._place_block(table, option, block, by)
            if misfit is not None:
                placed = self.slots[table]
                for other, slot in zip(option.blocks, placed, strict=False):
                    self._count(other, self.ranks_of(option.span, slot), -1)
                self.options[table], self.slots[table] = None, []
                return misfit
        return None

    def _place_block(self, table: int, option: ShardingOption, block: ShardCost, by: str) -> Misfit | None:
        span = option.span
        loads, hbm, ddr = self.loads_us, self.free_hbm, self.free_ddr
        if span > 1:
            loads, hbm, ddr = (
                loads.reshape(-1, span).max(1),
                hbm.reshape(-1, span).min(1),
                ddr.reshape(-1, span).min(1),
            )
        fits = (hbm >= block.hbm_bytes) & (ddr >= block.ddr_bytes)
        if len(option.blocks) > 1:
            fits[self.slots[table]] = False
        if not fits.any():
            return _misfit(table, block, hbm, ddr)
        if by == GREEDY:
            score = loads
        else:
            score = np.maximum(
                _used(self.capacity.hbm_bytes, hbm, block.hbm_bytes),
                _used(self.capacity.ddr_bytes, ddr, block.ddr_bytes),
            )
            if by == BOTH_BALANCED:
                score = np.maximum(score, (loads + block.total_us) / self.mean_us)
        self.add(table, block, span, int(np.where(fits, score, np.inf).argmin()))
        return None

    def _count(self, block: ShardCost, ranks: slice, sign: int) -> None:
        self.loads_us[ranks] += sign * block.total_us
        self.free_hbm[ranks] -= sign * block.hbm_bytes
        self.free_ddr[ranks] -= sign * block.ddr_bytes


def _used(capacity_bytes: int, free: Floats, num_bytes: int) -> Floats:
    """Return the share of a memory that would be used; 0 if the block does not use it."""
    used: Floats = (capacity_bytes - free + num_bytes) / max(capacity_bytes, 1) * (num_bytes > 0)
    return used


def _misfit(table: int, block: ShardCost, hbm: Floats, ddr: Floats) -> Misfit:
    short_hbm = block.hbm_bytes - int(hbm.max())
    short_ddr = block.ddr_bytes - int(ddr.max())
    if short_hbm >= short_ddr:
        return Misfit(table=table, short_bytes=max(short_hbm, 0), memory="hbm")
    return Misfit(table=table, short_bytes=max(short_ddr, 0), memory="ddr")


def partition(capacity: Capacity, options: Sequence[ShardingOption], by: str = GREEDY) -> Placement | Misfit:
    """Place every table's blocks on ranks.

    Args:
        capacity: The capacity of the ranks.
        options: The chosen option of each table.
        by: One of ``PARTITIONERS``.
    """
    mean_us = max(sum(option.total_us for option in options) / capacity.world_size, 1e-9)
    placement = Placement(capacity, len(options), mean_us)
    hbm, ddr = max(capacity.hbm_bytes, 1), max(capacity.ddr_bytes, 1)

    def heaviness(i: int) -> tuple[float, float, int]:
        option = options[i]
        fill = max(option.max_hbm_bytes / hbm, option.max_ddr_bytes / ddr)
        cost = option.max_us / mean_us
        return (-option.span, -{GREEDY: cost, MEMORY_BALANCED: fill, BOTH_BALANCED: max(cost, fill)}[by], i)

    for i in sorted(range(len(options)), key=heaviness):
        misfit = placement.place(i, options[i], by)
        if misfit is not None:
            return misfit
    return placement
