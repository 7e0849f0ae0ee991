"""Placement of options on ranks, by TorchRec's names."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from enum import Enum

from recsys.as_torchrec.planner.interfaces import PartitionByType, Partitioner, Shard, ShardingOption
from recsys.as_torchrec.planner.perf_models import NoopPerfModel
from recsys.planner.cost.capacity import DeviceHardware, Perf, Storage
from recsys.planner.cost.topology import Topology
from recsys.planner.errors import PlannerError, PlannerErrorType


class SortBy(Enum):
    """What makes an option heavy; heavy ones are placed first."""

    STORAGE = "storage"
    PERF = "perf"


class GreedyPerfPartitioner(Partitioner):
    """Places each option, heavy ones first, on the rank (or the host) that has least to do and room for it.

    Options on all ranks come first. Options with the same ``dependency`` are placed together.

    Args:
        sort_by: What makes an option heavy.
        balance_modules: Whether collections with heavier tables come first, all tables of one after another.
    """

    def __init__(self, sort_by: SortBy = SortBy.STORAGE, balance_modules: bool = False) -> None:
        self._sort_by = sort_by
        self._balance_modules = balance_modules
        # TorchRec's name: the ranks after the last partition, with the memory that is left and their time.
        self._topology: Topology | None = None

    def partition(
        self,
        proposal: list[ShardingOption],
        storage_constraint: Topology,
        hbm_per_device: int | None = None,
    ) -> list[ShardingOption]:
        """Return a copy of the options with the ranks of their shards.

        Args:
            proposal: An option for each table.
            storage_constraint: The ranks, with the memory that is left for tables.
            hbm_per_device: The device memory of each rank, instead.

        Raises:
            PlannerError: They do not fit.
        """
        plan = copy.deepcopy(proposal)
        ranks = _Ranks(storage_constraint, hbm_per_device)
        for option in plan:
            if option.partition_by == PartitionByType.UNIFORM.value:
                ranks.place(option.shards, range(len(option.shards)), option.name)
        for group in self._in_order([o for o in plan if o.partition_by != PartitionByType.UNIFORM.value]):
            kinds = {option.partition_by for option in group}
            if len(kinds) > 1:
                raise PlannerError(
                    f"dependency {group[0].dependency!r}: got options placed on {sorted(kinds)}, expected one kind",
                    PlannerErrorType.PARTITION,
                )
            shards = [shard for option in group for shard in option.shards]
            match PartitionByType(kinds.pop()):
                case PartitionByType.DEVICE if group[0].dependency is not None:
                    ranks.place_together(shards, group[0].name)
                case PartitionByType.DEVICE:
                    ranks.place_each(shards, range(ranks.world_size), group[0].name)
                case PartitionByType.HOST:
                    ranks.place_on_host(group)
                case _:
                    ranks.place_on_hosts(group)
        self._topology = ranks.left_of(storage_constraint)
        return plan

    def _in_order(self, options: list[ShardingOption]) -> list[list[ShardingOption]]:
        """Return groups of options that lie together, heavy ones first."""
        groups: dict[str, list[ShardingOption]] = {}
        for option in options:
            groups.setdefault(option.dependency or option.fqn, []).append(option)

        def weight(group: Sequence[ShardingOption]) -> tuple[float, float]:
            storage = [option.total_storage for option in group]
            num_bytes = float(sum(s.hbm + s.ddr for s in storage))
            if self._sort_by is SortBy.PERF:
                return sum(option.total_perf for option in group), num_bytes
            return num_bytes, sum(option.total_perf for option in group)

        ordered = sorted(groups.values(), key=weight, reverse=True)
        if not self._balance_modules:
            return ordered
        heaviest: dict[str, int] = {}
        for i, group in enumerate(ordered):
            heaviest.setdefault(group[0].path, i)
        return sorted(ordered, key=lambda group: heaviest[group[0].path])


class MemoryBalancedPartitioner(Partitioner):
    """Repeats ``GreedyPerfPartitioner`` with less memory for each rank, as long as the plan stays nearly as fast.

    Args:
        max_search_count: How often, at most.
        tolerance: The share by which a plan may be slower.
        balance_modules: As ``GreedyPerfPartitioner``.
    """

    def __init__(
        self, max_search_count: int = 10, tolerance: float = 0.02, balance_modules: bool = False
    ) -> None:
        self._max_search_count = max_search_count
        self._tolerance = tolerance
        self._balance_modules = balance_modules

    def partition(self, proposal: list[ShardingOption], storage_constraint: Topology) -> list[ShardingOption]:
        """Return a copy of the options with the ranks of their shards.

        Raises:
            PlannerError: They do not fit.
        """
        greedy, rates = (
            GreedyPerfPartitioner(SortBy.PERF, self._balance_modules),
            NoopPerfModel(storage_constraint),
        )
        best = greedy.partition(proposal, storage_constraint)
        slowest = rates.rate(best) * (1 + self._tolerance)
        low = -(-sum(map(_device_bytes(storage_constraint), proposal)) // storage_constraint.world_size)
        high = _fullest(best, storage_constraint)
        for _ in range(self._max_search_count):
            if low >= high:
                break
            middle = (low + high) // 2
            try:
                found = greedy.partition(proposal, storage_constraint, middle)
            except PlannerError:
                low = middle + 1
                continue
            if rates.rate(found) > slowest:
                low = middle + 1
                continue
            best, high = found, min(_fullest(found, storage_constraint), middle)
        return best


class _Ranks:
    """The ranks, with the memory they have left and the time of what lies on them."""

    def __init__(self, topology: Topology, device_bytes: int | None) -> None:
        self._devices: list[DeviceHardware] = copy.deepcopy(topology.devices)
        self._local = topology.local_world_size
        self.world_size = topology.world_size
        for device in self._devices:
            device.perf = Perf(0.0, 0.0, 0.0, 0.0)
            if device_bytes is not None:
                held = device.storage
                device.storage = (
                    Storage(held.hbm, device_bytes, held.ssd)
                    if topology.hbm is None
                    else Storage(device_bytes, held.ddr, held.ssd)
                )

    def left_of(self, topology: Topology) -> Topology:
        """Return a topology with the memory that is left and the time of what lies on the ranks."""
        left = copy.copy(topology)
        left.devices = self._devices
        return left

    def place(self, shards: Sequence[Shard], ranks: Sequence[int], name: str) -> None:
        """Place shards on given ranks."""
        for shard, rank in zip(shards, ranks, strict=True):
            if not self._fits(shard, rank):
                raise self._misfit(name, shard)
            self._put(shard, rank)

    def place_each(self, shards: Sequence[Shard], ranks: Sequence[int], name: str) -> None:
        """Place shards one by one on those of some ranks that have least to do."""
        for shard in shards:
            room = [rank for rank in ranks if self._fits(shard, rank)]
            if not room:
                raise self._misfit(name, shard)
            self._put(shard, min(room, key=self._load))

    def _load(self, rank: int) -> tuple[float, int, int]:
        """Return what ranks are chosen by: the time, and if that is equal, one host after the other."""
        return self._devices[rank].perf.total, rank % self._local, rank

    def place_together(self, shards: Sequence[Shard], name: str) -> None:
        """Place shards on one rank."""
        total = Storage(0, 0)
        for shard in shards:
            assert shard.storage is not None
            total += shard.storage
        room = [device.rank for device in self._devices if total.fits_in(device.storage)]
        if not room:
            raise self._misfit(name, shards[0])
        best = min(room, key=self._load)
        for shard in shards:
            self._put(shard, best)

    def place_on_host(self, options: Sequence[ShardingOption]) -> None:
        """Place options on one host, the shards of each in order on its ranks, or one by one if they are columns."""

        def placed(ranks: range) -> None:
            for option in options:
                if len({tuple(shard.offset[1:]) for shard in option.shards}) > 1:
                    self.place_each(option.shards, ranks, option.name)
                else:
                    self.place(option.shards, ranks[: len(option.shards)], option.name)

        self._first_that_works(self._hosts(), placed)

    def place_on_hosts(self, options: Sequence[ShardingOption]) -> None:
        """Place each block of columns on a host of its own, its rows in order on the host's ranks."""
        for option in options:
            taken: set[int] = set()
            for start in range(0, len(option.shards), self._local):
                block = option.shards[start : start + self._local]
                free = [ranks for ranks in self._hosts() if ranks[0] not in taken]

                def placed(ranks: range, block: Sequence[Shard] = block, name: str = option.name) -> None:
                    self.place(block, ranks, name)

                taken.add(self._first_that_works(free, placed))

    def _hosts(self) -> list[range]:
        """The ranks of each host, those first that have least to do."""
        hosts = [range(start, start + self._local) for start in range(0, self.world_size, self._local)]
        return sorted(hosts, key=lambda ranks: sum(self._devices[rank].perf.total for rank in ranks))

    def _first_that_works(self, hosts: Sequence[range], placed: Callable[[range], None]) -> int:
        error: PlannerError | None = None
        for ranks in hosts:
            before = copy.deepcopy(self._devices)
            try:
                placed(ranks)
            except PlannerError as misfit:
                error, self._devices = misfit, before
            else:
                return ranks[0]
        raise error or PlannerError("no host is left for a block of columns", PlannerErrorType.PARTITION)

    def _fits(self, shard: Shard, rank: int) -> bool:
        assert shard.storage is not None
        return shard.storage.fits_in(self._devices[rank].storage)

    def _put(self, shard: Shard, rank: int) -> None:
        assert shard.storage is not None
        assert shard.perf is not None
        shard.rank = rank
        self._devices[rank].storage -= shard.storage
        self._devices[rank].perf += shard.perf

    def _misfit(self, name: str, shard: Shard) -> PlannerError:
        left = [device.storage for device in self._devices]
        return PlannerError(
            f"table {name!r}: no rank has room for a shard of {shard.size} ({shard.storage}); at most "
            f"{max(s.hbm for s in left)} bytes of device memory and {max(s.ddr for s in left)} of host memory are left",
            PlannerErrorType.PARTITION,
        )


def _device_bytes(topology: Topology) -> Callable[[ShardingOption], int]:
    def of(option: ShardingOption) -> int:
        total = option.total_storage
        return total.ddr if topology.hbm is None else total.hbm

    return of


def _fullest(plan: Sequence[ShardingOption], topology: Topology) -> int:
    by_rank = [0] * topology.world_size
    for shard in (shard for option in plan for shard in option.shards):
        assert shard.storage is not None
        assert shard.rank is not None
        by_rank[shard.rank] += shard.storage.ddr if topology.hbm is None else shard.storage.hbm
    return max(by_rank)
