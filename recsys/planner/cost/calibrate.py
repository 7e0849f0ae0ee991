"""Measurement of this machine for the cost model: bandwidths of its memory and of the links between ranks.

Shape letters: D embedding dimension, N number of IDs, R rows, W world size.

Rows are read and updated by the kernel that trains (FBGEMM's TBE with row-wise Adagrad, SUM). Times per row
at two widths determine a line; a third width between them tests its prediction. Links between hosts cannot be
measured on one machine: they keep the defaults of ``topology.py``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from recsys.errors import PlanError
from recsys.kernels.training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from recsys.planner.cost.machine import Link, Memory
from recsys.planner.cost.topology import Topology, default_topology

_NARROW, _BETWEEN, _WIDE = 16, 64, 256
_TABLE_BYTES = {"cpu": 256 * 2**20, "cuda": 2 * 2**30}  # much larger than caches
_COPY_BYTES = {"cpu": 64 * 2**20, "cuda": 2**30}
_NUM_BAGS = {"cpu": 2048, "cuda": 32_768}
_IDS_PER_BAG = 10
_STATE_BYTES = 4  # of a row, row-wise Adagrad
_FLOAT_BYTES = 4
_FEW_TABLES, _MANY_TABLES = 4, 64
_LEAST_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of the calibration.

    Attributes:
        device: ``cuda``, ``cpu``, or None for CUDA where there is one.
        num_ranks: Processes that exchange bytes.
        seconds: Approximate duration of all measurements.
    """

    device: str | None = None
    num_ranks: int = 2
    seconds: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The result of the calibration.

    Attributes:
        topology: The topology with the measured numbers; its ranks are the processes that exchanged bytes.
        read_error: Predicted over measured time to read rows of a width that the line was not fitted to, minus 1.
        update_error: The same for updates.
        links_measured: Whether the link inside a host is a measurement, not the default.
    """

    topology: Topology
    read_error: float
    update_error: float
    links_measured: bool

    def lines(self) -> list[str]:
        """Return a description in lines."""
        memory, link = self.topology.device_memory, self.topology.intra_host
        measured = "" if self.links_measured else " (default, not measured)"
        return [
            f"memory: {memory.bandwidth / 1e9:.1f} GB/s of copies, "
            f"capacity {memory.capacity_bytes / 1e9:.1f} GB per rank",
            f"row read: {memory.row_read_ns:.2f} ns + bytes at {memory.row_read_bandwidth / 1e9:.1f} GB/s; "
            f"dim {_BETWEEN} predicted {self.read_error:+.0%} from measured",
            f"row update: {memory.row_update_ns:.2f} ns + bytes at {memory.row_update_bandwidth / 1e9:.1f} GB/s; "
            f"dim {_BETWEEN} predicted {self.update_error:+.0%} from measured",
            f"one more shard: {self.topology.shard_us:.2f} µs",
            f"link inside a host: {link.bandwidth / 1e9:.2f} GB/s, {link.latency_us:.0f} µs per call{measured}",
        ]


def calibrate(options: CalibrateOptions) -> Calibration:
    """Measure. Takes about ``options.seconds``, and half a gigabyte of memory.

    Raises:
        PlanError: The device does not exist.
    """
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise PlanError("device: got cuda, expected one that this machine has: cpu")
    device = torch.device(name)
    share_s = options.seconds / 12
    topology = default_topology(name, world_size=options.num_ranks, local_world_size=options.num_ranks)
    reads, updates = {}, {}
    for dim in (_NARROW, _BETWEEN, _WIDE):
        reads[dim], updates[dim] = _row_times_ns(device, dim, share_s)
    bandwidth = _copy_bandwidth(device, share_s)
    read_ns, read_bandwidth = _line(reads, 0)
    update_ns, update_bandwidth = _line(
        {dim: _without_gradients(ns, dim, bandwidth) for dim, ns in updates.items()}, _STATE_BYTES
    )
    memory = Memory(
        capacity_bytes=_capacity_bytes(device, options.num_ranks),
        bandwidth=bandwidth,
        row_read_ns=read_ns,
        row_read_bandwidth=read_bandwidth,
        row_update_ns=update_ns,
        row_update_bandwidth=update_bandwidth,
    )
    link = measure_links(name, options.num_ranks, 3 * share_s)
    if device.type == "cpu":
        topology = topology.replaced(ddr=memory)
    else:
        topology = topology.replaced(hbm=memory, host_link=_host_link(share_s))
    topology = topology.replaced(shard_us=_shard_us(device, share_s), intra_host=link or topology.intra_host)
    row_bytes = _BETWEEN * _FLOAT_BYTES
    expected_ns = _without_gradients(updates[_BETWEEN], _BETWEEN, bandwidth)
    return Calibration(
        topology=topology,
        read_error=memory.read_us(1, row_bytes) * 1e3 / reads[_BETWEEN] - 1,
        update_error=memory.update_us(1, row_bytes + _STATE_BYTES) * 1e3 / max(expected_ns, 1e-3) - 1,
        links_measured=link is not None,
    )


def _without_gradients(time_ns: float, dim: int, bandwidth: float) -> float:
    """Subtract the time of the gradients' bytes, which the estimate counts separately."""
    return max(time_ns - dim * _FLOAT_BYTES * 1e9 / bandwidth, 1e-3)


