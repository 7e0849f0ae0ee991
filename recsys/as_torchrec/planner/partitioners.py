"""Placement of options on ranks, by TorchRec's names."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from recsys.as_torchrec.planner.interfaces import PartitionByType, Partitioner, Shard, ShardingOption
from recsys.as_torchrec.planner.perf_models import NoopPerfModel, NoopStorageModel
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
                ranks.place(option.name, option.shards, [range(option.num_shards)])
        for group in self._in_order([o for o in plan if o.partition_by != PartitionByType.UNIFORM.value]):
            kinds = {option.partition_by for option in group}
            if len(kinds) > 1:
                raise PlannerError(
                    f"dependency {group[0].dependency!r}: got options placed on {sorted(kinds)}, expected one kind",
                    PlannerErrorType.PARTITION,
                )
            name, shards = group[0].name, [shard for option in group for shard in option.shards]
            match PartitionByType(kinds.pop()):
                case PartitionByType.DEVICE if group[0].dependency is not None:
                    ranks.place(name, shards, ([rank] * len(shards) for rank in ranks.idlest()))
                case PartitionByType.DEVICE:
                    for shard in shards:
                        ranks.place(name, [shard], ([rank] for rank in ranks.idlest()))
                case PartitionByType.HOST:
                    ranks.place(
                        name,
                        shards,
                        (
                            [rank for option in group for rank in ranks.in_host(option, host)]
                            for host in ranks.idlest_hosts()
                        ),
                    )
                case _:
                    for option in group:
                        ranks.place_blocks(option)
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
        greedy = GreedyPerfPartitioner(SortBy.PERF, self._balance_modules)
        time_us, num_bytes = NoopPerfModel(storage_constraint).rate, NoopStorageModel(storage_constraint).rate
        best = greedy.partition(proposal, storage_constraint)
        slowest = time_us(best) * (1 + self._tolerance)
        storage = [option.total_storage for option in proposal]
        total = sum(s.ddr if storage_constraint.hbm is None else s.hbm for s in storage)
        low, high = -(-total // storage_constraint.world_size), int(num_bytes(best))
        for _ in range(self._max_search_count):
            if low >= high:
                break
            middle = (low + high) // 2
            try:
                found = greedy.partition(proposal, storage_constraint, middle)
            except PlannerError:
                found = None
            if found is None or time_us(found) > slowest:
                low = middle + 1
            else:
                best, high = found, min(int(num_bytes(found)), middle)
        return best


class _Ranks:
    """The ranks, with the memory they have left and the time of what lies on them."""

    def __init__(self, topology: Topology, device_bytes: int | None) -> None:
        self._devices: list[DeviceHardware] = copy.deepcopy(topology.devices)
        self._local = topology.local_world_size
        for device in self._devices:
            device.perf = Perf(0.0, 0.0, 0.0, 0.0)
            if device_bytes is not None:
                memory = "ddr" if topology.hbm is None else "hbm"
                device.storage = replace(device.storage, **{memory: device_bytes})

    def left_of(self, topology: Topology) -> Topology:
        """Return a topology with the memory that is left and the time of what lies on the ranks."""
        left = copy.copy(topology)
        left.devices = self._devices
        return left

    def idlest(self) -> list[int]:
        """Return the ranks, those first that have least to do; if that is equal, one host after the other."""
        return sorted(
            range(len(self._devices)), key=lambda r: (self._devices[r].perf.total, r % self._local, r)
        )

    def idlest_hosts(self) -> list[range]:
        """Return the ranks of each host, those hosts first that have least to do."""
        hosts = [range(start, start + self._local) for start in range(0, len(self._devices), self._local)]
        return sorted(hosts, key=lambda host: sum(self._devices[rank].perf.total for rank in host))

    def in_host(self, option: ShardingOption, host: Sequence[int]) -> list[int]:
        """Return the ranks of a host for an option's shards: of rows in order, of columns the idlest first."""
        is_cut_by_columns = len({shard.offset[1] for shard in option.shards}) > 1
        ranks = [rank for rank in self.idlest() if rank in host] if is_cut_by_columns else list(host)
        return [ranks[i % len(ranks)] for i in range(option.num_shards)]

    def place_blocks(self, option: ShardingOption) -> None:
        """Place each block of columns on a host of its own, its rows in order on the host's ranks."""
        taken: list[Sequence[int]] = []
        for start in range(0, option.num_shards, self._local):
            block = option.shards[start : start + self._local]
            free = [host for host in self.idlest_hosts() if host not in taken]
            taken.append(self.place(option.name, block, free))

    def place(self, name: str, shards: Sequence[Shard], candidates: Iterable[Sequence[int]]) -> Sequence[int]:
        """Place shards on the first ranks that have room for them, a rank for each shard, and return these.

        Raises:
            PlannerError: None have.
        """
        for ranks in candidates:
            if self._have_room(shards, ranks):
                for shard, rank in zip(shards, ranks, strict=False):
                    assert shard.storage is not None
                    assert shard.perf is not None
                    shard.rank = rank
                    self._devices[rank].storage -= shard.storage
                    self._devices[rank].perf += shard.perf
                return ranks
        left = [device.storage for device in self._devices]
        raise PlannerError(
            f"table {name!r}: no rank has room for a shard of {shards[0].size} ({shards[0].storage}); at most "
            f"{max(s.hbm for s in left)} bytes of device memory and {max(s.ddr for s in left)} of host memory are left",
            PlannerErrorType.PARTITION,
        )

    def _have_room(self, shards: Sequence[Shard], ranks: Sequence[int]) -> bool:
        needed: dict[int, Storage] = {}
        for shard, rank in zip(shards, ranks, strict=False):
            assert shard.storage is not None
            needed[rank] = needed.get(rank, Storage(0, 0)) + shard.storage
        return all(storage.fits_in(self._devices[rank].storage) for rank, storage in needed.items())
