"""The C allocator, set for servers and for training in host memory: keep what was freed instead of returning it.

With glibc's defaults, every large buffer (a worker thread's output, a step's embeddings and gradients) is mapped,
faulted in page by page and unmapped again, which costs more than the lookup that fills it. The three settings only
work together.
"""

from __future__ import annotations

import ctypes

# Parameter numbers of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

# 32 MiB is glibc's own upper limit of the mapping threshold on 64-bit machines.
_SETTINGS = (
    (_M_MMAP_THRESHOLD, 32 << 20),
    (_M_TRIM_THRESHOLD, 512 << 20),
    (_M_TOP_PAD, 64 << 20),
)


def tune_malloc() -> bool:
    """Set glibc's malloc for the whole process; call it before the first large allocation.

    Returns:
        Whether all settings were taken; False where the C library has no ``mallopt``.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in _SETTINGS)


def release_memory() -> None:
    """Give freed memory back to the system, whatever the settings keep; does nothing where the C library cannot.

    It takes milliseconds per GB, in which other threads may wait for memory: for after a model was unloaded.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    malloc_trim(0)
