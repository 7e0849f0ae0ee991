"""The machine and the installation: processors and memory that a process may use, and the versions of packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_DISTRIBUTION = "recsys-serving"
_PROCESS_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# By whether the control group is of version 1.
_MEMORY_LIMITS = {False: "memory.max", True: "memory.limit_in_bytes"}


def num_processors() -> int:
    """Return the number of processors that this process may use, at least 1.

    It is the smaller of the processors in the affinity mask and the CPU quota of the control group (version 1 or 2) and
    its ancestors, rounded up.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    available = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = cgroup_quota()
    return available if quota is None else max(1, min(available, -int(-quota // 1)))


def memory_bytes() -> int:
    """Return the memory that this process may use: the machine's, or less where a control group limits it."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_memory()
    return installed if limit is None else min(installed, limit)


def cgroup_quota(process_cgroup: Path = _PROCESS_CGROUP, cgroups: Path = _CGROUPS) -> float | None:
    """Return the number of processors that the control group's CPU quota permits, or None without a quota.

    Args:
        process_cgroup: The file that names the process's control groups.
        cgroups: Where control groups are mounted.
    """
    groups = _groups("cpu", process_cgroup, cgroups)
    quotas = [_quota_v1(folder) if is_v1 else _quota_v2(folder) for folder, is_v1 in groups]
    return min((quota for quota in quotas if quota is not None), default=None)


def cgroup_memory(process_cgroup: Path = _PROCESS_CGROUP, cgroups: Path = _CGROUPS) -> int | None:
    """Return the bytes that the control group's memory limit permits, or None without a limit; see ``cgroup_quota``."""
    groups = _groups("memory", process_cgroup, cgroups)
    limits = [_numbers(folder / _MEMORY_LIMITS[is_v1]) for folder, is_v1 in groups]
    return min((limit[0] for limit in limits if limit), default=None)


def _groups(controller: str, process_cgroup: Path, cgroups: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the process's control groups and their ancestors; and whether each is of version 1."""
    try:
        lines = process_cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        folder = root / path.lstrip("/")
        # In a container the group's own path may not be mounted; its files are in the root then.
        for candidate in [folder, *folder.parents] if folder.is_dir() else [root]:
            if not candidate.is_relative_to(root):
                break
            yield candidate, bool(controllers)


def _quota_v2(folder: Path) -> float | None:
    numbers = _numbers(folder / "cpu.max")
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _quota_v1(folder: Path) -> float | None:
    numbers = [*_numbers(folder / "cpu.cfs_quota_us"), *_numbers(folder / "cpu.cfs_period_us")]
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _numbers(file: Path) -> list[int]:
    """Return the whole numbers of a file; an empty list if the file does not exist or says ``max``."""
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


def install_command(*, extra: str | None = None, package: str = "") -> str:
    """Return the command that installs the packages of an extra, or a package that is always needed.

    It names packages, not ``recsys-serving``, which no package index has.

    Args:
        extra: The extra.
        package: The package, if no extra is given.
    """
    wanted = []
    try:
        for line in requires(_DISTRIBUTION) or ():
            requirement, _, marker = (part.strip() for part in line.partition(";"))
            if marker == f'extra == "{extra}"' if extra else requirement.startswith(package) and not marker:
                wanted.append(f"'{requirement}'")
    except PackageNotFoundError:
        pass  # a checkout that is not installed
    if wanted:
        return f"pip install {' '.join(wanted)}"
    return f"pip install '.[{extra}]' in the checkout" if extra else f"pip install {package}"
