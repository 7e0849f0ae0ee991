"""The memory of one rank, and the time it spends, as TorchRec's planner represents them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from recsys.errors import PlanError
from recsys.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH


@dataclass
class Perf:
    """Times of a shard's step, in µs. ``total`` leaves out the time of the input, as TorchRec's does."""

    fwd_compute: float
    fwd_comms: float
    bwd_compute: float
    bwd_comms: float
    input_dist_comms: float = 0.0
    prefetch_compute: float = 0.0

    @property
    def total(self) -> float:
        """The sum of compute and of communication of outputs and gradients."""
        return self.fwd_compute + self.fwd_comms + self.bwd_compute + self.bwd_comms + self.prefetch_compute

    def __add__(self, other: Perf) -> Perf:
        return Perf(
            self.fwd_compute + other.fwd_compute,
            self.fwd_comms + other.fwd_comms,
            self.bwd_compute + other.bwd_compute,
            self.bwd_comms + other.bwd_comms,
            self.input_dist_comms + other.input_dist_comms,
            self.prefetch_compute + other.prefetch_compute,
        )

    def __hash__(self) -> int:
        return hash((self.fwd_compute, self.fwd_comms, self.bwd_compute, self.bwd_comms))


@dataclass
class Storage:
    """Bytes of device memory, host memory and disks."""

    hbm: int
    ddr: int
    ssd: int = 0

    def __add__(self, other: Storage) -> Storage:
        return Storage(self.hbm + other.hbm, self.ddr + other.ddr, self.ssd + other.ssd)

    def __sub__(self, other: Storage) -> Storage:
        return Storage(self.hbm - other.hbm, self.ddr - other.ddr, self.ssd - other.ssd)

    def __hash__(self) -> int:
        return hash((self.hbm, self.ddr, self.ssd))

    def fits_in(self, other: Storage) -> bool:
        """Return whether each kind is at most the other's."""
        return self.hbm <= other.hbm and self.ddr <= other.ddr and self.ssd <= other.ssd


@dataclass
class DeviceHardware:
    """One rank: the memory it has left, and the time of what was placed on it."""

    rank: int
    storage: Storage
    perf: Perf

    def __hash__(self) -> int:
        return hash((self.rank, self.storage, self.perf))


class CustomTopologyData:
    """Capacities rank by rank.

    Args:
        data: Bytes of each rank under ``hbm_cap``, ``ddr_cap`` or ``ssd_cap``.
        world_size: The number of ranks.

    Raises:
        PlanError: Another name, or another number of ranks.
    """

    supported_fields = ("ddr_cap", "hbm_cap", "ssd_cap")

    def __init__(self, data: Mapping[str, list[int]], world_size: int) -> None:
        unknown = sorted(set(data) - set(self.supported_fields))
        if unknown:
            raise PlanError(f"data: got {unknown}, expected some of {list(self.supported_fields)}")
        for name, of_ranks in data.items():
            if len(of_ranks) != world_size:
                raise PlanError(f"data[{name!r}]: got {len(of_ranks)} numbers, expected {world_size}")
        self._data = data

    def get_data(self, key: str) -> list[int]:
        """Return the bytes of each rank."""
        return self._data[key]

    def has_data(self, key: str) -> bool:
        """Return whether the capacities of a kind are given."""
        return key in self._data


class CollectiveType(Enum):
    """The kinds of collective calls."""

    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"


class GeneralizedCommsBandwidth(ABC):
    """The bandwidths between ranks, bytes/ms."""

    @abstractmethod
    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        """Return the bandwidth of a collective call."""

    @property
    @abstractmethod
    def intra_host_bw(self) -> float:
        """Between the ranks of a host."""

    @property
    @abstractmethod
    def inter_host_bw(self) -> float:
        """Between hosts."""


class BasicCommsBandwidths(GeneralizedCommsBandwidth):
    """One bandwidth inside hosts, one between them."""

    def __init__(
        self, inter_host_bw: float = CROSS_NODE_BANDWIDTH, intra_host_bw: float = INTRA_NODE_BANDWIDTH
    ) -> None:
        self._inter_host_bw = inter_host_bw
        self._intra_host_bw = intra_host_bw

    @property
    def inter_host_bw(self) -> float:
        """Between hosts."""
        return self._inter_host_bw

    @property
    def intra_host_bw(self) -> float:
        """Between the ranks of a host."""
        return self._intra_host_bw

    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        """Return the bandwidth between the ranks of the call: of one host, or of several."""
        del collective_type
        return self._intra_host_bw if world_size <= local_world_size else self._inter_host_bw
