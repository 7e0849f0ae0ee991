"""Blocking work of the event loop's, in threads that keep nobody from exiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run ``function`` in a daemon thread of its own, and wait for it.

    Unlike asyncio's own threads it takes no place from others however long it takes, and the process can end while it
    runs.

    Args:
        function: what it returns or raises is returned or raised here.
        name: of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # Taken out by the thread, so that nothing that the function holds outlives it: memory is freed when it has ended.
    work = [function]
    del function

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work.pop()()
        except BaseException as raised:
            error = raised
        # The loop is closed where nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future
