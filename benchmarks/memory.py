"""What memory a process holds, as Linux tells it."""

from __future__ import annotations

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
    """This process's memory now."""
    found = _fields(Path("/proc/self/smaps_rollup"))
    return Memory(
        private_dirty_bytes=found["Private_Dirty"],
        private_clean_bytes=found["Private_Clean"],
        shared_bytes=found["Shared_Clean"] + found["Shared_Dirty"],
        pss_bytes=found["Pss"],
    )


def rss_bytes() -> int:
    """This process's resident set now."""
    return _fields(Path("/proc/self/status"))["VmRSS"]


def peak_rss_bytes() -> int:
    """This process's largest resident set since ``reset_peak_rss``.

    ``getrusage`` would count what the process that started this one held.
    """
    return _fields(Path("/proc/self/status"))["VmHWM"]


def reset_peak_rss() -> None:
    """Start the peak anew (``5`` is the kernel's number for that, see proc(5))."""
    Path("/proc/self/clear_refs").write_text("5")


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * _KIB
    return found
