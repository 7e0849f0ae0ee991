"""The batching policy and its queue, without tensors, threads or sleeps.

A batch is bounded by rows and by IDs: lookups cost time per ID, dense layers per row. (Where the model's rows
depend on each other, a batch is one request.) A batch is whatever waits when the executor becomes free: an idle
server adds no wait, and on a busy one the next batch grows while the last one runs. ``max_delay_us`` trades
latency for larger batches.

**Order.** Of one client, there is one FIFO queue per level of urgency, and the next request is the one with the
smallest ``enqueued_s + level * priority_window``. So a later, more urgent request overtakes those that came at most
one window per level before it, and nothing starves: after that time a request is not overtaken any more. Clients,
which are connections, take turns by rows (serve/engine/reference/fair_order.py).

**A full queue.** It refuses a request, unless another client has more waiting even without the room that is needed:
then the last requests of the client with the most are pushed out for it.

**Huge requests.** A request larger than a batch runs alone, and everything behind it would wait for the time
of many batches. It is therefore queued one level below its priority: under load, small requests that arrive
within the window after it go first. Once it runs, it occupies one executor to its end; ``max_request_rows``
and ``max_request_ids`` bound how long that takes, and other executors serve the other requests.

**Deadlines.** A request whose deadline has passed is never computed. It leaves the queue, from any position,
when a batch is taken and when its room is needed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serve.config.models import BatchLimits, Priority
from serve.engine.reference.fair_order import FairOrder
from serve.errors import QueueFullError

# Entries of removed requests are swept once they outnumber the live ones and are at least this many: rarely
# for a short queue, and at constant cost per request for a long one.
_SPARE = 64
# Weight of the history before the last batch. About ten batches count: one slow batch has little effect, and
# a change shows within tens of batches.
_MEMORY = 0.9
#: The hint before anything was measured: a queue that fills before its first batch has ended belongs to a
#: server that has just started.
FIRST_RETRY_MS = 100
#: Upper bound of the hint, so that an estimate made under overload does not keep clients away for long.
MAX_RETRY_MS = 60_000
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound="Pending")


@dataclass(eq=False, slots=True, kw_only=True)
class Pending:
    """A waiting request, as the policy sees it.

    Attributes:
        num_rows: rows of the request.
        num_ids: IDs of the request.
        num_bytes: serialized bytes of the request.
        priority: how urgent it is.
        deadline_s: deadline on the queue's clock; None for none.
        client: names the client, such as its connection: clients take turns. Empty for the server's own requests.
        enqueued_s: when it joined the queue, on the queue's clock; set by the queue.
        level: the level at which it is queued; set by the queue.
    """

    num_rows: int = 0
    num_ids: int = 0
    num_bytes: int = 0
    priority: Priority = Priority.NORMAL
    deadline_s: float | None = None
    client: str = ""
    enqueued_s: float = 0.0
    level: int = field(default=0, init=False)


@dataclass(slots=True)
class Taken(Generic[T]):
    """The result of ``take``: a batch to compute, and the requests whose deadline has passed."""

    batch: list[T] = field(default_factory=list)
    expired: list[T] = field(default_factory=list)


@dataclass(slots=True)
class PushedOut(Generic[T]):
    """Requests that had to leave for a lighter client's request, and what their ``QueueFullError`` says."""

    requests: list[T]
    text: str
    retry_after_ms: int


