"""A control group that limits this process's memory, page cache included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_MOUNTED = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    """A control group of this process.

    Attributes:
        folder: its folder; None if the memory is not limited.
        peak_file: the file with its peak.
    """

    folder: Path | None = None
    peak_file: str = ""

    def peak_bytes(self) -> int:
        """Return the most memory that was in use; 0 if it is not known."""
        if self.folder is None:
            return 0
        file = self.folder / self.peak_file
        return int(file.read_text()) if file.is_file() else 0


@contextmanager
def limited_memory(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Run this process within a control group of its own, inside the one that it is in.

    Args:
        limit_bytes: the limit; 0 for none.

    Raises:
        OSError: the system does not let this process make one.
    """
    if limit_bytes == 0:
        yield MemoryGroup()
        return
    home, limit, peak = _home()
    folder = home / f"recsys-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(limit_bytes))
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        raise OSError(
            f"cannot limit the memory with a control group ({error.strerror}): run as root, or give the whole "
            "benchmark a limit (docker run --memory) and leave --memory-gb out"
        ) from None
    try:
        yield MemoryGroup(folder, peak)
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        folder.rmdir()


def _home() -> tuple[Path, str, str]:
    """Return the folder of this process's group, and the names of the files with the limit and the peak."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.max_usage_in_bytes"
            return _MOUNTED / controllers / path.lstrip("/"), *names
    for _, controllers, path in groups:
        if not controllers:
            return _MOUNTED / path.lstrip("/"), "memory.max", "memory.peak"
    raise OSError("this system has no control groups")
