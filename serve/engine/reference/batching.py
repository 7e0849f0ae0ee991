"""Which requests form the next batch: the policy and its queue, without tensors, threads or sleeps.

Rows and IDs both bound a batch, because the lookups cost by IDs and the dense layers by rows. A batch is
whatever waits at the moment when the executor is free: an idle server adds no wait, and a busy one lets the
next batch grow while the last one runs. ``max_delay_us`` trades latency for larger batches where asked for.

**Order.** There is one line (first in, first out) per level of urgency, and the next request is the one with the
smallest ``enqueued_s + level * priority_window``. So a later, more urgent request overtakes those that came at most
one window per level before it, and nothing starves: a request that has waited for that long is overtaken no more.

**Huge requests.** A request that is larger than a batch runs alone, and everything behind it would wait for many
batches' time. It therefore stands one level lower than its priority says: under load, small requests that come
within the window after it go first. Once it runs, it keeps one executor busy to its end; ``max_request_rows`` and
``max_request_ids`` bound how long that takes, and a further executor serves the others meanwhile.

**Deadlines.** A request whose deadline has passed is never computed. It leaves, wherever it stands, when a batch is
taken and when its room is needed.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serve.config.models import BatchLimits, Priority
from serve.errors import QueueFullError

# Entries of requests that have left are swept once they are more than those that are left, and this many: rarely
# for a short queue, and at a constant cost per request for a long one.
_SPARE = 64
# Weight of what was seen before the last batch: about ten batches count, so that one slow batch does not
# decide, and a change shows within tens of batches.
_MEMORY = 0.9
#: The hint where nothing has been measured yet: a queue that fills before its first batch has ended belongs to a
#: server that has just come up.
FIRST_RETRY_MS = 100
#: No hint is longer: a guess from a server in trouble should not keep clients away for good.
MAX_RETRY_MS = 60_000
# One more than priorities: huge requests of the lowest one stand behind all others. Level 0 is never used.
_NUM_LEVELS = max(Priority) + 2
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound="Pending")


@dataclass(eq=False, slots=True, kw_only=True)
class Pending:
    """What the policy knows of a request that waits.

    Attributes:
        num_rows: rows of the request.
        num_ids: IDs of the request.
        num_bytes: of the request as it came over the wire.
        priority: how urgent it is.
        deadline_s: on the queue's clock; None for none.
        enqueued_s: when it joined the queue, on the queue's clock; set by the queue.
        level: the line that it stands in; set by the queue.
    """

    num_rows: int = 0
    num_ids: int = 0
    num_bytes: int = 0
    priority: Priority = Priority.NORMAL
    deadline_s: float | None = None
    enqueued_s: float = 0.0
    level: int = field(default=0, init=False)


@dataclass(slots=True)
class Taken(Generic[T]):
    """What ``take`` took out of the queue: a batch to compute, and those whose deadline has passed."""

    batch: list[T] = field(default_factory=list)
    expired: list[T] = field(default_factory=list)


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


class DrainRate:
    """What left the queue per second, while there was something to drain, smoothed over about ten batches.

    Everything that leaves counts, cancelled and expired requests too: all of it makes room. The time in which
    nothing waited does not count: an idle queue is not a slow one. Not thread-safe.

    Args:
        names: what is counted, such as rows and bytes.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._left = dict.fromkeys(names, 0.0)
        self._drained = dict.fromkeys(names, 0.0)
        self._seconds = 0.0
        self._since_s: float | None = None

    def left(self, **amounts: int) -> None:
        """Note what has left the queue, by name."""
        for name, amount in amounts.items():
            self._left[name] += amount

    def taken(self, now_s: float, *, is_empty: bool) -> None:
        """Note that a batch was taken.

        Args:
            now_s: the present time.
            is_empty: whether nothing waits any more, so that the time until the next batch says nothing.
        """
        if self._since_s is not None:
            self._seconds = _MEMORY * self._seconds + (now_s - self._since_s)
            for name, amount in self._left.items():
                self._drained[name] = _MEMORY * self._drained[name] + amount
        self._left = dict.fromkeys(self._left, 0.0)
        self._since_s = None if is_empty else now_s

    def retry_after_ms(self, name: str, amount: int, now_s: float) -> int:
        """When so much will have drained, as things went so far: 1 to ``MAX_RETRY_MS``.

        The time since the last batch counts as well, so that the hint grows while a batch takes longer than usual.
        """
        drained = self._drained[name]
        if drained <= 0 or self._seconds <= 0:
            return FIRST_RETRY_MS
        running_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        ms = 1000 * amount * (self._seconds + running_s) / drained
        return min(max(round(ms), 1), MAX_RETRY_MS)


