"""Simple options: a table that lies whole, in the memory of its device.

The cost of a plan is that of its worst rank, so that the search does not tell apart what lies on the others.
``simplify`` makes tables whole again, and takes them out of host memory, where the worst rank stays as it is.
Tiny tables are cut only for a gain that is worth it: ``of_tiny_tables`` leaves out their other options.
"""

from __future__ import annotations

from collections.abc import Sequence

from recsys.planner.cost.enumerators import ShardingOption
from recsys.planner.search.partitioners import Placement

#: Rows of a tiny table together: they stay in a processor's caches, so that to cut them spares no reads of memory.
TINY_BYTES = 1 << 18
# Kernels whose rows lie in host memory, the preferred one first.
_ON_HOST = {"fused_uvm_caching": 1, "fused_uvm": 2}
_ROUNDING = 1e-9


def is_simple(option: ShardingOption) -> bool:
    """Return whether the table lies whole in device memory, on one rank or as a copy on every rank."""
    return _complexity(option) == (0, 1)


def of_tiny_tables(options: Sequence[Sequence[ShardingOption]]) -> list[list[ShardingOption]]:
    """Return the options of each table, of tiny tables only simple ones where there are any."""
    return [
        [o for o in group if is_simple(o)] or list(group) if _num_bytes(group) <= TINY_BYTES else list(group)
        for group in options
    ]


def simplify(placement: Placement, options: Sequence[Sequence[ShardingOption]]) -> None:
    """Give tables simpler options that cost no more in all, where the worst rank's cost does not rise.

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


def _complexity(option: ShardingOption) -> tuple[int, int]:
    num_parts = 1 if option.sharding_type == "data_parallel" else option.span * len(option.blocks)
    return _ON_HOST.get(option.compute_kernel, 0), num_parts


def _num_bytes(options: Sequence[ShardingOption]) -> int:
    """Return the bytes of a table's rows, by the option that has fewest: column shards of stored rows have more."""
    return min(
        sum(block.weight_bytes for block in o.blocks) * (1 if o.sharding_type == "data_parallel" else o.span)
        for o in options
    )
