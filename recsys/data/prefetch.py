"""Reading ahead: a thread prepares the next batches while the current one is used for training."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """An iterator over the items of another one, which a thread reads ahead.

    A context manager; leaving it ends the thread at any point. An error of the source is raised after the
    items before it. Only one consumer is allowed.

    Args:
        source: Read by the thread alone.
        depth: Maximum number of waiting items, which take memory.

    Raises:
        ValueError: ``depth`` is below 1.
    """

    def __init__(self, source: Iterable[T], depth: int) -> None:
        if depth < 1:
            raise ValueError(f"depth: got {depth}, expected at least 1")
        self._source = source
        self._depth = depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_finished = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetch[T]:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_finished or self._is_closed)
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            raise StopIteration

    def _read(self) -> None:
        try:
            for item in self._source:
                if not self._put(item):
                    break
        except BaseException as error:  # any error is passed to the consumer
            self._error = error
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def _put(self, item: T) -> bool:
        """Wait for room; return False after the iterator was closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._items) < self._depth or self._is_closed)
            if not self._is_closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._is_closed