class Deadlines(Generic[K]):
    """Deadlines of requests, the earliest first. Not thread-safe.

    Adding takes constant time if deadlines arrive in ascending order, as they mostly do, and logarithmic time
    at worst; discarding takes constant time. Discarded requests are not kept alive.
    """

    def __init__(self) -> None:
        # The entry's number breaks ties between equal deadlines, so that requests are never compared.
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, K] = {}
        self._numbers: dict[K, int] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: K, deadline_s: float) -> None:
        """Add a request's deadline."""
        number = self._next_number
        self._next_number += 1
        self._waiting[number] = request
        self._numbers[request] = number
        heapq.heappush(self._heap, (deadline_s, number))

    def discard(self, request: K) -> None:
        """Remove a request; ignored if it has no deadline."""
        number = self._numbers.pop(request, None)
        if number is None:
            return
        del self._waiting[number]
        if len(self._heap) > 2 * len(self._waiting) + _SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)

    def earliest_s(self) -> float | None:
        """Return the earliest deadline; None if no request has one."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now_s: float) -> list[K]:
        """Remove and return the requests whose deadline is not after ``now_s``, earliest first."""
        requests = []
        while (earliest_s := self.earliest_s()) is not None and earliest_s <= now_s:
            _, number = heapq.heappop(self._heap)
            request = self._waiting.pop(number)
            del self._numbers[request]
            requests.append(request)
        return requests


class DrainRate:
    """What leaves the queue per second while it is not empty, smoothed over about ten batches.

    Everything that leaves counts, also cancelled and expired requests, because all of it makes room. Time in
    which nothing waited does not count: an idle queue is not a slow one. Not thread-safe.

    Args:
        names: the amounts that are counted, such as rows and bytes.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._left = dict.fromkeys(names, 0.0)
        self._drained = dict.fromkeys(names, 0.0)
        self._seconds = 0.0
        self._since_s: float | None = None

    def left(self, **amounts: int) -> None:
        """Count amounts that left the queue, by name."""
        for name, amount in amounts.items():
            self._left[name] += amount

    def taken(self, now_s: float, *, is_empty: bool) -> None:
        """Record that a batch was taken.

        Args:
            now_s: the present time.
            is_empty: whether the queue is empty now, so that the time until the next batch does not count.
        """
        if self._since_s is not None:
            self._seconds = _MEMORY * self._seconds + (now_s - self._since_s)
            for name, amount in self._left.items():
                self._drained[name] = _MEMORY * self._drained[name] + amount
        self._left = dict.fromkeys(self._left, 0.0)
        self._since_s = None if is_empty else now_s

    def retry_after_ms(self, name: str, amount: int, now_s: float) -> int:
        """Return the estimated time until this amount has drained, from 1 to ``MAX_RETRY_MS``.

        The time since the last batch counts too, so that the hint grows while a batch takes longer than
        usual.
        """
        drained = self._drained[name]
        if drained <= 0 or self._seconds <= 0:
            return FIRST_RETRY_MS
        running_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        ms = 1000 * amount * (self._seconds + running_s) / drained
        return min(max(round(ms), 1), MAX_RETRY_MS)


