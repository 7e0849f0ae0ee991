"""The machine and versions of a measurement, and the process settings shared by all contestants."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from recsys.base.allocator import tune_malloc
from recsys.base.machine import package_versions

TABLE_WIDTH = 150
_PACKAGES = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "torchrec")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a measurement was made.

    Attributes:
        cpu: the processor's name, as the system gives it.
        num_cores: that this process may run on.
        instruction_set: the widest that torch uses here.
        num_threads: torch's intra-op threads.
        malloc_tuned: whether the C library took the allocator settings of ``recsys.base.allocator``.
        versions: of the packages that matter.
    """

    cpu: str
    num_cores: int
    instruction_set: str
    num_threads: int
    malloc_tuned: bool
    versions: dict[str, str]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)

    def text(self) -> str:
        """Return a description in one line."""
        packages = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        tuned = "tuned" if self.malloc_tuned else "the C library's defaults"
        return (
            f"{self.cpu}, {self.num_cores} cores, {self.instruction_set}; {self.num_threads} intra-op thread(s); "
            f"malloc: {tuned}; {packages}"
        )


def prepare(num_threads: int = 1, tune_allocator: bool = True) -> Machine:
    """Set the threads and the allocator for the whole process, and describe the machine.

    Call it before anything large is allocated.
    """
    malloc_tuned = tune_allocator and tune_malloc()
    torch.set_num_threads(num_threads)
    return Machine(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        malloc_tuned=malloc_tuned,
        versions=package_versions(_PACKAGES),
    )


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown CPU"


def wide_console() -> Console:
    """Return standard output, wide enough that numbers in tables are not cut off."""
    return Console(width=max(Console().width, TABLE_WIDTH))
