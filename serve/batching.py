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
``max_request_ids`` bound how long that takes, and a second executor serves the others meanwhile.

**Deadlines.** A request whose deadline has passed is never computed. It leaves, wherever it stands, when a batch is
taken and when its room is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, TypeVar

from serve.deadlines import Deadlines
from serve.drain_rate import DrainRate
from serve.errors import QueueFullError, RequestTooLargeError

T = TypeVar("T")
_MAY_BE_ZERO = ("max_delay_us", "priority_window_us")


class Priority(IntEnum):
    """How urgent a request is."""

    HIGH = 1
    NORMAL = 2
    LOW = 3


# One more than priorities: huge requests of the lowest one stand behind all others. Level 0 is never used.
_NUM_LEVELS = max(Priority) + 2


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Bounds on requests, batches and the queue.

    A request may be larger than a batch (it runs alone then), but not larger than the queue.

    Attributes:
        max_batch_rows: rows of one batch; a request without rows counts as one row, here and below.
        max_batch_ids: IDs of one batch, over all sparse inputs.
        max_request_rows: rows of one request.
        max_request_ids: IDs of one request.
        max_queue_rows: rows that may wait.
        max_queue_ids: IDs that may wait.
        max_queue_bytes: of requests that may wait, as they came over the wire; a larger request is refused.
        max_delay_us: how long the oldest request may wait for others to fill its batch while an executor is free;
            0 never lets an executor wait.
        priority_window_us: how much later a request may come and still overtake one that is less urgent by one
            level; 0 keeps the order of arrival.

    Raises:
        ValueError: a limit is below its least value, or a request could be larger than the queue.
    """

    max_batch_rows: int = 512
    max_batch_ids: int = 1 << 18
    max_request_rows: int = 4096
    max_request_ids: int = 1 << 18
    max_queue_rows: int = 8192
    max_queue_ids: int = 1 << 22
    max_queue_bytes: int = 256 << 20
    max_delay_us: int = 0
    priority_window_us: int = 100_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in _MAY_BE_ZERO else 1
            if value < least:
                raise ValueError(f"{name}: got {value}, expected at least {least}")
        for what in ("rows", "ids"):
            request, queue = getattr(self, f"max_request_{what}"), getattr(self, f"max_queue_{what}")
            if request > queue:
                raise ValueError(
                    f"max_request_{what}: got {request}, expected at most max_queue_{what} ({queue}), "
                    "or such a request could never be taken in"
                )

    def check_request(self, num_rows: int, num_ids: int, num_bytes: int = 0) -> None:
        """Refuse what is larger than one request may be.

        Raises:
            RequestTooLargeError: names what is too many and how many may be.
        """
        if num_rows > self.max_request_rows:
            raise RequestTooLargeError(
                f"num_rows: got {num_rows}, expected at most {self.max_request_rows} in one request; split it"
            )
        if num_ids > self.max_request_ids:
            raise RequestTooLargeError(
                f"sparse: got {num_ids} IDs, expected at most {self.max_request_ids} in one request; split it"
            )
        if num_bytes > self.max_queue_bytes:
            raise RequestTooLargeError(
                f"message: got {num_bytes} bytes, expected at most {self.max_queue_bytes} in one request; split it"
            )


@dataclass(eq=False, slots=True, kw_only=True)
class Pending(Generic[T]):
    """A request that waits, with what the policy knows of it.

    Attributes:
        payload: what the executor computes and answers.
        num_rows: rows of the request.
        num_ids: IDs of the request.
        num_bytes: of the request as it came over the wire.
        priority: how urgent it is.
        deadline_s: on the queue's clock; None for none.
        enqueued_s: when it joined the queue, on the queue's clock; set by the queue.
        level: the line that it stands in; set by the queue.
    """

    payload: T
    num_rows: int
    num_ids: int
    num_bytes: int = 0
    priority: Priority = Priority.NORMAL
    deadline_s: float | None = None
    enqueued_s: float = 0.0
    level: int = field(default=0, init=False)


@dataclass(slots=True)
class Taken(Generic[T]):
    """What ``take`` took out of the queue: a batch to compute, and those whose deadline has passed."""

    batch: list[Pending[T]] = field(default_factory=list)
    expired: list[Pending[T]] = field(default_factory=list)


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
        self._lines: list[OrderedDict[Pending[T], None]] = [OrderedDict() for _ in range(_NUM_LEVELS)]
        self._deadlines: Deadlines[Pending[T]] = Deadlines()
        # Expired requests that made room and were not reported yet.
        self._dropped: list[Pending[T]] = []
        self._rate = DrainRate(("rows", "IDs", "bytes"))
        self.num_rows = 0
        self.num_ids = 0
        self.num_bytes = 0

    @property
    def num_requests(self) -> int:
        """Requests that wait."""
        return sum(len(line) for line in self._lines)

    def put(self, pending: Pending[T]) -> list[Pending[T]]:
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

    def cancel(self, pending: Pending[T]) -> bool:
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

    def take(self) -> Taken[T]:
        """Take out the next batch: as many as fit, in order, and at least one if any waits.

        The first request that does not fit ends the batch. Those whose deadline has passed are taken out too,
        apart, wherever they stood.
        """
        now_s = self._clock.now_s()
        self._dropped += self._expire(now_s)
        taken: Taken[T] = Taken(expired=self._report())
        num_rows = num_ids = 0
        while (pending := self._next()) is not None:
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

    def _next(self) -> Pending[T] | None:
        """The request that comes next, by the rule that the module states."""
        heads = [next(iter(line)) for line in self._lines if line]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda head: head.enqueued_s + head.level * self._window_s)

    def _is_huge(self, pending: Pending[T]) -> bool:
        limits = self._limits
        return pending.num_rows > limits.max_batch_rows or pending.num_ids > limits.max_batch_ids

    def _lacking(self, pending: Pending[T]) -> tuple[str, int, int] | None:
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

    def _expire(self, now_s: float) -> list[Pending[T]]:
        expired = self._deadlines.passed(now_s)
        for pending in expired:
            self._leave(pending)
        return expired

    def _report(self) -> list[Pending[T]]:
        dropped, self._dropped = self._dropped, []
        return dropped

    def _leave(self, pending: Pending[T]) -> None:
        del self._lines[pending.level][pending]
        self._deadlines.discard(pending)
        self._count(pending, -1)
        self._rate.left(rows=_rows(pending), IDs=pending.num_ids, bytes=pending.num_bytes)

    def _count(self, pending: Pending[T], sign: int) -> None:
        self.num_rows += sign * _rows(pending)
        self.num_ids += sign * pending.num_ids
        self.num_bytes += sign * pending.num_bytes


def _rows(pending: Pending[T]) -> int:
    return max(pending.num_rows, 1)
