"""The optimum of small problems: every choice of options and ranks, but for those that cannot be better.

Shape letters: T tables, W world size.

For tests and benchmarks of the search, which must come near. It takes exponential time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import numpy as np

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.placement import Capacity

_ROUNDING = 1e-9


def least_cost_us(capacity: Capacity, options: Sequence[Sequence[ShardingOption]]) -> float | None:
    """The worst rank's cost in the best plan, in us; None where nothing fits.

    Branch and bound: a branch is left when its worst rank, or the mean with the least that the other tables add,
    is no better than the best plan so far.

    Args:
        capacity: of the ranks.
        options: of each table; about 6 tables of 10 options on 3 ranks are feasible.
    """
    order = sorted(options, key=lambda group: -min(o.total_us for o in group))
    least = [min(option.total_us for option in group) for group in order]
    rest = [sum(least[i:]) for i in range(len(least) + 1)]
    search = _Search(capacity, order, rest)
    search.descend(0)
    return None if search.best_us == np.inf else search.best_us


class _Search:
    def __init__(
        self, capacity: Capacity, options: Sequence[Sequence[ShardingOption]], rest_us: Sequence[float]
    ) -> None:
        self._capacity = capacity
        self._options = options
        self._rest_us = rest_us
        self._loads = [0.0] * capacity.world_size
        self._hbm = [0] * capacity.world_size
        self._ddr = [0] * capacity.world_size
        self.best_us = float("inf")

    def descend(self, i: int) -> None:
        worst = max(self._loads)
        mean = (sum(self._loads) + self._rest_us[i]) / self._capacity.world_size
        if max(worst, mean) >= self.best_us * (1 - _ROUNDING):
            return
        if i == len(self._options):
            self.best_us = worst
            return
        for option in sorted(self._options[i], key=lambda o: o.max_us):
            tried = set()
            for slots in _slots(option, self._capacity):
                # Ranks that hold the same are alike, where a slot is a rank.
                key = tuple(
                    (self._loads[s], self._hbm[s], self._ddr[s]) if option.span == 1 else s for s in slots
                )
                if key in tried:
                    continue
                tried.add(key)
                if self._add(option, slots, 1):
                    self.descend(i + 1)
                self._add(option, slots, -1)

    def _add(self, option: ShardingOption, slots: Sequence[int], sign: int) -> bool:
        fits = True
        for block, slot in zip(option.blocks, slots, strict=True):
            for rank in range(slot * option.span, (slot + 1) * option.span):
                self._loads[rank] += sign * block.total_us
                self._hbm[rank] += sign * block.hbm_bytes
                self._ddr[rank] += sign * block.ddr_bytes
                fits &= self._hbm[rank] <= self._capacity.hbm_bytes
                fits &= self._ddr[rank] <= self._capacity.ddr_bytes
        return fits


def _slots(option: ShardingOption, capacity: Capacity) -> Iterator[Sequence[int]]:
    num_slots = capacity.world_size // option.span
    num_blocks = len(option.blocks)
    alike = len({block.total_us for block in option.blocks}) == 1
    yield from (combinations if alike else permutations)(range(num_slots), num_blocks)
