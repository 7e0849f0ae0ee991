"""The C allocator: memory that leaves for good goes back to the system, in spite of the server's settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recsys.base.allocator import memory_in_use

_HELD_BYTES = 64 << 20
_CHILD = """
import sys, threading
from pathlib import Path
from contextlib import nullcontext
from recsys.base.allocator import memory_apart, returning_memory, tune_malloc

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def work():
    with memory_apart() if sys.argv[1] == "apart" else nullcontext():
        filling_the_arena = [bytearray(1 << 20) for _ in range(80)]
        held = [bytearray(1 << 20) for _ in range(24)]
    for piece in held:
        piece[:] = b"x" * len(piece)
    full = resident()
    if sys.argv[1] == "returning":
        with returning_memory():
            held.clear()
    else:
        held.clear()
    print(full - resident())

assert tune_malloc()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux" or not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_memory_goes_back_from_a_threads_arena() -> None:
    """The contrast: the server's settings keep it there for the next batch."""
    freed = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", _CHILD, how], capture_output=True, text=True, timeout=60, check=True
            ).stdout
        )
        for how in ("returning", "apart", "keeping")
    }
    assert freed["returning"] > 20 << 20
    assert freed["apart"] > 20 << 20
    assert freed["keeping"] < 4 << 20


def test_memory_in_use_grows_by_what_is_allocated() -> None:
    before = memory_in_use()
    if before is None:
        pytest.skip("this C library has no mallinfo2")
    held = bytearray(_HELD_BYTES)
    now = memory_in_use()
    assert now is not None
    assert now - before >= len(held) // 2
