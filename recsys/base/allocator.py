"""Settings of the C allocator for servers and for training in host memory; freed memory is kept for reuse.

With glibc's defaults, every large buffer (a worker thread's output, a step's embeddings and gradients) is mapped,
faulted in page by page and unmapped again, which costs more than the lookup that fills it. The three settings only
work together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
# Settings inside ``memory_apart``: glibc's initial threshold.
_APART = ((_M_MMAP_THRESHOLD, 128 << 10), (_M_TOP_PAD, 0))
# Settings inside ``returning_memory``: nothing is kept at the end of an arena.
_RETURNING = ((_M_TRIM_THRESHOLD, 0), (_M_TOP_PAD, 0))
_TRIGGER_BYTES = 1 << 17
_is_tuned = False


def tune_malloc() -> bool:
    """Set glibc's malloc for the whole process; call it before the first large allocation.

    Returns:
        Whether all settings were accepted; False if the C library has no ``mallopt``.
    """
    global _is_tuned
    _is_tuned = _set(_SETTINGS)
    return _is_tuned


@contextmanager
def memory_apart() -> Iterator[None]:
    """Map large allocations inside the context separately, so that they return to the system when freed.

    Exception: allocations that fit into the free space of the thread's arena, at most 64 MiB.

    Use it for long-lived data, such as a model: in arenas, between buffers of batches and pinned by small
    objects, a part of its memory would never return to the system. During the context other threads' large
    buffers are mapped too, which is slower.
    """
    if _is_tuned:
        _set(_APART)
    try:
        yield
    finally:
        if _is_tuned:
            _set(_SETTINGS)


@contextmanager
def returning_memory() -> Iterator[None]:
    """Return memory that is freed inside the context to the system, even if ``tune_malloc`` was called.

    Memory that the calling thread has freed before is returned too. Use it when large data, such as a model,
    is released. It takes some milliseconds; other threads' freed memory is returned too and has to be faulted
    in again.
    """
    if _is_tuned:
        _set(_RETURNING)
    try:
        yield
    finally:
        if _is_tuned:
            # The end of a thread's arena is returned only when a chunk of at least 64 KiB is freed in it
            # (glibc's FASTBIN_CONSOLIDATION_THRESHOLD); malloc_trim does not return it.
            bytearray(_TRIGGER_BYTES)
            _set(_SETTINGS)
        trim = _function("malloc_trim")
        if trim is not None:
            trim(0)


class _Mallinfo2(ctypes.Structure):
    # struct mallinfo2 of mallinfo(3).
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def memory_in_use() -> int | None:
    """Return how many bytes of the C allocator are in use; None if the C library does not know."""
    mallinfo = _function("mallinfo2")
    if mallinfo is None:
        return None
    mallinfo.restype = _Mallinfo2
    found = mallinfo()
    return int(found.uordblks) + int(found.hblkhd)


def _set(settings: tuple[tuple[int, int], ...]) -> bool:
    mallopt = _function("mallopt")
    return mallopt is not None and all(mallopt(parameter, value) == 1 for parameter, value in settings)


def _function(name: str) -> Any:
    """Return a function of the C library; None if it has none of this name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
