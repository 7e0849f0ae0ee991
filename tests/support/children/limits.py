"""Programs with limits of their own: ``python limits.py BYTES PROGRAM ARGUMENT ...``."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

# linux/prctl.h, linux/capability.h
_PR_CAPBSET_DROP = 24
_CAP_IPC_LOCK = 14


def without_memory_locking(limit_bytes: int) -> list[str]:
    """Return a command that executes the program behind it, which can lock at most so many bytes, as root too.

    A ``preexec_fn`` would run Python between fork and exec, which aborts now and then where there are other threads.
    """
    return [sys.executable, __file__, str(limit_bytes)]


if __name__ == "__main__":
    _limit, *_program = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_IPC_LOCK, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(_limit), int(_limit)))
    os.execvp(_program[0], _program)
