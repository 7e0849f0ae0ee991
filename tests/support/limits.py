"""Limits of child processes."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable

# linux/prctl.h, linux/capability.h
_PR_CAPBSET_DROP = 24
_CAP_IPC_LOCK = 14


def without_memory_locking(limit_bytes: int) -> Callable[[], None]:
    """Return a function after which a program that the process executes can lock at most so many bytes, as root too."""
    libc = ctypes.CDLL(None)

    def limit() -> None:
        libc.prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0)
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))

    return limit
