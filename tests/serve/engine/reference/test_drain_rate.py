"""When a full queue says to try again, with a clock that only moves when told to."""

from __future__ import annotations

import pytest

from serve.engine.reference.batching import BatchQueue, Pending
from serve.errors import QueueFullError
from tests.support.serve.queues import LIMITS, Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pending(rows: int = 1) -> Pending:
    return Pending(num_rows=rows, num_ids=1)


def fill(queue: BatchQueue[Pending]) -> None:
    while queue.num_rows < LIMITS.max_queue_rows:
        queue.put(pending())


def test_a_full_queue_says_when_to_try_again_from_how_fast_it_drains(clock: Clock) -> None:
    """Ten rows every 20 ms, so two of them want 4 ms."""
    queue: BatchQueue[Pending] = BatchQueue(LIMITS, clock)
    for _ in range(50):
        fill(queue)
        queue.take()
        clock.now_s += 0.02
    queue.take()
    fill(queue)
    with pytest.raises(QueueFullError) as refused:
        queue.put(pending(rows=2))
    assert refused.value.retry_after_ms == 4


def test_the_hint_grows_while_a_batch_takes_longer_than_usual(clock: Clock) -> None:
    queue: BatchQueue[Pending] = BatchQueue(LIMITS, clock)
    hints = []
    for _ in range(3):
        fill(queue)
        queue.take()
        clock.now_s += 0.02
    fill(queue)
    for _ in range(3):
        with pytest.raises(QueueFullError) as refused:
            queue.put(pending(rows=10))
        hints.append(refused.value.retry_after_ms)
        clock.now_s += 10.0
    assert hints[0] < hints[1] < hints[2] <= 60_000


def test_idle_time_is_not_taken_for_slow_draining(clock: Clock) -> None:
    queue: BatchQueue[Pending] = BatchQueue(LIMITS, clock)
    for _ in range(20):
        fill(queue)
        while queue.num_requests:
            queue.take()
            clock.now_s += 0.01
        clock.now_s += 3600.0
    fill(queue)
    with pytest.raises(QueueFullError) as refused:
        queue.put(pending(rows=10))
    assert refused.value.retry_after_ms == 10


@pytest.mark.parametrize("rows_per_s", [1e9, 1e-9])
def test_the_hint_has_bounds(clock: Clock, rows_per_s: float) -> None:
    queue: BatchQueue[Pending] = BatchQueue(LIMITS, clock)
    fill(queue)
    with pytest.raises(QueueFullError) as unmeasured:
        queue.put(pending())
    queue.take()
    clock.now_s += 10 / rows_per_s
    queue.take()
    fill(queue)
    with pytest.raises(QueueFullError) as refused:
        queue.put(pending())
    assert unmeasured.value.retry_after_ms == 100
    assert refused.value.retry_after_ms == (1 if rows_per_s > 1 else 60_000)