def _line(times_ns: dict[int, float], more_bytes: int) -> tuple[float, float]:
    """Return ns per row and bytes/s of the line through two points; noise cannot make either negative."""
    narrow, wide = (dim * _FLOAT_BYTES + more_bytes for dim in (_NARROW, _WIDE))
    slope = max((times_ns[_WIDE] - times_ns[_NARROW]) / (wide - narrow), times_ns[_WIDE] / wide / 100)
    return max(times_ns[_NARROW] - slope * narrow, 0.0), 1e9 / slope


def _tables(device: torch.device, shapes: list[tuple[int, int]]) -> SplitTableBatchedEmbeddingBagsCodegen:
    on_cuda = device.type == "cuda"
    location = EmbeddingLocation.DEVICE if on_cuda else EmbeddingLocation.HOST
    compute = ComputeDevice.CUDA if on_cuda else ComputeDevice.CPU
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, location, compute) for rows, dim in shapes],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        device=device,
    )


def _row_times_ns(device: torch.device, dim: int, seconds: float) -> tuple[float, float]:
    """Return the time per ID of a forward pass, and of a backward pass with its update."""
    num_rows = _TABLE_BYTES[device.type] // (dim * _FLOAT_BYTES)
    table = _tables(device, [(num_rows, dim)])
    num_bags = _NUM_BAGS[device.type]
    offsets = torch.arange(num_bags + 1, device=device) * _IDS_PER_BAG
    gradient = torch.ones(num_bags, dim, device=device)
    num_ids = num_bags * _IDS_PER_BAG
    forward: list[float] = []
    backward: list[float] = []
    until = time.perf_counter() + seconds
    while len(forward) <= _LEAST_REPEATS or time.perf_counter() < until:
        ids = torch.randint(num_rows, (num_ids,), device=device)
        start = _now(device)
        output = table(ids, offsets)
        middle = _now(device)
        output.backward(gradient)
        forward.append(middle - start)
        backward.append(_now(device) - middle)
    # The first call is left out: it touches new memory.
    forward_ns, backward_ns = (statistics.median(times[1:]) * 1e9 / num_ids for times in (forward, backward))
    return forward_ns, backward_ns


def _shard_us(device: torch.device, seconds: float) -> float:
    """Return the cost of one more table in a call, forward and backward, with one ID."""
    times = {}
    for num_tables in (_FEW_TABLES, _MANY_TABLES):
        tables = _tables(device, [(1000, 16)] * num_tables)
        ids = torch.zeros(num_tables, dtype=torch.int64, device=device)
        offsets = torch.arange(num_tables + 1, device=device)
        gradient = torch.ones(1, 16 * num_tables, device=device)

        def step(
            tables: SplitTableBatchedEmbeddingBagsCodegen = tables,
            ids: torch.Tensor = ids,
            offsets: torch.Tensor = offsets,
            gradient: torch.Tensor = gradient,
        ) -> None:
            tables(ids, offsets).backward(gradient)

        times[num_tables] = _median_s(step, device, seconds / 2)
    return max((times[_MANY_TABLES] - times[_FEW_TABLES]) * 1e6 / (_MANY_TABLES - _FEW_TABLES), 0.0)


