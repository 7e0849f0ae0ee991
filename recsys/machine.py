"""The machine and the installation: the processors that a process may use, and the versions of packages."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PROCESS_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def num_processors() -> int:
    """Return the number of processors that this process may use, at least 1.

    It is the smaller of the processors in the affinity mask and the CPU quota of the control group (version 1 or 2) and
    its ancestors, rounded up.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    available = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = cgroup_quota()
    return available if quota is None else max(1, min(available, -int(-quota // 1)))


def cgroup_quota(process_cgroup: Path = _PROCESS_CGROUP, cgroups: Path = _CGROUPS) -> float | None:
    """Return the number of processors that the control group's CPU quota permits, or None without a quota.

    Args:
        process_cgroup: The file that names the process's control groups.
        cgroups: Where control groups are mounted.
    """
    try:
        lines = process_cgroup.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        folder = root / path.lstrip("/")
        # In a container the group's own path may not be mounted; its files are in the root then.
        candidates = [folder, *folder.parents] if folder.is_dir() else [root]
        for candidate in candidates:
            if not candidate.is_relative_to(root):
                break
            quota = _quota_v1(candidate) if controllers else _quota_v2(candidate)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    numbers = _numbers(folder / "cpu.max")
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _quota_v1(folder: Path) -> float | None:
    numbers = [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _numbers(file: Path) -> list[int]:
    """Return the whole numbers of a file; an empty list if there is no such file or it says ``max``."""
    try:
        return [int(word) for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def package_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {package: package_version(package) for package in packages}
    return {package: number for package, number in found.items() if number is not None}
