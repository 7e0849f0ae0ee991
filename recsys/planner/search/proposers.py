"""Proposals of one option per table, before it is known whether they fit together.

Shape letters: T tables, W world size.

Proposals are positions of options, one for each table:

* ``greedy``: the options with the least total cost whose blocks each cost at most a limit; smaller limits
  give smaller blocks, which pack better and cost more;
* ``dynamic``: dynamic programming over bins of memory: the least cost for each total memory;
* ``uniform``: one sharding type and kernel for all tables that support it;
* ``least_memory``: whatever it costs, for tables that fit no other way.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.bounds import Floats, Ints, OptionTable
from recsys.planner.search.placement import Capacity

# Limits of a block's cost, as shares of the lower bound of any plan's cost.
_LIMITS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.08)
_DYNAMIC_LIMITS = (1.0, 0.5, 0.25, 0.1)
_NUM_BINS = 256
# Shares of all memory that a choice may take: packing leaves gaps.
_FILLS = (1.0, 0.97, 0.93, 0.88, 0.8, 0.7)
# Parts of a rank's memory that a block may take in ``least_memory``.
_LARGEST_PARTS = (1.0, 0.5, 0.25, 0.1, 0.03)

Choice = tuple[int, ...]


def greedy(table: OptionTable, least_us: float) -> Generator[Choice, object, None]:
    """Yield the cheapest options without large blocks.

    Args:
        table: The options.
        least_us: A lower bound of the cost of any plan.
    """
    for limit in _LIMITS:
        yield _positions(table.cheapest(_limited(table, least_us * limit)))


def dynamic(table: OptionTable, capacity: Capacity, least_us: float) -> Generator[Choice, object, None]:
    """Yield the cheapest options for decreasing memory, as long as memory is scarce."""
    memory, of_rank = (
        (table.hbm, capacity.hbm_bytes) if capacity.hbm_bytes else (table.ddr, capacity.ddr_bytes)
    )
    total = of_rank * capacity.world_size
    for limit in _DYNAMIC_LIMITS:
        values = _limited(table, least_us * limit)
        free = table.cheapest(values)
        needed = float(memory[table.starts + free].sum())
        if needed <= total * _FILLS[-1]:
            continue
        yield from cheapest_by_memory(table, values, memory, float(min(total, needed)))


def cheapest_by_memory(
    table: OptionTable,
    values: Floats,
    memory: Floats,
    total: float,
    fills: Sequence[float] = _FILLS,
    num_bins: int = _NUM_BINS,
) -> Generator[Choice, object, None]:
    """Yield choices by dynamic programming; ``least[b]`` is the least value of the tables so far in ``b`` bins.

    Bytes are rounded to the nearest bin, because rounding up would overestimate many small tables. The
    partitioner counts exact bytes.

    Args:
        table: The options.
        values: The value of each option, of which the sum shall be least.
        memory: The bytes of each option.
        total: The bytes of all ranks.
        fills: Shares of ``total`` that choices may take.
        num_bins: The number of bins.
    """
    smallest = np.minimum.reduceat(memory, table.starts)
    base = float(smallest.sum())
    if base > total:
        return
    extra = memory - np.repeat(smallest, table.sizes)
    unit = max((total - base) / num_bins, 1e-9)
    bins = np.minimum(np.rint(extra / unit), num_bins + 1).astype(np.int64)
    least = np.zeros(num_bins + 1)
    picks = np.zeros((len(table.starts), num_bins + 1), dtype=np.int32)
    for i, (start, size) in enumerate(zip(table.starts.tolist(), table.sizes.tolist(), strict=True)):
        shifted = np.full((size, num_bins + 1), np.inf)
        for j in range(size):
            by = int(bins[start + j])
            if by <= num_bins:
                shifted[j, by:] = least[: num_bins + 1 - by] + values[start + j]
        picks[i] = shifted.argmin(0)
        least = shifted.min(0)
    seen = set()
    for fill in fills:
        last = int((total * fill - base) / unit)
        if 0 <= last <= num_bins and np.isfinite(least[last]):
            choice = _walk_back(table, bins, picks, last)
            if choice not in seen:
                seen.add(choice)
                yield choice


def _walk_back(table: OptionTable, bins: Ints, picks: NDArray[np.int32], last: int) -> Choice:
    choice = [0] * len(table.starts)
    for i in reversed(range(len(choice))):
        choice[i] = int(picks[i, last])
        last -= int(bins[table.starts[i] + choice[i]])
    return tuple(choice)


def uniform(
    options: Sequence[Sequence[ShardingOption]], table: OptionTable
) -> Generator[Choice, object, None]:
    """Yield a choice for each (type, kernel) of any table; other tables get their cheapest option."""
    pairs = sorted({(option.sharding_type, option.compute_kernel) for group in options for option in group})
    flat = [option for group in options for option in group]
    for pair in pairs:
        is_other = np.array([(o.sharding_type, o.compute_kernel) != pair for o in flat])
        yield _positions(table.cheapest(table.total_us + is_other * (1 + table.total_us.sum())))


def least_memory(table: OptionTable, capacity: Capacity) -> Generator[Choice, object, None]:
    """Yield the options with the least memory and ever smaller blocks, then those with the least device memory."""
    hbm, ddr = max(capacity.hbm_bytes, 1), max(capacity.ddr_bytes, 1)
    part = np.maximum(table.max_hbm / hbm, table.max_ddr / ddr)
    fill = (table.hbm / hbm + table.ddr / ddr) / capacity.world_size + 1e-15 * table.total_us
    for largest in _LARGEST_PARTS:
        yield _positions(table.cheapest(np.where(part <= largest, fill, (1 + fill.sum()) * (1 + part))))
    yield _positions(table.cheapest(table.hbm + 1e-6 * table.ddr))


def _limited(table: OptionTable, limit_us: float) -> Floats:
    """Return costs, with a penalty above the limit: such options are used only if all are above it."""
    penalty = table.total_us.sum() * (1 + table.max_us / max(limit_us, 1e-9))
    return np.where(table.max_us <= limit_us * (1 + 1e-9), table.total_us, penalty)


def _positions(found: Ints) -> Choice:
    return tuple(int(i) for i in found)
