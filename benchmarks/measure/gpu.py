"""Rates of a CUDA device, its lookups, and how often a call waits for it.

Shape letters: B batch, S slots, R rows of a table, L IDs of a bag.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import profile, record_function

from recsys.configs import DataType, PoolingType
from recsys.kernels.int_nbit import IntNBitLookup, LookupSlot
from recsys.rows.format import CUDA_ROW_ALIGNMENT, RowFormat

# Twenty times the largest cache of a device (H100 and H200: 50 MB).
_COPIED_BYTES = 1 << 30
_NUM_WARM_UPS = 3
_ID_BYTES = 8
# Sets of IDs in rotation, so that rows are not found in the cache.
_NUM_SETS = 8
_REGION = "benchmarks.measure.gpu"
# The runtime's functions that wait for the device.
_WAITS = {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy"}


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """Bytes per second of the device's memory.

    Attributes:
        copied: read and written by a copy within the device.
        read: read by a sum.
    """

    copied: float
    read: float

    @property
    def best(self) -> float:
        """The larger one."""
        return max(self.copied, self.read)

    def to_json(self) -> dict[str, float]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class LookupShape:
    """Pooled lookups of INT8 rows.

    Attributes:
        batch_size: B.
        num_ids: L.
        num_tables: S; each has one feature.
        num_rows: R.
        dim: the width of a row.
    """

    batch_size: int
    num_ids: int
    num_tables: int
    num_rows: int
    dim: int

    @property
    def num_bytes(self) -> int:
        """What must be read and written: rows without their padding, IDs, offsets, sums."""
        num_bags = self.batch_size * self.num_tables
        row_bytes = RowFormat(data_type=DataType.INT8, dim=self.dim).row_bytes(1)
        return num_bags * (self.num_ids * (row_bytes + _ID_BYTES) + _ID_BYTES + 4 * self.dim)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Times of calls, in microseconds."""

    p50_us: float
    p99_us: float


def bandwidth(device: torch.device, num_rounds: int) -> Bandwidth:
    """Measure the bandwidth of a device's memory; medians of the rounds."""
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    copies = _device_s([lambda: target.copy_(source)], num_rounds)
    sums = _device_s([lambda: source.sum()], num_rounds)
    return Bandwidth(copied=2 * _COPIED_BYTES / copies, read=_COPIED_BYTES / sums)


def lookup_rate(shape: LookupShape, device: torch.device, num_rounds: int) -> float:
    """Return the bytes per second that lookups need, from random rows of tables that are larger than the cache."""
    row_format = RowFormat(data_type=DataType.INT8, dim=shape.dim)
    table_bytes = shape.num_rows * row_format.row_bytes(CUDA_ROW_ALIGNMENT)
    rows = torch.zeros(shape.num_tables * table_bytes, dtype=torch.uint8, device=device)
    slots = [LookupSlot(row_format=row_format, offset_bytes=i * table_bytes) for i in range(shape.num_tables)]
    lookup = IntNBitLookup(slots, PoolingType.SUM, torch.float32, rows, CUDA_ROW_ALIGNMENT, device)
    num_bags = shape.batch_size * shape.num_tables
    offsets = torch.arange(num_bags + 1, device=device) * shape.num_ids
    sets = [
        torch.randint(0, shape.num_rows, (num_bags * shape.num_ids,), device=device) for _ in range(_NUM_SETS)
    ]

    def call(values: Tensor) -> Callable[[], Tensor]:
        return lambda: lookup(values, offsets, None)

    with torch.inference_mode():
        return shape.num_bytes / _device_s([call(values) for values in sets], num_rounds)


def _device_s(calls: Sequence[Callable[[], object]], num_rounds: int) -> float:
    """Return the device's seconds of one call: the median of rounds, each of which makes all calls."""
    times: list[float] = []
    for number in range(_NUM_WARM_UPS + num_rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for call in calls:
            call()
        end.record()
        end.synchronize()
        if number >= _NUM_WARM_UPS:
            times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return statistics.median(times)


def num_synchronizations(call: Callable[[], object]) -> int:
    """Return how often a call waits for a device."""
    with profile(acc_events=True) as profiled, record_function(_REGION):
        call()
    events = profiled.events() or []
    [region] = [event for event in events if event.name == _REGION and event.device_type == DeviceType.CPU]
    start, end = region.time_range.start, region.time_range.end
    return sum(event.name in _WAITS and start <= event.time_range.start < end for event in events)


def latencies(
    contestants: Mapping[str, Callable[..., object]], batches: Sequence[Sequence[Tensor]], num_rounds: int
) -> dict[str, Latency]:
    """Measure calls one after the other, the contestants in turns; each makes one call for each batch in a round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    with torch.inference_mode():
        for number in range(num_rounds + 1):
            for name, call in contestants.items():
                for batch in batches:
                    start = time.perf_counter()
                    call(*batch)
                    if number > 0:  # the first warms up
                        times[name].append((time.perf_counter() - start) * 1e6)
    return {
        name: Latency(p50_us=statistics.median(found), p99_us=statistics.quantiles(found, n=100)[98])
        for name, found in times.items()
    }
