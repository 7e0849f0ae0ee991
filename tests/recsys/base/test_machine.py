"""The processors and the memory of a process, by affinity and control group, and the versions of packages."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from recsys.base import machine
from recsys.base.machine import (
    cgroup_memory,
    cgroup_quota,
    install_command,
    memory_bytes,
    num_processors,
    package_version,
    package_versions,
)


def group(folder: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write what ``/proc/self/cgroup`` and the mounted control groups would hold."""
    (folder / "cgroup").write_text(lines)
    for name, text in files.items():
        path = folder / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "cgroup", folder / "mounted"


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000\n", "a/cpu.max": "max 100000\n"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/not/mounted\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        (
            "4:cpu,cpuacct:/a\n3:memory:/a\n",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
        (
            "4:cpu:/a\n",
            {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, None),
    ],
)
def test_the_quota_is_the_least_of_the_group_and_those_above_it(
    lines: str, files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert cgroup_quota(*group(tmp_path, lines, files)) == quota


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "none", tmp_path) is None
    assert cgroup_memory(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(
    ("lines", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "3000\n", "a/memory.max": "2000\n"}, 2000),
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("4:memory:/a\n3:cpu:/a\n", {"memory/a/memory.limit_in_bytes": "5000\n"}, 5000),
        ("4:cpu:/a\n", {"cpu/a/memory.limit_in_bytes": "5000\n"}, None),
    ],
)
def test_the_memory_limit_is_the_least_of_the_group_and_those_above_it(
    lines: str, files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    assert cgroup_memory(*group(tmp_path, lines, files)) == limit


@pytest.mark.parametrize(("limit", "expected"), [(None, "installed"), (4096, 4096), (1 << 62, "installed")])
def test_the_smaller_of_installed_memory_and_limit_counts(
    limit: int | None, expected: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(machine, "cgroup_memory", lambda: limit)
    assert memory_bytes() == (installed if expected == "installed" else expected)


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 4)])
def test_the_smaller_of_affinity_and_quota_counts(
    quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6}, raising=False)
    monkeypatch.setattr(machine, "cgroup_quota", lambda: quota)
    assert num_processors() == expected


def test_versions_are_those_of_installed_packages() -> None:
    assert package_version("no-such-package-of-ours") is None
    found = package_versions(["numpy", "no-such-package-of-ours"])
    assert list(found) == ["numpy"]
    assert found["numpy"][0].isdigit()


def test_the_command_that_installs_names_packages() -> None:
    assert install_command(extra="rest") == "pip install 'aiohttp>=3.10'"
    assert re.fullmatch(r"pip install 'torch[<>=.,\d]+'", install_command(package="torch"))


def test_a_checkout_that_is_not_installed_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine, "requires", requires)
    assert install_command(extra="parquet") == "pip install '.[parquet]' in the checkout"
    assert install_command(package="torch") == "pip install torch"
