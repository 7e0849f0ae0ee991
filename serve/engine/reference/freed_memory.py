"""Memory that calls have held and freed goes back to the system; the C library would keep it for the next batches."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from recsys.base.allocator import memory_in_use, returning_memory

_PERIOD_S = 1.0
# It has been freed once so many readings in a row are lower.
_NUM_READINGS = 5
_LEAST_BYTES = 64 << 20


class FreedMemory:
    """Decides when to return memory, from readings of what is in use.

    Memory is returned once at least 64 MiB less are in use, for five readings, than before: a load that comes and goes
    within them keeps its memory.
    """

    def __init__(self) -> None:
        self._most = 0
        self._lately: deque[int] = deque(maxlen=_NUM_READINGS)

    def is_due(self, in_use: int) -> bool:
        """Take a reading, in bytes; return whether memory should be returned now."""
        self._lately.append(in_use)
        lately = max(self._lately)
        is_due = len(self._lately) == _NUM_READINGS and lately <= self._most - _LEAST_BYTES
        self._most = lately if is_due else max(self._most, lately)
        return is_due


class ReturnsMemory:
    """Returns freed memory between ``start`` and ``close``; does nothing where the C library cannot."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read what is in use, in the running event loop."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        freed = FreedMemory()
        # Both take longer the more free pieces there are.
        while (in_use := await asyncio.to_thread(memory_in_use)) is not None:
            if freed.is_due(in_use):
                await asyncio.to_thread(_give_back)
            await asyncio.sleep(_PERIOD_S)


def _give_back() -> None:
    with returning_memory():
        pass