class _SteadyClock:
    """A clock that stands still where the given one jumps back, and goes on from there.

    Monotonic clocks do not jump back. Should one do so all the same, requests keep their order and the time that
    is left until their deadlines, instead of all expiring, or none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()
        self.behind_s = 0.0

    def now_s(self) -> float:
        """The present time; ``behind_s`` less on the given clock."""
        given_s = self._clock()
        self.behind_s += max(self._last_s - given_s, 0.0)
        self._last_s = given_s
        return given_s + self.behind_s


class BatchQueue(Generic[T]):
    """Requests that wait, in the order that the module describes. Not thread-safe: the caller holds a lock.

    ``put``, ``cancel`` and taking one request cost a constant, whatever waits (the logarithm of it where deadlines
    do not come in ascending order).

    Args:
        limits: bounds on batches and on what may wait.
        clock: the present time in seconds, monotonic.

    Attributes:
        num_rows: rows that wait; a request without rows counts as one.
        num_ids: IDs that wait.
        num_bytes: bytes of the requests that wait.
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._window_s = limits.priority_window_us * 1e-6
        self._delay_s = limits.max_delay_us * 1e-6
        self._clock = _SteadyClock(clock)
        # In order of arrival; a request can leave from the middle at once, with all that it holds.
        self._lines: list[OrderedDict[T, None]] = [OrderedDict() for _ in range(_NUM_LEVELS)]
        self._deadlines: Deadlines[T] = Deadlines()
        # Expired requests that made room and were not reported yet.
        self._dropped: list[T] = []
        self._rate = DrainRate(("rows", "IDs", "bytes"))
        self.num_rows = 0
        self.num_ids = 0
        self.num_bytes = 0

    @property
    def num_requests(self) -> int:
        """Requests that wait."""
        return sum(len(line) for line in self._lines)

    def put(self, pending: T) -> list[T]:
        """Let a request wait for its batch.

        Returns:
            Requests that have left because their deadline has passed and room was needed. The caller answers
            them. Where the request is refused all the same, the next ``put`` or ``take`` returns them.

        Raises:
            RequestTooLargeError: it has more rows, IDs or bytes than one request may have.
            QueueFullError: it does not fit beside what waits already; carries a hint when to try again.
        """
        self._limits.check_request(pending.num_rows, pending.num_ids, pending.num_bytes)
        now_s = self._clock.now_s()
        if self._lacking(pending):
            self._dropped += self._expire(now_s)
            if lacking := self._lacking(pending):
                raise self._full(*lacking, now_s)
        pending.enqueued_s = now_s
        pending.level = pending.priority + self._is_huge(pending)
        self._lines[pending.level][pending] = None
        if pending.deadline_s is not None:
            self._deadlines.add(pending, pending.deadline_s + self._clock.behind_s)
        self._count(pending, 1)
        return self._report()

    def cancel(self, pending: T) -> bool:
        """Drop a request that nobody waits for any more; False where it has left the queue already."""
        if pending not in self._lines[pending.level]:
            return False
        self._leave(pending)
        return True

    def ready_at_s(self) -> float | None:
        """When ``take`` should be called, on the queue's clock.

        Now or earlier, unless ``max_delay_us`` lets a batch wait to be filled. It then waits until the oldest
        request has waited for so long, and never so long that a request would be left with less than the same
        time until its deadline: such a request would expire because of the delay.

        Returns:
            None where nothing waits, and nothing is left to report.
        """
        oldest_s = min((next(iter(line)).enqueued_s for line in self._lines if line), default=None)
        if oldest_s is None and not self._dropped:
            return None
        now_s = self._clock.now_s()
        full = self.num_rows >= self._limits.max_batch_rows or self.num_ids >= self._limits.max_batch_ids
        if oldest_s is None or self._dropped or full or not self._delay_s:
            return now_s - self._clock.behind_s
        start_s = oldest_s + self._delay_s
        earliest_s = self._deadlines.earliest_s()
        if earliest_s is not None:
            start_s = min(start_s, earliest_s - self._delay_s)
        return start_s - self._clock.behind_s

    def take(self, enough_rows: float = math.inf) -> Taken[T]:
        """Take out the next batch: as many as fit, in order, and at least one if any waits.

        The first request that does not fit ends the batch. Those whose deadline has passed are taken out too,
        apart, wherever they stood.

        Args:
            enough_rows: The batch ends once it has so many.
        """
        now_s = self._clock.now_s()
        self._dropped += self._expire(now_s)
        taken: Taken[T] = Taken(expired=self._report())
        num_rows = num_ids = 0
        while (pending := self._next()) is not None and num_rows < enough_rows:
            num_rows += _rows(pending)
            num_ids += pending.num_ids
            if taken.batch and (
                num_rows > self._limits.max_batch_rows or num_ids > self._limits.max_batch_ids
            ):
                break
            self._leave(pending)
            taken.batch.append(pending)
        self._rate.taken(now_s, is_empty=pending is None)
        return taken

    def _next(self) -> T | None:
        """The request that comes next, by the rule that the module states."""
        heads = [next(iter(line)) for line in self._lines if line]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda head: head.enqueued_s + head.level * self._window_s)

    def _is_huge(self, pending: T) -> bool:
        limits = self._limits
        return pending.num_rows > limits.max_batch_rows or pending.num_ids > limits.max_batch_ids

    def _lacking(self, pending: T) -> tuple[str, int, int] | None:
        """What there is no room for: its name, how much is lacking, how much may wait; None where it fits."""
        limits = self._limits
        rows = self.num_rows + _rows(pending) - limits.max_queue_rows
        if rows > 0:
            return "rows", rows, limits.max_queue_rows
        ids = self.num_ids + pending.num_ids - limits.max_queue_ids
        if ids > 0:
            return "IDs", ids, limits.max_queue_ids
        num_bytes = self.num_bytes + pending.num_bytes - limits.max_queue_bytes
        return ("bytes", num_bytes, limits.max_queue_bytes) if num_bytes > 0 else None

    def _full(self, name: str, lacking: int, at_most: int, now_s: float) -> QueueFullError:
        waiting = {"rows": self.num_rows, "IDs": self.num_ids, "bytes": self.num_bytes}[name]
        return QueueFullError(
            f"queue: {waiting} {name} wait, at most {at_most} may; try again later",
            self._rate.retry_after_ms(name, lacking, now_s),
        )

    def _expire(self, now_s: float) -> list[T]:
        expired = self._deadlines.passed(now_s)
        for pending in expired:
            self._leave(pending)
        return expired

    def _report(self) -> list[T]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def _leave(self, pending: T) -> None:
        del self._lines[pending.level][pending]
        self._deadlines.discard(pending)
        self._count(pending, -1)
        self._rate.left(rows=_rows(pending), IDs=pending.num_ids, bytes=pending.num_bytes)

    def _count(self, pending: T, sign: int) -> None:
        self.num_rows += sign * _rows(pending)
        self.num_ids += sign * pending.num_ids
        self.num_bytes += sign * pending.num_bytes


def _rows(pending: Pending) -> int:
    return max(pending.num_rows, 1)