def _copy_bandwidth(device: torch.device, seconds: float) -> float:
    """Return bytes read and written per second."""
    source = torch.zeros(_COPY_BYTES[device.type] // _FLOAT_BYTES, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _median_s(lambda: target.copy_(source), device, seconds)


def _host_link(seconds: float) -> Link:
    """Measure the link from page-locked host memory to the device."""
    device = torch.device("cuda")
    source = torch.zeros(_COPY_BYTES["cpu"] // _FLOAT_BYTES).pin_memory()
    target = torch.empty_like(source, device=device)
    small, small_target = source[:16], target[:16]
    latency_s = _median_s(lambda: small_target.copy_(small, non_blocking=True), device, seconds / 2)
    copy_s = _median_s(lambda: target.copy_(source, non_blocking=True), device, seconds / 2)
    return Link(bandwidth=source.nbytes / copy_s, latency_us=latency_s * 1e6)


def _median_s(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < _LEAST_REPEATS or time.perf_counter() < until:
        start = _now(device)
        call()
        times.append(_now(device) - start)
    return statistics.median(times)


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # waits for the measured copy
    return time.perf_counter()


def _capacity_bytes(device: torch.device, num_ranks: int) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // num_ranks


_SMALL_BYTES = 4096
_LARGE_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
_MOST_REPEATS = 200
_GIVE_UP = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class _LinkJob:
    device: str
    num_ranks: int
    seconds: float
    folder: str


def measure_links(device: str, num_ranks: int, seconds: float) -> Link | None:
    """Return the link between ``num_ranks`` processes of this host: gloo on ``cpu``, NCCL on ``cuda``.

    Returns:
        None if there are no two ranks, or fewer devices than ranks.
    """
    if num_ranks < 2 or (device == "cuda" and torch.cuda.device_count() < num_ranks):
        return None
    with tempfile.TemporaryDirectory() as folder:
        job = _LinkJob(device=device, num_ranks=num_ranks, seconds=seconds, folder=folder)
        spawn(_measure_rank, args=(job,), nprocs=num_ranks)
        small_s, large_s = (float(text) for text in (Path(folder) / "times").read_text().split())
    # A rank does not send its own part.
    sent_bytes = _LARGE_BYTES[device] * (num_ranks - 1) / num_ranks
    return Link(bandwidth=sent_bytes / max(large_s - small_s, 1e-9), latency_us=small_s * 1e6)


def _measure_rank(rank: int, job: _LinkJob) -> None:
    torch.set_num_threads(1)
    if job.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if job.device == "cuda" else "gloo",
        init_method=f"file://{job.folder}/meeting",
        rank=rank,
        world_size=job.num_ranks,
        timeout=_GIVE_UP,
    )
    try:
        times = [_all_to_all_s(job, num_bytes) for num_bytes in (_SMALL_BYTES, _LARGE_BYTES[job.device])]
        if rank == 0:
            (Path(job.folder) / "times").write_text(" ".join(str(t) for t in times))
    finally:
        dist.destroy_process_group()


def _all_to_all_s(job: _LinkJob, num_bytes: int) -> float:
    """Return the median time of an all-to-all in which each rank holds ``num_bytes``."""
    device = torch.device(job.device)
    source = torch.zeros(num_bytes // 4 // job.num_ranks * job.num_ranks, device=device)
    target = torch.empty_like(source)

    def once() -> float:
        if job.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        dist.all_to_all_single(target, source)
        if job.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    once()
    # All ranks must make the same number of calls: the first rank's clock decides.
    repeats = torch.tensor([job.seconds / 2 / max(once(), 1e-6)], device=device)
    dist.broadcast(repeats, 0)
    count = min(max(int(repeats), _LEAST_REPEATS), _MOST_REPEATS)
    return statistics.median(once() for _ in range(count))
