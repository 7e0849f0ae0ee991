"""Which requests form the next batch: the policy and its queue, without tensors, threads or sleeps.

Rows and IDs both bound a batch, because the lookups cost by IDs and the dense layers by rows. A batch is
whatever waits at the moment when the executor is free: an idle server adds no wait, and a busy one lets the
next batch grow while the last one runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serve.errors import QueueFullError, RequestTooLargeError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Bounds on requests, batches and the queue.

    A request may be larger than a batch (it runs alone then), but not larger than the queue.

    Attributes:
        max_batch_rows: rows of one batch.
        max_batch_ids: IDs of one batch, over all sparse inputs.
        max_request_rows: rows of one request.
        max_request_ids: IDs of one request.
        max_queue_rows: rows that may wait; a request without rows counts as one row.
        max_queue_ids: IDs that may wait.

    Raises:
        ValueError: a limit is below 1, or a request could be larger than the queue.
    """

    max_batch_rows: int = 512
    max_batch_ids: int = 1 << 18
    max_request_rows: int = 4096
    max_request_ids: int = 1 << 18
    max_queue_rows: int = 8192
    max_queue_ids: int = 1 << 22

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        for what in ("rows", "ids"):
            request, queue = getattr(self, f"max_request_{what}"), getattr(self, f"max_queue_{what}")
            if request > queue:
                raise ValueError(
                    f"max_request_{what}: got {request}, expected at most max_queue_{what} ({queue}), "
                    "or such a request could never be taken in"
                )

    def check_request(self, num_rows: int, num_ids: int) -> None:
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


@dataclass(eq=False, slots=True, kw_only=True)
class Pending(Generic[T]):
    """A request that waits, with what the policy knows of it.

    Attributes:
        payload: what the executor computes and answers.
        num_rows: rows of the request.
        num_ids: IDs of the request.
        deadline_s: on the queue's clock; None for none.
        enqueued_s: when it joined the queue, on the queue's clock; set by the queue.
    """

    payload: T
    num_rows: int
    num_ids: int
    deadline_s: float | None = None
    enqueued_s: float = 0.0


@dataclass(slots=True)
class Taken(Generic[T]):
    """What ``take`` took out of the queue: a batch to compute, and those whose deadline has passed."""

    batch: list[Pending[T]] = field(default_factory=list)
    expired: list[Pending[T]] = field(default_factory=list)


class BatchQueue(Generic[T]):
    """First in, first out. Not thread-safe: the caller holds a lock around every call.

    Args:
        limits: bounds on batches and on what may wait.
        clock: the present time in seconds, monotonic.
    """

    def __init__(self, limits: BatchLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        # In order of arrival; a request can leave from the middle at once, with all that it holds.
        self._waiting: OrderedDict[Pending[T], None] = OrderedDict()
        self.num_rows = 0
        self.num_ids = 0

    @property
    def num_requests(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def put(self, pending: Pending[T]) -> None:
        """Let a request wait for its batch.

        Raises:
            RequestTooLargeError: it has more rows or IDs than one request may have.
            QueueFullError: it does not fit beside what waits already.
        """
        limits = self._limits
        limits.check_request(pending.num_rows, pending.num_ids)
        if self.num_rows + max(pending.num_rows, 1) > limits.max_queue_rows:
            raise QueueFullError(
                f"queue: {self.num_rows} rows wait, at most {limits.max_queue_rows} may; try again later"
            )
        if self.num_ids + pending.num_ids > limits.max_queue_ids:
            raise QueueFullError(
                f"queue: {self.num_ids} IDs wait, at most {limits.max_queue_ids} may; try again later"
            )
        pending.enqueued_s = self._clock()
        self._waiting[pending] = None
        self._count(pending, 1)

    def cancel(self, pending: Pending[T]) -> bool:
        """Drop a request that nobody waits for any more; False where it has left the queue already."""
        if pending not in self._waiting:
            return False
        self._leave(pending)
        return True

    def take(self) -> Taken[T]:
        """Take out the next batch: the oldest requests, as many as fit, and at least one if any waits.

        Those whose deadline has passed are taken out too, apart.
        """
        taken: Taken[T] = Taken()
        now_s = self._clock()
        num_rows = num_ids = 0
        while self._waiting:
            head = next(iter(self._waiting))
            if head.deadline_s is not None and head.deadline_s <= now_s:
                self._leave(head)
                taken.expired.append(head)
                continue
            num_rows += head.num_rows
            num_ids += head.num_ids
            if taken.batch and (
                num_rows > self._limits.max_batch_rows or num_ids > self._limits.max_batch_ids
            ):
                break
            self._leave(head)
            taken.batch.append(head)
        return taken

    def _leave(self, pending: Pending[T]) -> None:
        del self._waiting[pending]
        self._count(pending, -1)

    def _count(self, pending: Pending[T], sign: int) -> None:
        self.num_rows += sign * max(pending.num_rows, 1)
        self.num_ids += sign * pending.num_ids
