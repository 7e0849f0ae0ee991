"""The topology to plan for: ranks, their memories, and the links between them.

Shape letters: W world size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from recsys.base.files import read_json
from recsys.base.json_checks import choice, count, json_field, record
from recsys.errors import PlanError
from recsys.planner.constants import (
    BWD_COMPUTE_MULTIPLIER,
    CROSS_NODE_BANDWIDTH,
    DDR_CAP,
    DDR_MEM_BW,
    HBM_CAP,
    HBM_MEM_BW,
    HBM_TO_DDR_MEM_BW,
    INTRA_NODE_BANDWIDTH,
    SSD_CAP,
    SSD_MEM_BW,
    WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
)
from recsys.planner.cost.capacity import (
    BasicCommsBandwidths,
    CustomTopologyData,
    DeviceHardware,
    GeneralizedCommsBandwidth,
    Perf,
    Storage,
)
from recsys.planner.cost.machine import (
    CPU_DDR,
    CUDA_DDR,
    CUDA_HBM,
    LOOPBACK,
    NIC_25_GBIT,
    NIC_200_GBIT,
    NVLINK,
    PCIE_4_X16,
    Link,
    Memory,
    number,
)

DEVICES = ("cuda", "cpu")
# TorchRec's bandwidths are in bytes/ms.
_MS = 1000


class Topology:
    """W ranks on hosts of ``local_world_size`` ranks each.

    The first arguments are TorchRec's. A bandwidth left at TorchRec's default is the device's in
    ``recsys.planner.cost.machine``: of an A100's host, or of ranks on a CPU. The keywords that follow are measured
    values (``recsys-plan calibrate``), which replace whole memories and links.

    Args:
        world_size: W.
        compute_device: ``cuda``, or ``cpu``, for which all rows are in DDR and there are no UVM kernels.
        hbm_cap: Bytes of a CUDA rank's own memory; TorchRec's ``HBM_CAP`` by default.
        ddr_cap: Bytes of a rank's share of the host's memory; TorchRec's ``DDR_CAP`` by default.
        ssd_cap: Bytes of a rank's share of disks; no kernel keeps rows there.
        local_world_size: Ranks per host; all by default, and for 0, as in TorchRec.
        pod_size: The number of hosts with fast links between them; only 1 or None.
        hbm_mem_bw: Bandwidth of device memory, bytes/ms.
        ddr_mem_bw: Bandwidth of host memory, bytes/ms.
        ssd_mem_bw: Bandwidth of disks; no kernel keeps rows there.
        hbm_to_ddr_mem_bw: Bandwidth between device and host memory, bytes/ms.
        intra_host_bw: Bandwidth between ranks of a host, bytes/ms.
        inter_host_bw: Bandwidth between hosts, for each rank, bytes/ms.
        bwd_compute_multiplier: Scales the estimated time of backward passes; TorchRec's default is a factor of 1.
        custom_topology_data: Capacities rank by rank.
        weighted_feature_bwd_compute_multiplier: Scales it for tables whose IDs have weights.
        uneven_sharding_perf_multiplier: 1: the costs of uneven shards are estimated as they are.
        generalized_comms_bandwidths: The two bandwidths between ranks, instead of the numbers.
        created_by_factory: For TorchRec's own record; it changes nothing.
        hbm: A CUDA rank's own memory; None on ``cpu``.
        ddr: A rank's share of the host's memory.
        intra_host: The link between the ranks of a host.
        inter_host: The link between hosts, for each rank.
        host_link: The link between a device and its host's memory.
        shard_us: The fixed time of one more shard per step.

    Raises:
        PlanError: A field is invalid.
    """

    def __init__(  # noqa: PLR0913  (TorchRec's, and ours)
        self,
        world_size: int,
        compute_device: str,
        hbm_cap: int | None = None,
        ddr_cap: int | None = None,
        ssd_cap: int | None = None,
        local_world_size: int | None = None,
        pod_size: int | None = None,
        hbm_mem_bw: float = HBM_MEM_BW,
        ddr_mem_bw: float = DDR_MEM_BW,
        ssd_mem_bw: float = SSD_MEM_BW,
        hbm_to_ddr_mem_bw: float = HBM_TO_DDR_MEM_BW,
        intra_host_bw: float = INTRA_NODE_BANDWIDTH,
        inter_host_bw: float = CROSS_NODE_BANDWIDTH,
        bwd_compute_multiplier: float = BWD_COMPUTE_MULTIPLIER,
        custom_topology_data: CustomTopologyData | None = None,
        weighted_feature_bwd_compute_multiplier: float = WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
        uneven_sharding_perf_multiplier: float = 1.0,
        generalized_comms_bandwidths: GeneralizedCommsBandwidth | None = None,
        created_by_factory: bool = False,
        *,
        hbm: Memory | None = None,
        ddr: Memory | None = None,
        intra_host: Link | None = None,
        inter_host: Link | None = None,
        host_link: Link | None = None,
        shard_us: float | None = None,
    ) -> None:
        on_cuda = compute_device == "cuda"
        if compute_device not in DEVICES:
            raise PlanError(f"topology.compute_device: got {compute_device!r}, expected cuda or cpu")
        if world_size < 1:
            raise PlanError(f"topology.world_size: got {world_size}, expected at least 1")
        local = local_world_size or world_size
        if local < 1 or world_size % local:
            raise PlanError(
                f"topology.local_world_size: got {local}, expected a divisor of the {world_size} ranks"
            )
        if hbm is not None and not on_cuda:
            raise PlanError("topology.hbm: got some on cpu, expected it on cuda and nowhere else")
        for name, value, only in (
            ("pod_size", pod_size or 1, 1),
            ("uneven_sharding_perf_multiplier", uneven_sharding_perf_multiplier, 1.0),
        ):
            if value != only:
                raise PlanError(
                    f"topology.{name}: got {value}, expected {only}: other costs are not estimated"
                )
        if generalized_comms_bandwidths is not None:
            intra_host_bw = generalized_comms_bandwidths.intra_host_bw
            inter_host_bw = generalized_comms_bandwidths.inter_host_bw
        self.compute_device = compute_device
        self.world_size = world_size
        self.local_world_size = local
        self.hbm = hbm or (_memory(CUDA_HBM, hbm_cap or HBM_CAP, hbm_mem_bw, HBM_MEM_BW) if on_cuda else None)
        self.ddr = ddr or _memory(
            CUDA_DDR if on_cuda else CPU_DDR, ddr_cap or DDR_CAP, ddr_mem_bw, DDR_MEM_BW
        )
        self.intra_host = intra_host or _link(
            NVLINK if on_cuda else LOOPBACK, intra_host_bw, INTRA_NODE_BANDWIDTH
        )
        self.inter_host = inter_host or _link(
            NIC_200_GBIT if on_cuda else NIC_25_GBIT, inter_host_bw, CROSS_NODE_BANDWIDTH
        )
        self.host_link = host_link or _link(PCIE_4_X16, hbm_to_ddr_mem_bw, HBM_TO_DDR_MEM_BW)
        # The default on a CPU was measured with those of ``recsys.planner.cost.machine``.
        self.shard_us = (2.0 if on_cuda else 4.3) if shard_us is None else shard_us
        self.ssd_mem_bw = ssd_mem_bw
        self.bwd_compute_multiplier = bwd_compute_multiplier
        self.weighted_feature_bwd_compute_multiplier = weighted_feature_bwd_compute_multiplier
        self.uneven_sharding_perf_multiplier = uneven_sharding_perf_multiplier
        self.created_by_factory = created_by_factory
        self._comms_bandwidths = generalized_comms_bandwidths
        #: The memory of each rank; what is reserved is taken off here.
        self.devices = self._devices(custom_topology_data, SSD_CAP if ssd_cap is None else ssd_cap)

    def _devices(self, custom: CustomTopologyData | None, ssd_cap: int) -> list[DeviceHardware]:
        same = {
            "hbm_cap": 0 if self.hbm is None else self.hbm.capacity_bytes,
            "ddr_cap": self.ddr.capacity_bytes,
            "ssd_cap": ssd_cap,
        }
        by_rank: Mapping[str, list[int]] = {
            name: custom.get_data(name)
            if custom is not None and custom.has_data(name)
            else [num_bytes] * self.world_size
            for name, num_bytes in same.items()
        }
        if any(len(of_ranks) != self.world_size for of_ranks in by_rank.values()):
            raise PlanError(
                f"custom_topology_data: expected a number for each of the {self.world_size} ranks"
            )
        rows = zip(by_rank["hbm_cap"], by_rank["ddr_cap"], by_rank["ssd_cap"], strict=True)
        return [
            DeviceHardware(rank=rank, storage=Storage(hbm, ddr, ssd), perf=Perf(0.0, 0.0, 0.0, 0.0))
            for rank, (hbm, ddr, ssd) in enumerate(rows)
        ]

    def __repr__(self) -> str:
        return f"Topology({', '.join(f'{name}={value!r}' for name, value in self._values().items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and (self._values(), self.devices) == (
            other._values(),
            other.devices,
        )

    __hash__ = None  # type: ignore[assignment]

    def _values(self) -> dict[str, Any]:
        names = ("compute_device", "world_size", "local_world_size", "hbm", "ddr")
        return {
            name: getattr(self, name)
            for name in (*names, "intra_host", "inter_host", "host_link", "shard_us")
        }

    def replaced(self, **changes: Any) -> Topology:
        """Return a topology with some values of ``to_json`` changed; every rank has the capacities of the smallest."""
        values = self._values()
        if self.hbm is not None:
            values["hbm"] = replace(self.hbm, capacity_bytes=self.hbm_bytes)
        values["ddr"] = replace(self.ddr, capacity_bytes=self.ddr_bytes)
        return Topology(
            bwd_compute_multiplier=self.bwd_compute_multiplier,
            weighted_feature_bwd_compute_multiplier=self.weighted_feature_bwd_compute_multiplier,
            **(values | changes),
        )

    @property
    def num_hosts(self) -> int:
        """The number of hosts."""
        return self.world_size // self.local_world_size

    @property
    def device_memory(self) -> Memory:
        """The memory of rows without a UVM kernel."""
        return self.ddr if self.hbm is None else self.hbm

    @property
    def hbm_bytes(self) -> int:
        """Device memory of one rank, the smallest; 0 on ``cpu``."""
        return min(device.storage.hbm for device in self.devices)

    @property
    def ddr_bytes(self) -> int:
        """Host memory of one rank, the smallest."""
        return min(device.storage.ddr for device in self.devices)

    @property
    def intra_group_size(self) -> int:
        """The number of ranks with fast links between them: those of a host."""
        return self.local_world_size

    @property
    def hbm_mem_bw(self) -> float:
        """Bandwidth of device memory, bytes/ms; 0 on ``cpu``."""
        return 0.0 if self.hbm is None else self.hbm.bandwidth / _MS

    @property
    def ddr_mem_bw(self) -> float:
        """Bandwidth of host memory, bytes/ms."""
        return self.ddr.bandwidth / _MS

    @property
    def hbm_to_ddr_mem_bw(self) -> float:
        """Bandwidth between device and host memory, bytes/ms."""
        return self.host_link.bandwidth / _MS

    @property
    def intra_host_bw(self) -> float:
        """Bandwidth between the ranks of a host, bytes/ms."""
        return self.intra_host.bandwidth / _MS

    @property
    def inter_host_bw(self) -> float:
        """Bandwidth between hosts, bytes/ms."""
        return self.inter_host.bandwidth / _MS

    @property
    def comms_bandwidths(self) -> GeneralizedCommsBandwidth:
        """The two bandwidths between ranks."""
        return self._comms_bandwidths or BasicCommsBandwidths(self.inter_host_bw, self.intra_host_bw)

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return {
            name: asdict(value) if isinstance(value, Memory | Link) else value
            for name, value in self._values().items()
        }

    @classmethod
    def from_json(cls, data: Any) -> Topology:
        """Read untrusted data in the format of ``to_json``.

        Raises:
            PlanError: A field is wrong; the message names it, what was found and what was expected.
        """
        at = "topology"
        try:
            device = choice(data, "compute_device", at, DEVICES)
            hbm = json_field(data, "hbm", at)
            if (hbm is None) != (device == "cpu"):
                raise PlanError(
                    f"topology.hbm: got {'none' if hbm is None else 'some'} on {device}, expected it on cuda and "
                    "nowhere else"
                )
            return cls(
                compute_device=device,
                world_size=count(data, "world_size", at),
                local_world_size=count(data, "local_world_size", at),
                hbm=None if hbm is None else record(Memory, data, "hbm", at),
                ddr=record(Memory, data, "ddr", at),
                intra_host=record(Link, data, "intra_host", at),
                inter_host=record(Link, data, "inter_host", at),
                host_link=record(Link, data, "host_link", at),
                shard_us=number(data, "shard_us", at),
            )
        except PlanError:
            raise
        except ValueError as error:
            raise PlanError(str(error)) from None


def default_topology(
    compute_device: str = "cuda", *, world_size: int = 1, local_world_size: int | None = None
) -> Topology:
    """Return a topology with the constants of ``recsys.planner.cost.machine``: A100 80GB hosts, or CPU ranks.

    Args:
        compute_device: ``cuda`` or ``cpu``.
        world_size: W.
        local_world_size: Ranks per host; by default all ranks up to 8, the size of the usual hosts.

    Raises:
        PlanError: The ranks cannot be split into such hosts.
    """
    if local_world_size is None:
        local_world_size = math.gcd(world_size, 8) if world_size > 8 else world_size
    on_cuda = compute_device == "cuda"
    return Topology(
        world_size,
        compute_device,
        local_world_size=local_world_size,
        hbm=CUDA_HBM if on_cuda else None,
        ddr=CUDA_DDR if on_cuda else CPU_DDR,
    )


def _memory(known: Memory, capacity_bytes: int, bandwidth: float, default: float) -> Memory:
    """Return a known memory with another capacity and, unless it is the default, another bandwidth (bytes/ms)."""
    known = replace(known, capacity_bytes=capacity_bytes)
    if bandwidth == default:
        return known
    if not bandwidth > 0:
        raise PlanError(f"topology: got the bandwidth {bandwidth}, expected a number of bytes/ms above 0")
    faster = bandwidth * _MS / known.bandwidth
    return replace(
        known,
        bandwidth=bandwidth * _MS,
        row_read_bandwidth=known.row_read_bandwidth * faster,
        row_update_bandwidth=known.row_update_bandwidth * faster,
    )


def _link(known: Link, bandwidth: float, default: float) -> Link:
    if bandwidth == default:
        return known
    if not bandwidth > 0:
        raise PlanError(f"topology: got the bandwidth {bandwidth}, expected a number of bytes/ms above 0")
    return replace(known, bandwidth=bandwidth * _MS)


def read_topology(path: str | os.PathLike[str]) -> Topology:
    """Read a file that ``recsys-plan calibrate`` wrote.

    Raises:
        PlanError: The file cannot be read, or is not a topology.
    """
    data = read_json(Path(path), "topology", PlanError)
    try:
        return Topology.from_json(data)
    except PlanError as error:
        raise PlanError(
            f"topology {Path(path).name!r}: {error}; expected what recsys-plan calibrate wrote"
        ) from None
