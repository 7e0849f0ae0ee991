"""The memory of a process, as Linux reports it."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Memory:
    """From ``/proc/self/smaps_rollup``.

    Attributes:
        private_dirty_bytes: written by this process alone: what it costs beyond the files that it maps.
        private_clean_bytes: pages of files that no other process maps at the moment; the system can drop them.
        shared_bytes: pages that other processes map too.
        pss_bytes: the process's share of all its pages.
    """

    private_dirty_bytes: int
    private_clean_bytes: int
    shared_bytes: int
    pss_bytes: int

    def to_json(self) -> dict[str, int]:
        """Plain data."""
        return asdict(self)


def memory() -> Memory:
    """Return this process's current memory."""
    found = _fields(Path("/proc/self/smaps_rollup"))
    return Memory(
        private_dirty_bytes=found["Private_Dirty"],
        private_clean_bytes=found["Private_Clean"],
        shared_bytes=found["Shared_Clean"] + found["Shared_Dirty"],
        pss_bytes=found["Pss"],
    )


@dataclass(frozen=True, kw_only=True)
class Resident:
    """From ``/proc/PID/status``.

    Attributes:
        anonymous_bytes: what the process allocated.
        file_bytes: pages of files that it maps; the system can drop unmodified ones.
    """

    anonymous_bytes: int
    file_bytes: int


def resident(pid: int | str = "self") -> Resident:
    """Return the current resident set of a process."""
    found = _fields(Path(f"/proc/{pid}/status"))
    return Resident(anonymous_bytes=found["RssAnon"], file_bytes=found["RssFile"] + found["RssShmem"])


class PeakSampler:
    """Records the peak resident sets of a ``with`` block.

    The kernel records one exact peak (VmHWM); its anonymous part is only known from samples.
    """

    def __init__(self, interval_s: float = 0.005) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak_anonymous_bytes = 0
        self.peak_rss_bytes = 0

    def __enter__(self) -> PeakSampler:
        # Writing 5 resets the kernel's peak, see proc(5). getrusage would count what the parent process held.
        Path("/proc/self/clear_refs").write_text("5")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak_rss_bytes = _fields(Path("/proc/self/status"))["VmHWM"]

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, resident().anonymous_bytes)


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * _KIB
    return found
