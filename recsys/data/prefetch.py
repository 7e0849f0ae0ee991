"""Reading ahead: a thread prepares the next batches while the current one is used for training."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar, cast

T = TypeVar("T")


@contextmanager
def prefetched(source: Iterable[T], depth: int) -> Iterator[Iterator[T]]:
    """Give an iterator over the items of another one, which a thread reads ahead while the context lasts.

    An error of the source is raised after the items before it.

    Args:
        source: Read by the thread alone.
        depth: Maximum number of waiting items, which take memory.

    Raises:
        ValueError: ``depth`` is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth: got {depth}, expected at least 1")
    items, end = iter(source), object()
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as reader:
        # One item is read while the others wait.
        waiting: deque[Future[T | object]] = deque(reader.submit(next, items, end) for _ in range(depth + 1))

        def ahead() -> Iterator[T]:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(reader.submit(next, items, end))
                yield cast(T, item)

        try:
            yield ahead()
        finally:
            reader.shutdown(wait=False, cancel_futures=True)
