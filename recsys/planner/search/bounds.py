"""Lower bounds of the cost of plans.

Shape letters: W world size.

Two bounds, both on the worst rank's cost. ``of_choice``: for chosen options, the maximum of the mean over the
ranks and the largest block. ``of_any_plan``: over all options; if some plan costs C, each table uses an
option whose blocks each cost at most C, so the cheapest such options together cost at most W × C, and, by
weak duality, at most that with any price on the memory they take beyond the capacity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.placement import Capacity

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_BISECTIONS = 40


class OptionTable:
    """All options of all tables, as arrays."""

    def __init__(self, options: Sequence[Sequence[ShardingOption]]) -> None:
        flat = [option for group in options for option in group]
        self.starts: Ints = np.cumsum([0, *(len(group) for group in options)])[:-1].astype(np.int64)
        self.sizes: Ints = np.array([len(group) for group in options], dtype=np.int64)
        self.total_us: Floats = np.array([option.total_us for option in flat])
        self.max_us: Floats = np.array([option.max_us for option in flat])
        self.hbm: Floats = np.array([float(option.hbm_bytes) for option in flat])
        self.ddr: Floats = np.array([float(option.ddr_bytes) for option in flat])
        self.max_hbm: Floats = np.array([float(option.max_hbm_bytes) for option in flat])
        self.max_ddr: Floats = np.array([float(option.max_ddr_bytes) for option in flat])

    def cheapest(self, values: Floats) -> Ints:
        """Return for each table the position of the least value among its options."""
        least = np.repeat(np.minimum.reduceat(values, self.starts), self.sizes)
        position = np.where(values <= least, np.arange(len(values)), len(values))
        first: Ints = np.minimum.reduceat(position, self.starts)
        return first - self.starts

    def least_block_us(self) -> float:
        """Return a bound of every choice: the maximum over the tables of their smallest largest block."""
        return float(np.minimum.reduceat(self.max_us, self.starts).max())


def of_choice(capacity: Capacity, chosen: Sequence[ShardingOption]) -> float:
    """Return ``max(total / W, largest block)`` of options that are already chosen, in µs."""
    return max(sum(o.total_us for o in chosen) / capacity.world_size, max(o.max_us for o in chosen))


def of_any_plan(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> float:
    """Return a lower bound in µs of the cost of every plan with these options.

    Args:
        capacity: The capacity of the ranks.
        options: The options of each table, each with room for its blocks on empty ranks.
    """
    table = OptionTable(options)
    low, high = table.least_block_us(), max(float(table.total_us.sum()), table.least_block_us())
    prices = _prices(table, capacity)
    if _holds(table, capacity, low, prices):
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _holds(table, capacity, middle, prices):
            high = middle
        else:
            low = middle
    return low


def _prices(table: OptionTable, capacity: Capacity) -> list[tuple[float, float]]:
    """Return prices of a byte of HBM and of DDR in us to try."""
    mean_us = max(float(table.total_us.mean()), 1e-9)
    prices = [(0.0, 0.0)]
    for i, values in enumerate((table.hbm, table.ddr)):
        mean_bytes = float(values.mean())
        if mean_bytes > 0 and (capacity.hbm_bytes, capacity.ddr_bytes)[i] > 0:
            for exponent in np.arange(-6, 4.01, 0.25):
                price = float(10**exponent * mean_us / mean_bytes)
                prices.append((price, 0.0) if i == 0 else (0.0, price))
    return prices


def _holds(table: OptionTable, capacity: Capacity, cost_us: float, prices: list[tuple[float, float]]) -> bool:
    """Return whether the bounds allow a plan of this cost."""
    allowed = table.max_us <= cost_us * (1 + 1e-12)
    world_size = capacity.world_size
    for hbm_price, ddr_price in prices:
        values = np.where(allowed, table.total_us + hbm_price * table.hbm + ddr_price * table.ddr, np.inf)
        least = np.minimum.reduceat(values, table.starts).sum()
        spare = world_size * (hbm_price * capacity.hbm_bytes + ddr_price * capacity.ddr_bytes)
        if least - spare > world_size * cost_us * (1 + 1e-12):
            return False
    return True
