"""The batching queue against a plain model of it: whatever happens in whatever order, nothing is lost or starved."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serve.config.models import BatchLimits, Priority
from serve.engine.reference.batching import BatchQueue, Pending
from serve.errors import QueueFullError

LIMITS = BatchLimits(
    max_batch_rows=8,
    max_batch_ids=40,
    max_request_rows=16,
    max_request_ids=80,
    max_queue_rows=32,
    max_queue_ids=160,
    max_queue_bytes=400,
    max_delay_us=3_000,
    priority_window_us=10_000,
)
WINDOW_S = LIMITS.priority_window_us * 1e-6
# Rounding of sums of milliseconds, far below what the steps of the clock are.
EPSILON_S = 1e-9


@dataclass(eq=False, slots=True, kw_only=True)
class Numbered(Pending):
    """A request that has only a number."""

    payload: int


@dataclass
class Model:
    """What waits, in order of arrival."""

    now_s: float = 0.0
    waiting: list[Numbered] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def expired(self) -> list[Numbered]:
        return [p for p in self.waiting if p.deadline_s is not None and p.deadline_s <= self.now_s]


def is_huge(pending: Numbered) -> bool:
    return pending.num_rows > LIMITS.max_batch_rows or pending.num_ids > LIMITS.max_batch_ids


def key_s(pending: Numbered) -> float:
    return pending.enqueued_s + (pending.priority + is_huge(pending)) * WINDOW_S


def total(requests: list[Numbered]) -> tuple[int, int, int]:
    return (
        sum(max(p.num_rows, 1) for p in requests),
        sum(p.num_ids for p in requests),
        sum(p.num_bytes for p in requests),
    )


class QueueMachine(RuleBasedStateMachine):
    """Puts, cancels, takes and lets time pass, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.queue: BatchQueue[Numbered] = BatchQueue(LIMITS, self.model)
        self.number = 0
        self.unreported: list[Numbered] = []

    @rule(
        rows=st.integers(0, LIMITS.max_request_rows),
        ids=st.integers(0, LIMITS.max_request_ids),
        num_bytes=st.integers(0, 200),
        priority=st.sampled_from(Priority),
        remaining_ms=st.none() | st.integers(-1, 30),
    )
    def put(self, rows: int, ids: int, num_bytes: int, priority: Priority, remaining_ms: int | None) -> None:
        model = self.model
        pending = Numbered(
            payload=self.number,
            num_rows=rows,
            num_ids=ids,
            num_bytes=num_bytes,
            priority=priority,
            deadline_s=None if remaining_ms is None else model.now_s + remaining_ms / 1000,
        )
        self.number += 1
        if not self.fits(pending):
            self.expire()
        if not self.fits(pending):
            with pytest.raises(QueueFullError) as full:
                self.queue.put(pending)
            assert full.value.retry_after_ms >= 1
            return
        self.check_report(self.queue.put(pending))
        model.waiting.append(pending)

    def fits(self, pending: Numbered) -> bool:
        rows, ids, num_bytes = total([*self.model.waiting, pending])
        return (
            rows <= LIMITS.max_queue_rows
            and ids <= LIMITS.max_queue_ids
            and num_bytes <= LIMITS.max_queue_bytes
        )

    def expire(self) -> None:
        for pending in self.model.expired():
            self.model.waiting.remove(pending)
            self.unreported.append(pending)

    def check_report(self, reported: list[Numbered]) -> None:
        assert {p.payload for p in reported} == {p.payload for p in self.unreported}
        assert len(reported) == len(self.unreported)
        self.unreported = []

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(self.model.waiting))
        assert self.queue.cancel(pending)
        assert not self.queue.cancel(pending)
        self.model.waiting.remove(pending)

    @rule(ms=st.integers(1, 20))
    def let_time_pass(self, ms: int) -> None:
        self.model.now_s += ms / 1000

    @rule()
    def take(self) -> None:
        taken = self.queue.take()
        self.expire()
        self.check_report(taken.expired)
        for pending in taken.batch:
            self.model.waiting.remove(pending)
        left = self.model.waiting
        if not taken.batch:
            assert not left
            return
        rows, ids, _ = total(taken.batch)
        assert len(taken.batch) == 1 or (rows <= LIMITS.max_batch_rows and ids <= LIMITS.max_batch_ids)
        keys = [key_s(p) for p in taken.batch]
        assert keys == sorted(keys)
        if not left:
            return
        following = min(left, key=key_s)
        assert keys[-1] <= key_s(following) + EPSILON_S
        rows, ids, _ = total([*taken.batch, following])
        ties = [p for p in left if key_s(p) <= key_s(following) + EPSILON_S]
        assert len(ties) > 1 or rows > LIMITS.max_batch_rows or ids > LIMITS.max_batch_ids

    @invariant()
    def counts_are_right(self) -> None:
        queue = self.queue
        assert queue.num_requests == len(self.model.waiting)
        assert (queue.num_rows, queue.num_ids, queue.num_bytes) == total(self.model.waiting)

    @invariant()
    def a_batch_is_never_put_off_for_long(self) -> None:
        ready_s = self.queue.ready_at_s()
        if not self.model.waiting:
            assert (ready_s is None) == (not self.unreported)
            return
        assert ready_s is not None
        delay_s = LIMITS.max_delay_us * 1e-6
        if ready_s > self.model.now_s:
            assert ready_s <= min(p.enqueued_s for p in self.model.waiting) + delay_s + EPSILON_S
            for pending in self.model.waiting:
                assert pending.deadline_s is None or ready_s <= pending.deadline_s - delay_s + EPSILON_S


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