class _SteadyClock:
    """A clock that never goes back: if the given one jumps back, it continues from the last time.

    Monotonic clocks do not jump back. If one does, requests keep their order and the time left until their
    deadlines, instead of all expiring, or none.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = clock()
        self.behind_s = 0.0

    def now_s(self) -> float:
        """Return the present time; the given clock is ``behind_s`` behind it."""
        given_s = self._clock()
        self.behind_s += max(self._last_s - given_s, 0.0)
        self._last_s = given_s
        return given_s + self.behind_s

    def last_s(self) -> float:
        """Return what the last call of ``now_s`` returned."""
        return self._last_s + self.behind_s


class BatchQueue(Generic[T]):
    """The waiting requests, in the order described in the module. Not thread-safe: the caller holds a lock.

    ``put``, ``cancel`` and taking one request take constant time for any number of requests of a client
    (logarithmic time if deadlines do not arrive in ascending order), and logarithmic time in the number of clients
    that wait. Only a ``put`` into a full queue looks at all these clients.

    Args:
        limits: bounds on batches and on the queue.
        clock: returns the present time in seconds, monotonic.
        by_request: whether a batch is one request; it then never waits to be filled.

    Attributes:
        num_rows: rows that wait; a request without rows counts as one.
        num_ids: IDs that wait.
        num_bytes: bytes of the requests that wait.
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float], *, by_request: bool = False) -> None:
        self._limits = limits
        self._by_request = by_request
        self._window_s = limits.priority_window_us * 1e-6
        self._delay_s = 0.0 if by_request else limits.max_delay_us * 1e-6
        self._clock = _SteadyClock(clock)
        self._order: FairOrder[T] = FairOrder(self._window_s)
        # All waiting requests in order of arrival.
        self._waiting: OrderedDict[T, None] = OrderedDict()
        self._deadlines: Deadlines[T] = Deadlines()
        # Expired requests that were removed to make room and not reported yet.
        self._dropped: list[T] = []
        self._pushed_out: PushedOut[T] | None = None
        self._rate = DrainRate(("rows", "IDs", "bytes"))
        self.num_rows = 0
        self.num_ids = 0
        self.num_bytes = 0

    @property
    def num_requests(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def put(self, pending: T) -> list[T]:
        """Add a request, no larger than one may be, to the queue. ``pushed_out`` has to be called afterwards.

        Returns:
            Requests that were removed because their deadline has passed and room was needed. The caller
            answers them. If the new request is refused anyway, the next ``put`` or ``take`` returns them.

        Raises:
            QueueFullError: the queue has no room for it; carries a hint when to retry.
        """
        now_s = self._clock.now_s()
        if self._lacking(pending):
            self._dropped += self._expire(now_s)
            if (lacking := self._lacking(pending)) and not self._push_out(pending, now_s):
                raise QueueFullError(*self._full(*lacking, now_s))
        pending.enqueued_s = now_s
        pending.level = pending.priority + self._is_huge(pending)
        self._waiting[pending] = None
        self._order.join(pending, now_s)
        if pending.deadline_s is not None:
            self._deadlines.add(pending, pending.deadline_s + self._clock.behind_s)
        self._count(pending, 1)
        return self._report()

    def pushed_out(self) -> PushedOut[T] | None:
        """Return the requests that the last ``put`` has pushed out, once; None for none. The caller answers them."""
        pushed_out, self._pushed_out = self._pushed_out, None
        return pushed_out

    def cancel(self, pending: T) -> bool:
        """Remove a cancelled request; return False if it has left the queue already."""
        if pending not in self._waiting:
            return False
        self._leave(pending, self._clock.last_s())
        return True

    def ready_at_s(self) -> float | None:
        """Return the time to call ``take``, on the queue's clock.

        It is not after now, unless ``max_delay_us`` lets a batch wait to be filled. The batch then waits
        until the oldest request has waited for that time, but no request is left with less than the same time
        until its deadline: it would expire because of the delay.

        Returns:
            None if nothing waits and nothing is left to report.
        """
        oldest_s = next((pending.enqueued_s for pending in self._waiting), None)
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

    def take(self) -> Taken[T]:
        """Remove and return the next batch: as many requests as fit, and at least one if any waits.

        They are taken in order; the order within the batch means nothing.

        The first request that does not fit ends the batch. All requests whose deadline has passed are removed
        too and returned separately.
        """
        now_s = self._clock.now_s()
        self._dropped += self._expire(now_s)
        taken: Taken[T] = Taken(expired=self._report())
        num_rows = num_ids = 0
        while (pending := self._order.next()) is not None:
            num_rows += _rows(pending)
            num_ids += pending.num_ids
            if taken.batch and (
                self._by_request
                or num_rows > self._limits.max_batch_rows
                or num_ids > self._limits.max_batch_ids
            ):
                break
            self._leave(pending, now_s, is_served=True)
            taken.batch.append(pending)
        self._rate.taken(now_s, is_empty=pending is None)
        return taken

    def _is_huge(self, pending: T) -> bool:
        limits = self._limits
        return pending.num_rows > limits.max_batch_rows or pending.num_ids > limits.max_batch_ids

    def _lacking(self, pending: T) -> tuple[str, int, int] | None:
        """Return the exceeded bound: its name, the missing amount, the bound; None if the request fits."""
        return next(
            (
                (name, waiting + amount - at_most, at_most)
                for name, waiting, amount, at_most in self._rooms(pending)
                if waiting + amount > at_most
            ),
            None,
        )

    def _rooms(self, pending: T) -> tuple[tuple[str, int, int, int], ...]:
        """Return each bound's name, what waits, what the request adds, and the bound."""
        limits = self._limits
        return (
            ("rows", self.num_rows, _rows(pending), limits.max_queue_rows),
            ("IDs", self.num_ids, pending.num_ids, limits.max_queue_ids),
            ("bytes", self.num_bytes, pending.num_bytes, limits.max_queue_bytes),
        )

    def _push_out(self, pending: T, now_s: float) -> bool:
        """Make room for a client's request, if that is fair; return False if it is not."""
        lack = self._lacking(pending)
        assert lack is not None
        heaviest = self._order.heaviest(lack[0])
        if heaviest is None or heaviest.name == pending.client:
            return False
        for name, waiting, amount, at_most in self._rooms(pending):
            lacking = waiting + amount - at_most
            # Without what is lacking, it must still have as much as this client will.
            own = self._order.waiting(pending.client, name) + amount
            if lacking > 0 and heaviest.amount(name) - lacking < own:
                return False
        text, retry_after_ms = self._full(
            *lack, now_s, ", and most of them are this connection's; try again later"
        )
        self._pushed_out = PushedOut([], text, retry_after_ms)
        while self._lacking(pending):
            last = heaviest.last()
            self._leave(last, now_s)
            self._pushed_out.requests.append(last)
        return True

    def _full(
        self, name: str, lacking: int, at_most: int, now_s: float, end: str = "; try again later"
    ) -> tuple[str, int]:
        """Return the error's text, and when to retry."""
        waiting = {"rows": self.num_rows, "IDs": self.num_ids, "bytes": self.num_bytes}[name]
        return (
            f"queue: {waiting} {name} wait, at most {at_most} may{end}",
            self._rate.retry_after_ms(name, lacking, now_s),
        )

    def _expire(self, now_s: float) -> list[T]:
        expired = self._deadlines.passed(now_s)
        for pending in expired:
            self._leave(pending, now_s)
        return expired

    def _report(self) -> list[T]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def _leave(self, pending: T, now_s: float, *, is_served: bool = False) -> None:
        del self._waiting[pending]
        self._order.leave(pending, now_s, is_served=is_served)
        self._deadlines.discard(pending)
        self._count(pending, -1)
        self._rate.left(rows=_rows(pending), IDs=pending.num_ids, bytes=pending.num_bytes)

    def _count(self, pending: T, sign: int) -> None:
        self.num_rows += sign * _rows(pending)
        self.num_ids += sign * pending.num_ids
        self.num_bytes += sign * pending.num_bytes


def _rows(pending: Pending) -> int:
    return max(pending.num_rows, 1)
