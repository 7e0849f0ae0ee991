"""The topology to plan for: ranks, their memories, and the links between them.

Shape letters: W world size.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recsys.errors import PlanError
from recsys.files import read_json
from recsys.json_checks import choice, count, json_field, whole

DEVICES = ("cuda", "cpu")
#: Represents "no bound" when bytes are compared; exact as a float.
UNBOUNDED_BYTES = 2**52


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One rank's share of one kind of memory, and its speed for rows of tables.

    Reading n random rows of b bytes takes ``n * (row_read_ns + b / row_read_bandwidth)``; updating them
    (gradient, optimizer state, weights) the same with the other two numbers.

    Attributes:
        capacity_bytes: Bytes that one rank may use.
        bandwidth: Sequential bandwidth, in bytes/s.
        row_read_ns: Time per row read.
        row_read_bandwidth: Bandwidth of bytes of rows read, in bytes/s.
        row_update_ns: Time per updated row.
        row_update_bandwidth: Bandwidth of bytes of updated rows and their optimizer state, in bytes/s.
    """

    capacity_bytes: int
    bandwidth: float
    row_read_ns: float
    row_read_bandwidth: float
    row_update_ns: float
    row_update_bandwidth: float

    def read_us(self, num_rows: float, row_bytes: float) -> float:
        """Return the time to look up rows."""
        return num_rows * (self.row_read_ns * 1e-3 + row_bytes * 1e6 / self.row_read_bandwidth)

    def update_us(self, num_rows: float, row_bytes: float) -> float:
        """Return the time to update rows; the bytes are those of the row and of its optimizer state."""
        return num_rows * (self.row_update_ns * 1e-3 + row_bytes * 1e6 / self.row_update_bandwidth)

    def stream_us(self, num_bytes: float) -> float:
        """Return the time to move contiguous bytes."""
        return num_bytes * 1e6 / self.bandwidth


@dataclass(frozen=True, kw_only=True)
class Link:
    """A full-duplex link of one rank.

    Attributes:
        bandwidth: Bandwidth in bytes/s.
        latency_us: The latency of one collective call of any size.
    """

    bandwidth: float
    latency_us: float

    def send_us(self, num_bytes: float) -> float:
        """Return the time to send bytes, without the call's latency."""
        return num_bytes * 1e6 / self.bandwidth


