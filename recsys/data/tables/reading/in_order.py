"""Work on several items at once, with the results in the items' order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from recsys.base.machine import num_processors

T = TypeVar("T")
R = TypeVar("R")


def in_order(items: Iterable[T], work: Callable[[T], R]) -> Iterator[tuple[T, R]]:
    """Yield each item with what ``work`` makes of it; threads work on as many items as there are processors.

    An error of an item, or of the iteration, is raised after the results of the items before it.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    num_threads = num_processors()
    error: Exception | None = None
    left = iter(items)
    with ThreadPoolExecutor(num_threads) as threads:
        while error is None:
            try:
                item = next(left)
            except StopIteration:
                break
            except Exception as found:  # raised below
                error = found
                break
            waiting.append((item, threads.submit(work, item)))
            if len(waiting) > num_threads:
                item, result = waiting.popleft()
                yield item, result.result()
        while waiting:
            item, result = waiting.popleft()
            yield item, result.result()
    if error is not None:
        raise error
