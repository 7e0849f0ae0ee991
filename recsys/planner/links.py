"""Measure the link between the ranks of this host: an all-to-all of few and of many bytes.

Shape letters: W world size.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from recsys.planner.topology import Link

_SMALL_BYTES = 4096
_LARGE_BYTES = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}
_LEAST_REPEATS = 5
_MOST_REPEATS = 200
_GIVE_UP = timedelta(seconds=60)


@dataclass(frozen=True, kw_only=True)
class _Job:
    device: str
    num_ranks: int
    seconds: float
    folder: str


def measure_links(device: str, num_ranks: int, seconds: float) -> Link | None:
    """The link between ``num_ranks`` processes of this host: gloo on ``cpu``, NCCL on ``cuda``.

    Returns:
        None where there are no two ranks, or fewer devices than ranks.
    """
    if num_ranks < 2 or (device == "cuda" and torch.cuda.device_count() < num_ranks):
        return None
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(device=device, num_ranks=num_ranks, seconds=seconds, folder=folder)
        spawn(_measure, args=(job,), nprocs=num_ranks)  # type: ignore[no-untyped-call]
        small_s, large_s = (float(text) for text in (Path(folder) / "times").read_text().split())
    # A rank keeps its own part.
    sent_bytes = _LARGE_BYTES[device] * (num_ranks - 1) / num_ranks
    return Link(bandwidth=sent_bytes / max(large_s - small_s, 1e-9), latency_us=small_s * 1e6)


def _measure(rank: int, job: _Job) -> None:
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
        times = [_exchange_s(job, num_bytes) for num_bytes in (_SMALL_BYTES, _LARGE_BYTES[job.device])]
        if rank == 0:
            (Path(job.folder) / "times").write_text(" ".join(str(t) for t in times))
    finally:
        dist.destroy_process_group()


def _exchange_s(job: _Job, num_bytes: int) -> float:
    """Median time of an all-to-all in which each rank holds ``num_bytes``."""
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