# NVIDIA A100 80GB SXM, data sheet of 2021: HBM 2 039 GB/s, NVLink 600 GB/s in both directions together. The
# time per row is one 64-byte access at that bandwidth; an update reads and writes. Data sheets give upper
# bounds; `recsys-plan calibrate` measures what a machine reaches.
_CUDA_HBM = Memory(
    capacity_bytes=80 * 10**9,
    bandwidth=2039e9,
    row_read_ns=0.03,
    row_read_bandwidth=2039e9,
    row_update_ns=0.06,
    row_update_bandwidth=2039e9 / 2,
)
# One of eight ranks' share of a host with 1 TB: the copy bandwidth of 16 channels of DDR4-3200 is 410 GB/s.
_CUDA_DDR = Memory(
    capacity_bytes=128 * 10**9,
    bandwidth=51e9,
    row_read_ns=20.0,
    row_read_bandwidth=5e9,
    row_update_ns=80.0,
    row_update_bandwidth=2.5e9,
)
_NVLINK = Link(bandwidth=300e9, latency_us=20.0)
_PCIE_4_X16 = Link(bandwidth=32e9, latency_us=10.0)
_NIC_200_GBIT = Link(bandwidth=25e9, latency_us=40.0)
# Measured by `recsys-plan calibrate` on two cores of an AMD Zen 4 server, one rank to a core, gloo over loopback.
_CPU_DDR = Memory(
    capacity_bytes=16 * 10**9,
    bandwidth=23e9,
    row_read_ns=12.0,
    row_read_bandwidth=6e9,
    row_update_ns=20.0,
    row_update_bandwidth=5e9,
)
_LOOPBACK = Link(bandwidth=1.2e9, latency_us=180.0)
_NIC_25_GBIT = Link(bandwidth=3.1e9, latency_us=200.0)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """W ranks on hosts of ``local_world_size`` ranks each; all ranks are alike.

    Attributes:
        compute_device: ``cuda``, or ``cpu``, for which all rows are in DDR and there are no UVM kernels.
        world_size: W.
        local_world_size: Ranks per host.
        hbm: A CUDA rank's own memory; None on ``cpu``.
        ddr: A rank's share of the host's memory.
        intra_host: The link between the ranks of a host.
        inter_host: The link between hosts, for each rank.
        host_link: The link between a device and its host's memory.
        shard_us: The fixed time of one more shard per step.

    Raises:
        PlanError: A field is invalid.
    """

    compute_device: str = "cuda"
    world_size: int
    local_world_size: int
    hbm: Memory | None
    ddr: Memory
    intra_host: Link
    inter_host: Link
    host_link: Link
    shard_us: float

    def __post_init__(self) -> None:
        if self.compute_device not in DEVICES:
            raise PlanError(f"topology.compute_device: got {self.compute_device!r}, expected cuda or cpu")
        if self.world_size < 1:
            raise PlanError(f"topology.world_size: got {self.world_size}, expected at least 1")
        if self.local_world_size < 1 or self.world_size % self.local_world_size:
            raise PlanError(
                f"topology.local_world_size: got {self.local_world_size}, expected a divisor of the "
                f"{self.world_size} ranks"
            )
        if (self.hbm is None) != (self.compute_device == "cpu"):
            raise PlanError(
                f"topology.hbm: got {'none' if self.hbm is None else 'some'} on {self.compute_device}, expected "
                "it on cuda and nowhere else"
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
        """Device memory of one rank; 0 on ``cpu``."""
        return 0 if self.hbm is None else self.hbm.capacity_bytes

    @property
    def ddr_bytes(self) -> int:
        """Host memory of one rank."""
        return self.ddr.capacity_bytes

    def to_json(self) -> dict[str, Any]:
        """Return plain data that ``from_json`` reads back."""
        return asdict(self)

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
            return cls(
                compute_device=device,
                world_size=count(data, "world_size", at),
                local_world_size=count(data, "local_world_size", at),
                hbm=None if hbm is None else _memory(hbm, f"{at}.hbm"),
                ddr=_memory(json_field(data, "ddr", at), f"{at}.ddr"),
                intra_host=_link(json_field(data, "intra_host", at), f"{at}.intra_host"),
                inter_host=_link(json_field(data, "inter_host", at), f"{at}.inter_host"),
                host_link=_link(json_field(data, "host_link", at), f"{at}.host_link"),
                shard_us=number(data, "shard_us", at),
            )
        except PlanError:
            raise
        except ValueError as error:
            raise PlanError(str(error)) from None


def default_topology(
    compute_device: str = "cuda", *, world_size: int = 1, local_world_size: int | None = None
) -> Topology:
    """Return a topology with the constants of this file: A100 80GB hosts, or CPU ranks.

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
        compute_device=compute_device,
        world_size=world_size,
        local_world_size=local_world_size,
        hbm=_CUDA_HBM if on_cuda else None,
        ddr=_CUDA_DDR if on_cuda else _CPU_DDR,
        intra_host=_NVLINK if on_cuda else _LOOPBACK,
        inter_host=_NIC_200_GBIT if on_cuda else _NIC_25_GBIT,
        host_link=_PCIE_4_X16,
        shard_us=2.0 if on_cuda else 4.3,
    )


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


def number(data: Any, key: str, at: str, *, above_zero: bool = False) -> float:
    """Return a field that is a finite number and not negative.

    Raises:
        PlanError: It is something else.
    """
    return finite(json_field(data, key, at), f"{at}.{key}", above_zero=above_zero)


def finite(value: Any, at: str, *, above_zero: bool = False) -> float:
    """Return a finite number that is not negative.

    Raises:
        PlanError: It is something else.
    """
    if (
        type(value) not in (int, float)
        or not math.isfinite(value)
        or value < 0
        or (above_zero and value == 0)
    ):
        expected = "a finite number above 0" if above_zero else "a finite number of at least 0"
        raise PlanError(f"{at}: got {str(value)[:80]!r}, expected {expected}")
    return float(value)


def _memory(data: Any, at: str) -> Memory:
    return Memory(
        capacity_bytes=whole(data, "capacity_bytes", at),
        bandwidth=number(data, "bandwidth", at, above_zero=True),
        row_read_ns=number(data, "row_read_ns", at),
        row_read_bandwidth=number(data, "row_read_bandwidth", at, above_zero=True),
        row_update_ns=number(data, "row_update_ns", at),
        row_update_bandwidth=number(data, "row_update_bandwidth", at, above_zero=True),
    )


def _link(data: Any, at: str) -> Link:
    return Link(
        bandwidth=number(data, "bandwidth", at, above_zero=True), latency_us=number(data, "latency_us", at)
    )
