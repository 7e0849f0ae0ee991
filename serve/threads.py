"""Blocking work in daemon threads, which do not keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], name: str) -> T:
    """Run ``function`` in a new daemon thread and wait for it.

    Unlike asyncio's executor threads, it occupies no slot of a pool, and the process can end while it runs.

    Args:
        function: its result is returned, its exception raised.
        name: name of the thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # The thread removes the function from the list, so that the memory it refers to is freed when it ends.
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
        # If the loop is closed, no caller waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


class Worker(Generic[T]):
    """A thread that processes a bounded queue of items; it starts with the first item. Thread-safe.

    Args:
        name: name of the thread.
        work: processes items in order, in the thread; must not raise.
        max_waiting: maximum number of waiting items.
        max_waiting_bytes: maximum bytes of waiting items; None for no bound.
        max_taken: maximum number of items per call of ``work``.
        collect_s: time that the first item waits for others to be processed with it.

    Attributes:
        idle_s: time after which ``work`` is called without items; None, which it begins with, for never.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[list[T]], None],
        *,
        max_waiting: int,
        max_waiting_bytes: int | None = None,
        max_taken: int = 1,
        collect_s: float = 0.0,
    ) -> None:
        self._name = name
        self._work = work
        self._max_waiting, self._max_waiting_bytes = max_waiting, max_waiting_bytes
        self._max_taken, self._collect_s = max_taken, collect_s
        self.idle_s: float | None = None
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, item: T, num_bytes: int = 0) -> bool:
        """Add an item to the queue; never blocks.

        Returns:
            False if the queue is full or the worker is closed.
        """
        with self._changed:
            if self._closed or not self._has_room(num_bytes) or not self._start():
                return False
            self._waiting.append((item, num_bytes))
            self._waiting_bytes += num_bytes
            # The first item starts the collection time; a full load ends it early.
            if len(self._waiting) in (1, self._max_taken):
                self._changed.notify()
        return True

    def close(self, timeout_s: float | None = None) -> bool:
        """Process the waiting items and end the thread; idempotent. Blocks.

        Args:
            timeout_s: timeout; None for none.

        Returns:
            Whether the thread has ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def _has_room(self, num_bytes: int) -> bool:
        most = self._max_waiting_bytes
        return len(self._waiting) < self._max_waiting and (
            most is None or self._waiting_bytes + num_bytes <= most
        )

    def _start(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down, or there are too many threads
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while (items := self._take()) is not None:
            self._work(items)

    def _take(self) -> list[T] | None:
        """Wait for items and return them, no items after ``idle_s``; None once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, self.idle_s)
            if not self._waiting:
                return None if self._closed else []
            if self._collect_s:
                self._changed.wait_for(
                    lambda: len(self._waiting) >= self._max_taken or self._closed, self._collect_s
                )
            items: list[T] = []
            while self._waiting and len(items) < self._max_taken:
                item, num_bytes = self._waiting.popleft()
                self._waiting_bytes -= num_bytes
                items.append(item)
            return items
