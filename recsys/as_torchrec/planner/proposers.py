"""Choices of an option for each table, by TorchRec's names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from recsys.as_torchrec.planner.cuts import totals
from recsys.as_torchrec.planner.interfaces import Enumerator, Proposer, ShardingOption
from recsys.planner.cost.topology import Topology
from recsys.planner.search.bounds import OptionTable
from recsys.planner.search.proposers import cheapest_by_memory

#: More combinations than this are not tried one by one; TorchRec's number.
MAX_PROPOSALS = 10_000


class _ListedProposer(Proposer):
    """Proposes one choice after another, whatever comes back."""

    def __init__(self) -> None:
        self._choices: Iterator[list[ShardingOption]] = iter(())
        self._next: list[ShardingOption] | None = None

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Take the options to choose from."""
        del enumerator
        self._choices = self._listed(by_table(search_space))
        self._next = next(self._choices, None)

    def propose(self) -> list[ShardingOption] | None:
        """Return a choice, None if there are no more."""
        return self._next

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Go on to the next choice."""
        del partitionable, plan, perf_rating, storage_constraint
        self._next = next(self._choices, None)

    def _listed(self, tables: list[list[ShardingOption]]) -> Iterator[list[ShardingOption]]:
        raise NotImplementedError


class GreedyProposer(_ListedProposer):
    """Starts from the fastest option of each table, and exchanges that of the largest table for its next.

    Args:
        use_depth: Whether an option's time is that of its slowest shard, else of all together.
        threshold: The number of choices in a row without a better plan after which it stops; None for no bound.
    """

    def __init__(self, use_depth: bool = True, threshold: int | None = None) -> None:
        super().__init__()
        self._use_depth = use_depth
        self._threshold = threshold
        self._best: float | None = None
        self._num_in_vain = 0

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Go on to the next choice, or stop after too many in vain."""
        super().feedback(partitionable, plan, perf_rating, storage_constraint)
        if partitionable and perf_rating is not None and (self._best is None or perf_rating < self._best):
            self._best, self._num_in_vain = perf_rating, 0
            return
        self._num_in_vain += 1
        if self._threshold is not None and self._num_in_vain > self._threshold:
            self._next = None

    def _listed(self, tables: list[list[ShardingOption]]) -> Iterator[list[ShardingOption]]:
        tables = [sorted(options, key=lambda o: _time(o, self._use_depth)) for options in tables]
        chosen = [0] * len(tables)
        while tables:
            yield [options[i] for options, i in zip(tables, chosen, strict=True)]
            left = [t for t, i in enumerate(chosen) if i + 1 < len(tables[t])]
            if not left:
                return
            largest = max(left, key=lambda t: (_bytes(tables[t][chosen[t]]), -t))
            chosen[largest] += 1


class UniformProposer(_ListedProposer):
    """Proposes one sharding type and kernel for all tables, each that all tables have; fast ones first.

    Args:
        use_depth: As ``GreedyProposer``.
    """

    def __init__(self, use_depth: bool = True) -> None:
        super().__init__()
        self._use_depth = use_depth

    def _listed(self, tables: list[list[ShardingOption]]) -> Iterator[list[ShardingOption]]:
        choices = []
        for pair in dict.fromkeys((o.sharding_type, o.compute_kernel) for options in tables for o in options):
            alike = [
                [o for o in options if (o.sharding_type, o.compute_kernel) == pair] for options in tables
            ]
            if all(alike):
                choices.append([min(options, key=lambda o: _time(o, self._use_depth)) for options in alike])
        yield from sorted(choices, key=lambda choice: sum(_time(o, self._use_depth) for o in choice))


class GridSearchProposer(_ListedProposer):
    """Proposes every combination, each table's fast options first, unless there are too many: then none.

    Args:
        max_proposals: How many are too many.
    """

    def __init__(self, max_proposals: int = MAX_PROPOSALS) -> None:
        super().__init__()
        self._max_proposals = max_proposals

    def _listed(self, tables: list[list[ShardingOption]]) -> Iterator[list[ShardingOption]]:
        if math.prod(map(len, tables)) <= self._max_proposals:
            ordered = [sorted(options, key=lambda o: _time(o, use_depth=True)) for options in tables]
            yield from map(list, itertools.product(*ordered))


class DynamicProgrammingProposer(Proposer):
    """Proposes the fastest choice for each amount of device memory (host memory on a CPU), from all of it down.

    Bytes are rounded to bins. The first choice has the fastest options; what comes back says how much memory there is.

    Args:
        hbm_bins_per_device: The number of bins for each rank.
    """

    def __init__(self, hbm_bins_per_device: int = 100) -> None:
        self._num_bins = max(hbm_bins_per_device, 1)
        self._tables: list[list[ShardingOption]] = []
        self._first: list[ShardingOption] | None = None
        self._choices: list[list[ShardingOption]] | None = None

    def load(self, search_space: list[ShardingOption], enumerator: Enumerator | None = None) -> None:
        """Take the options to choose from."""
        del enumerator
        self._tables = by_table(search_space)
        self._first = [min(options, key=lambda o: o.total_perf) for options in self._tables]
        self._choices = None

    def propose(self) -> list[ShardingOption] | None:
        """Return a choice, None if there are no more."""
        if self._first is not None:
            return self._first
        return self._choices[0] if self._choices else None

    def feedback(
        self,
        partitionable: bool,
        plan: list[ShardingOption] | None = None,
        perf_rating: float | None = None,
        storage_constraint: Topology | None = None,
    ) -> None:
        """Go on to the next choice; the first time, list them for the ranks' memory."""
        del partitionable, plan, perf_rating
        self._first = None
        if self._choices is None:
            self._choices = [] if storage_constraint is None else self._listed(storage_constraint)
        else:
            self._choices = self._choices[1:]

    def _listed(self, topology: Topology) -> list[list[ShardingOption]]:
        table = OptionTable([[totals(option) for option in options] for options in self._tables])
        on_host = topology.hbm is None
        memory = table.ddr if on_host else table.hbm
        total = sum(d.storage.ddr if on_host else d.storage.hbm for d in topology.devices)
        num_bins = self._num_bins * topology.world_size
        fills = [1 - i / num_bins for i in range(num_bins)]
        found = cheapest_by_memory(table, table.total_us, memory, float(total), fills, num_bins)
        return [[options[i] for options, i in zip(self._tables, choice, strict=True)] for choice in found]


def by_table(search_space: Sequence[ShardingOption]) -> list[list[ShardingOption]]:
    """Return the options of each table."""
    tables: dict[str, list[ShardingOption]] = {}
    for option in search_space:
        tables.setdefault(option.fqn, []).append(option)
    return list(tables.values())


def _time(option: ShardingOption, use_depth: bool) -> float:
    if not use_depth:
        return option.total_perf
    return max(shard.perf.total for shard in option.shards if shard.perf is not None)


def _bytes(option: ShardingOption) -> int:
    total = option.total_storage
    return total.hbm or total.ddr
