"""Where rows lie in memory: mapped or copied, on huge pages, locked, on which NUMA nodes.

Each random row that a lookup reads needs a translation of its address. Huge pages (2 MiB) make these rare, ordinary
ones (4 KiB) nearly one per row. Anonymous memory gets huge pages where the kernel's
``transparent_hugepage/enabled`` is ``madvise`` or ``always``; a mapped file only where its file system keeps large
pages in the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.base.machine import memory_bytes
from recsys.errors import RowsMemoryError

if TYPE_CHECKING:  # settings are read without torch
    from torch import Tensor

#: Placements of copied rows; None leaves it to the system.
NUMA = ("interleave", "local")
# Share of the memory above which mapped rows are read in small pieces: other pages need room too.
_LARGE = 0.75
# linux/mempolicy.h
_POLICIES = {"interleave": 3, "local": 4}
_MEMS_ALLOWED = 4
_MAX_NODES = 1024
# asm/unistd_64.h, asm-generic/unistd.h
_MBIND = {"x86_64": (237, 239), "aarch64": (235, 236)}
# linux/mman.h
_MLOCK_ONFAULT = 1
_MADV_POPULATE_READ = 22
_SMAPS = Path("/proc/self/smaps")
_HUGE = ("AnonHugePages", "FilePmdMapped", "ShmemPmdMapped")
_KIB = 1024


@dataclass(frozen=True, kw_only=True)
class RowsMemory:
    """How rows in host memory are held.

    Attributes:
        copy_rows: Copy them into the process's memory, on huge pages where the system has them, where changes to the
            file cannot reach them, instead of mapping it.
        lock_rows: Lock them in memory, so that they are read at once and never dropped.
        numa: NUMA nodes of copied rows: ``interleave`` over all, ``local`` to the thread that loads them, or None for
            the system's choice.
        random_access: Whether mapped rows are read from the file in single pages, without their neighbours; None for
            rows of more than three quarters of the memory.

    Raises:
        ValueError: An option is out of its range, or does not fit the others; the text names it.
    """

    copy_rows: bool = False
    lock_rows: bool = False
    numa: str | None = None
    random_access: bool | None = None

    def __post_init__(self) -> None:
        if self.numa is not None and self.numa not in NUMA:
            raise ValueError(f"numa: got {self.numa!r}, expected one of {', '.join(NUMA)}, or none")
        if self.numa is not None and not self.copy_rows:
            raise ValueError(
                f"numa: got {self.numa!r} for mapped rows, whose pages the system places; set copy_rows too"
            )

    def reads_at_random(self, num_bytes: int) -> bool:
        """Return whether mapped rows of this size are read in single pages."""
        if self.random_access is not None:
            return self.random_access
        return num_bytes > _LARGE * memory_bytes()


@dataclass(frozen=True, kw_only=True)
class RowsPages:
    """The pages of rows in host memory, now.

    Attributes:
        resident_bytes: In memory. Pages of mapped rows are read on demand.
        huge_bytes: Of these, on huge pages.
        locked_bytes: Of these, locked.
    """

    resident_bytes: int = 0
    huge_bytes: int = 0
    locked_bytes: int = 0


def pages_of(rows: Tensor) -> RowsPages:
    """Return how a tensor in host memory is held; zeros where the system does not tell (``/proc/self/smaps``)."""
    start = rows.data_ptr()
    end = start + rows.numel() * rows.element_size()
    found: dict[str, int] = {}
    is_within = False
    resident = locked = huge = 0
    try:
        lines = _SMAPS.read_text().splitlines()
    except OSError:
        return RowsPages()
    for line in lines:
        name, _, rest = line.partition(":")
        if "-" in name:  # a mapping's first line: 7f00-7f80 rw-p 00000000 00:00 0
            first, last = (int(word, 16) for word in name.split(" ")[0].split("-"))
            is_within = first < end and start < last
        elif is_within and rest.endswith(" kB"):
            found[name] = int(rest.split()[0]) * _KIB
        elif is_within and name == "VmFlags":  # a mapping's last line
            resident += found["Rss"]
            huge += sum(found.get(name, 0) for name in _HUGE)
            # The field Locked counts a page by halves where two processes map it.
            locked += found["Rss"] if "lo" in rest.split() else 0
    # Neighbouring memory of the same kind may be part of the mapping.
    most = end - start
    return RowsPages(
        resident_bytes=min(resident, most), huge_bytes=min(huge, most), locked_bytes=min(locked, most)
    )


def lock(rows: Tensor) -> None:
    """Lock rows in memory, and read those that are not there. Returning the memory unlocks them.

    Private pages are not copied by this: processes go on sharing those of a mapped file.

    Raises:
        RowsMemoryError: The system refuses.
    """
    libc = _libc()
    before = rows.data_ptr() % resource.getpagesize()
    start, num_bytes = ctypes.c_void_p(rows.data_ptr() - before), ctypes.c_size_t(rows.numel() + before)
    # A plain mlock would copy every page of a private mapping, as if it were about to be written to.
    if libc.mlock2(start, num_bytes, _MLOCK_ONFAULT) != 0:
        raise _not_locked(rows.numel(), ctypes.get_errno())
    if libc.madvise(start, num_bytes, _MADV_POPULATE_READ) != 0 and ctypes.get_errno() == errno.EINVAL:
        # before Linux 5.14
        rows[:: resource.getpagesize()].sum()


def place(start: int, num_bytes: int, numa: str) -> None:
    """Set the NUMA placement of anonymous memory that has not been written to.

    Raises:
        RowsMemoryError: The system refuses, or has no such placement.
    """
    libc = _libc()
    mbind, get_mempolicy = _MBIND.get(platform.machine(), (-1, -1))
    nodes = (ctypes.c_ulong * (_MAX_NODES // 64))()
    size = ctypes.c_ulong(_MAX_NODES)
    nowhere = ctypes.c_void_p(None)
    done = libc.syscall(
        ctypes.c_long(get_mempolicy), nowhere, nodes, size, nowhere, ctypes.c_ulong(_MEMS_ALLOWED)
    )
    if done == 0:
        length, policy = ctypes.c_ulong(num_bytes), ctypes.c_long(_POLICIES[numa])
        mask = nodes if numa == "interleave" else nowhere
        if numa == "local":
            size = ctypes.c_ulong(0)
        done = libc.syscall(
            ctypes.c_long(mbind), ctypes.c_void_p(start), length, policy, mask, size, ctypes.c_long(0)
        )
    if done != 0:
        reason = os.strerror(ctypes.get_errno())
        raise RowsMemoryError(
            f"numa: got {numa!r}, which this system refuses (mbind: {reason}); it needs a kernel with NUMA, and in "
            "containers permission to call mbind; leave numa out"
        )


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _not_locked(num_bytes: int, number: int) -> RowsMemoryError:
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if number in (errno.ENOMEM, errno.EPERM, errno.EAGAIN) and limit >= 0:
        return RowsMemoryError(
            f"lock_rows: got a limit of {limit} bytes for locked memory (RLIMIT_MEMLOCK), expected room for "
            f"{num_bytes} more; raise it (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of Docker), or leave "
            "lock_rows off"
        )
    return RowsMemoryError(f"lock_rows: the system does not lock {num_bytes} bytes: {os.strerror(number)}")
