"""One rank's memories and links, and the numbers of known hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from recsys.base.json_checks import json_field, whole
from recsys.errors import PlanError

#: Represents "no bound" when bytes are compared; exact as a float.
UNBOUNDED_BYTES = 2**52


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


#: Fields of files: finite numbers of at least 0, and above it.
_Number = Annotated[float, number]
_Positive = Annotated[float, partial(number, above_zero=True)]


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

    capacity_bytes: Annotated[int, whole]
    bandwidth: _Positive
    row_read_ns: _Number
    row_read_bandwidth: _Positive
    row_update_ns: _Number
    row_update_bandwidth: _Positive

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

    bandwidth: _Positive
    latency_us: _Number

    def send_us(self, num_bytes: float) -> float:
        """Return the time to send bytes, without the call's latency."""
        return num_bytes * 1e6 / self.bandwidth


# NVIDIA A100 80GB SXM, data sheet of 2021: HBM 2 039 GB/s, NVLink 600 GB/s in both directions together. The
# time per row is one 64-byte access at that bandwidth; an update reads and writes. Data sheets give upper
# bounds; `recsys-plan calibrate` measures what a machine reaches.
CUDA_HBM = Memory(
    capacity_bytes=80 * 10**9,
    bandwidth=2039e9,
    row_read_ns=0.03,
    row_read_bandwidth=2039e9,
    row_update_ns=0.06,
    row_update_bandwidth=2039e9 / 2,
)
# One of eight ranks' share of a host with 1 TB: the copy bandwidth of 16 channels of DDR4-3200 is 410 GB/s.
CUDA_DDR = Memory(
    capacity_bytes=128 * 10**9,
    bandwidth=51e9,
    row_read_ns=20.0,
    row_read_bandwidth=5e9,
    row_update_ns=80.0,
    row_update_bandwidth=2.5e9,
)
NVLINK = Link(bandwidth=300e9, latency_us=20.0)
PCIE_4_X16 = Link(bandwidth=32e9, latency_us=10.0)
NIC_200_GBIT = Link(bandwidth=25e9, latency_us=40.0)
# Measured by `recsys-plan calibrate` on two cores of an AMD Zen 4 server, one rank to a core, gloo over loopback.
CPU_DDR = Memory(
    capacity_bytes=16 * 10**9,
    bandwidth=23e9,
    row_read_ns=12.0,
    row_read_bandwidth=6e9,
    row_update_ns=20.0,
    row_update_bandwidth=5e9,
)
LOOPBACK = Link(bandwidth=1.2e9, latency_us=180.0)
NIC_25_GBIT = Link(bandwidth=3.1e9, latency_us=200.0)
