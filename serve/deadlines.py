"""Which of the requests that wait have a deadline that comes first."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
# Entries of requests that have left are swept once they are more than those that are left, and this many: rarely
# for a short queue, and at a constant cost per request for a long one.
_SPARE = 64


class Deadlines(Generic[K]):
    """Deadlines of requests, the earliest first. Not thread-safe.

    Adding costs a constant where deadlines come in ascending order, as they mostly do, and the logarithm of their
    number at worst; discarding costs a constant. A request that was discarded is not held.
    """

    def __init__(self) -> None:
        # The number of an entry decides between equal deadlines, so that requests are never compared.
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, K] = {}
        self._numbers: dict[K, int] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: K, deadline_s: float) -> None:
        """Remember a deadline."""
        number = self._next_number
        self._next_number += 1
        self._waiting[number] = request
        self._numbers[request] = number
        heapq.heappush(self._heap, (deadline_s, number))

    def discard(self, request: K) -> None:
        """Forget a request that has left; nothing happens where it had no deadline."""
        number = self._numbers.pop(request, None)
        if number is None:
            return
        del self._waiting[number]
        if len(self._heap) > 2 * len(self._waiting) + _SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)

    def earliest_s(self) -> float | None:
        """The earliest deadline; None where no request has one."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now_s: float) -> list[K]:
        """Take out the requests whose deadline is not after ``now_s``, the earliest first."""
        requests = []
        while (earliest_s := self.earliest_s()) is not None and earliest_s <= now_s:
            _, number = heapq.heappop(self._heap)
            request = self._waiting.pop(number)
            del self._numbers[request]
            requests.append(request)
        return requests
