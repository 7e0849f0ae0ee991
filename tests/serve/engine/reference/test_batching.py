"""The batching policy, with a clock that only moves when told to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from serve.config.models import BatchLimits, Priority
from serve.engine.reference.batching import BatchQueue, Pending
from serve.errors import QueueFullError
from tests.support.serve.queues import LIMITS, Clock

WINDOW_S = LIMITS.priority_window_us * 1e-6


@dataclass(eq=False, slots=True, kw_only=True)
class Named(Pending):
    """A request that has only a name."""

    payload: str


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> BatchQueue[Named]:
    return BatchQueue(LIMITS, clock)


def pending(name: str, rows: int = 1, ids: int = 1, deadline_s: float | None = None) -> Named:
    return Named(payload=name, num_rows=rows, num_ids=ids, deadline_s=deadline_s)


def names(batch: list[Named]) -> list[str]:
    return [p.payload for p in batch]


def test_idle_server_takes_a_single_request_at_once(queue: BatchQueue[Named]) -> None:
    queue.put(pending("a"))
    assert names(queue.take().batch) == ["a"]


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, max_delay_us=1000)], ids=["at once", "delay"])
def test_a_batch_may_be_one_request(limits: BatchLimits, clock: Clock) -> None:
    queue: BatchQueue[Named] = BatchQueue(limits, clock, by_request=True)
    for name, rows in (("a", 1), ("b", 15), ("c", 0)):
        queue.put(pending(name, rows=rows))
        assert queue.ready_at_s() == clock.now_s
    taken = [names(queue.take().batch) for _ in range(4)]
    assert sorted(taken) == [[], ["a"], ["b"], ["c"]]
    assert not queue.num_rows


def test_batch_grows_while_the_last_one_runs_and_keeps_the_order(queue: BatchQueue[Named]) -> None:
    queue.put(pending("running"))
    queue.take()
    for name in "abcd":
        queue.put(pending(name))
    assert names(queue.take().batch) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("rows", "ids", "first"),
    [
        pytest.param([4, 6, 1], [1, 1, 1], "ab", id="rows-exactly-full"),
        pytest.param([4, 7, 1], [1, 1, 1], "a", id="rows-one-too-many"),
        pytest.param([1, 1, 1], [40, 60, 1], "ab", id="ids-exactly-full"),
        pytest.param([1, 1, 1], [40, 61, 1], "a", id="ids-one-too-many"),
    ],
)
def test_rows_and_ids_both_bound_a_batch(
    queue: BatchQueue[Named], rows: list[int], ids: list[int], first: str
) -> None:
    for name, num_rows, num_ids in zip("abc", rows, ids, strict=True):
        queue.put(pending(name, num_rows, num_ids))
    assert names(queue.take().batch) == list(first)
    assert names(queue.take().batch) == [name for name in "abc" if name not in first]


def test_a_small_request_does_not_overtake_one_that_no_longer_fits(queue: BatchQueue[Named]) -> None:
    queue.put(pending("a", rows=8))
    queue.put(pending("large", rows=5))
    queue.put(pending("small", rows=1))
    assert names(queue.take().batch) == ["a"]
    assert names(queue.take().batch) == ["large", "small"]


@pytest.mark.parametrize(("rows", "ids"), [pytest.param(11, 1, id="rows"), pytest.param(1, 101, id="ids")])
def test_a_request_larger_than_a_batch_runs_alone(queue: BatchQueue[Named], rows: int, ids: int) -> None:
    queue.put(pending("huge", rows, ids))
    queue.put(pending("next"))
    assert names(queue.take().batch) == ["next"]
    assert names(queue.take().batch) == ["huge"]


def test_a_huge_request_is_overtaken_for_one_window_and_no_longer(
    queue: BatchQueue[Named], clock: Clock
) -> None:
    queue.put(pending("huge", rows=11))
    clock.now_s = WINDOW_S * 0.99
    queue.put(pending("within"))
    clock.now_s = WINDOW_S * 1.01
    queue.put(pending("after"))
    assert [names(queue.take().batch) for _ in range(3)] == [["within"], ["huge"], ["after"]]


@pytest.mark.parametrize(
    ("rows", "ids", "text"),
    [pytest.param(15, 1, "30 rows wait", id="rows"), pytest.param(1, 150, "300 IDs wait", id="ids")],
)
def test_queue_is_bounded(queue: BatchQueue[Named], rows: int, ids: int, text: str) -> None:
    queue.put(pending("a", rows, ids))
    queue.put(pending("b", rows, ids))
    with pytest.raises(QueueFullError, match=text):
        queue.put(pending("c"))
    queue.take()
    queue.put(pending("c"))


def test_bytes_bound_the_queue_too(queue: BatchQueue[Named]) -> None:
    queue.put(sized("a", 1500))
    queue.put(sized("b", 1500))
    with pytest.raises(QueueFullError, match="queue: 3000 bytes wait, at most 3000 may"):
        queue.put(sized("c", 1))
    queue.put(sized("weightless", 0))
    queue.take()
    assert queue.num_bytes == 0


def sized(name: str, num_bytes: int) -> Named:
    return Named(payload=name, num_rows=1, num_ids=1, num_bytes=num_bytes)


def test_requests_without_rows_fill_the_queue_too(queue: BatchQueue[Named]) -> None:
    for _ in range(LIMITS.max_queue_rows):
        queue.put(pending("empty", rows=0, ids=0))
    with pytest.raises(QueueFullError):
        queue.put(pending("empty", rows=0, ids=0))


def test_expired_requests_leave_without_being_computed(queue: BatchQueue[Named], clock: Clock) -> None:
    queue.put(pending("soon", deadline_s=1.0))
    queue.put(pending("later", deadline_s=3.0))
    queue.put(pending("never"))
    clock.now_s = 2.0
    taken = queue.take()
    assert names(taken.expired) == ["soon"]
    assert names(taken.batch) == ["later", "never"]


def test_a_deadline_that_is_now_has_passed(queue: BatchQueue[Named], clock: Clock) -> None:
    queue.put(pending("now", deadline_s=1.0))
    clock.now_s = 1.0
    taken = queue.take()
    assert (names(taken.expired), names(taken.batch)) == (["now"], [])


def test_expired_requests_take_no_room_in_the_batch(queue: BatchQueue[Named], clock: Clock) -> None:
    queue.put(pending("a", rows=5))
    queue.put(pending("gone", rows=5, deadline_s=1.0))
    queue.put(pending("b", rows=5))
    clock.now_s = 2.0
    assert names(queue.take().batch) == ["a", "b"]


def test_cancelled_requests_leave_and_free_their_room(queue: BatchQueue[Named]) -> None:
    first = pending("a", rows=20, ids=200)
    queue.put(first)
    queue.put(pending("b", rows=10))
    assert queue.cancel(first)
    assert (queue.num_requests, queue.num_rows, queue.num_ids) == (1, 10, 1)
    queue.put(pending("c", rows=20))
    assert names(queue.take().batch) == ["b"]
    assert names(queue.take().batch) == ["c"]


def test_cancelling_after_the_batch_was_taken_changes_nothing(queue: BatchQueue[Named]) -> None:
    first = pending("a")
    queue.put(first)
    queue.take()
    assert not queue.cancel(first)
    assert (queue.num_requests, queue.num_rows, queue.num_ids) == (0, 0, 0)


def test_an_empty_queue_gives_an_empty_batch(queue: BatchQueue[Named]) -> None:
    taken = queue.take()
    assert (taken.batch, taken.expired) == ([], [])


def test_the_queue_notes_when_a_request_joined(queue: BatchQueue[Named], clock: Clock) -> None:
    clock.now_s = 5.0
    request = pending("a")
    queue.put(request)
    assert request.enqueued_s == 5.0


@pytest.mark.parametrize("name", [*vars(LIMITS)])
def test_limits_that_are_too_low_are_refused(name: str) -> None:
    least = 0 if name in ("max_delay_us", "priority_window_us") else 1
    with pytest.raises(ValueError, match=f"{name}: got {least - 1}, expected at least {least}"):
        BatchLimits(**{name: least - 1})


@pytest.mark.parametrize("what", ["rows", "ids"])
def test_a_request_may_not_be_larger_than_the_queue(what: str) -> None:
    with pytest.raises(ValueError, match=f"max_request_{what}: got 9, expected at most max_queue_{what}"):
        BatchLimits(**{f"max_request_{what}": 9, f"max_queue_{what}": 8})


def prioritized(name: str, priority: Priority, rows: int = 6) -> Named:
    return Named(payload=name, num_rows=rows, num_ids=1, priority=priority)


def batches(queue: BatchQueue[Named]) -> list[list[str]]:
    taken = []
    while queue.num_requests:
        taken.append(names(queue.take().batch))
    return taken


def test_urgent_requests_go_first_and_each_level_keeps_its_order(
    queue: BatchQueue[Named], clock: Clock
) -> None:
    for i, priority in enumerate([Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.LOW, Priority.HIGH]):
        clock.now_s = 0.001 * i
        queue.put(prioritized(f"{priority.name}{i}", priority))
    assert batches(queue) == [["HIGH2"], ["HIGH4"], ["NORMAL1"], ["LOW0"], ["LOW3"]]


def test_priorities_share_a_batch(queue: BatchQueue[Named]) -> None:
    queue.put(prioritized("low", Priority.LOW, rows=5))
    queue.put(prioritized("high", Priority.HIGH, rows=5))
    assert batches(queue) == [["high", "low"]]


@pytest.mark.parametrize(
    ("slow", "fast", "levels"),
    [
        pytest.param(Priority.LOW, Priority.NORMAL, 1, id="one-level"),
        pytest.param(Priority.NORMAL, Priority.HIGH, 1, id="one-level-higher"),
        pytest.param(Priority.LOW, Priority.HIGH, 2, id="two-levels"),
    ],
)
def test_starvation_is_bounded_by_a_window_for_each_level(
    clock: Clock, slow: Priority, fast: Priority, levels: int
) -> None:
    for after, expected in ((0.99, ["fast", "slow"]), (1.01, ["slow", "fast"])):
        queue: BatchQueue[Named] = BatchQueue(LIMITS, clock)
        clock.now_s = 50.0
        queue.put(prioritized("slow", slow))
        clock.now_s += levels * WINDOW_S * after
        queue.put(prioritized("fast", fast))
        assert [name for batch in batches(queue) for name in batch] == expected


def test_a_window_of_zero_keeps_the_order_of_arrival(clock: Clock) -> None:
    queue: BatchQueue[Named] = BatchQueue(BatchLimits(priority_window_us=0), clock)
    queue.put(prioritized("low", Priority.LOW))
    clock.now_s = 1e-6
    queue.put(prioritized("high", Priority.HIGH))
    assert batches(queue) == [["low", "high"]]


def test_expired_requests_deep_in_the_queue_leave_with_the_next_batch(
    queue: BatchQueue[Named], clock: Clock
) -> None:
    queue.put(pending("a", rows=10))
    queue.put(pending("b", rows=10))
    queue.put(pending("gone", rows=5, deadline_s=1.0))
    clock.now_s = 1.0
    taken = queue.take()
    assert (names(taken.batch), names(taken.expired)) == (["a"], ["gone"])
    assert (queue.num_rows, queue.num_requests) == (10, 1)


def test_expired_requests_make_room_and_are_reported(queue: BatchQueue[Named], clock: Clock) -> None:
    queue.put(pending("a", rows=20))
    queue.put(pending("gone", rows=10, deadline_s=1.0))
    clock.now_s = 1.0
    assert names(queue.put(pending("b", rows=10))) == ["gone"]
    assert batches(queue) == [["a"], ["b"]]


def test_expired_requests_that_did_not_make_enough_room_are_reported_next(
    queue: BatchQueue[Named], clock: Clock
) -> None:
    first = pending("a", rows=20)
    queue.put(first)
    queue.put(pending("gone", rows=1, deadline_s=1.0))
    queue.put(pending("b", rows=9))
    clock.now_s = 1.0
    with pytest.raises(QueueFullError):
        queue.put(pending("c", rows=2))
    assert queue.num_rows == 29
    assert queue.ready_at_s() == 1.0
    assert names(queue.put(pending("d", rows=1))) == ["gone"]
    assert queue.take().expired == []


def test_what_is_to_be_reported_keeps_an_empty_queue_awake(queue: BatchQueue[Named], clock: Clock) -> None:
    first = pending("a", rows=20)
    queue.put(first)
    queue.put(pending("gone", rows=10, deadline_s=1.0))
    clock.now_s = 1.0
    with pytest.raises(QueueFullError):
        queue.put(pending("b", rows=11))
    queue.cancel(first)
    assert queue.num_requests == 0
    assert queue.ready_at_s() == 1.0
    taken = queue.take()
    assert (names(taken.expired), taken.batch) == (["gone"], [])
    assert queue.ready_at_s() is None


def test_room_is_not_looked_for_where_there_is_enough(queue: BatchQueue[Named], clock: Clock) -> None:
    queue.put(pending("gone", deadline_s=1.0))
    clock.now_s = 2.0
    assert queue.put(pending("a")) == []
    assert names(queue.take().expired) == ["gone"]


DELAY_S = 0.002
DELAYED = BatchLimits(
    max_batch_rows=10, max_batch_ids=100, max_request_rows=20, max_delay_us=round(DELAY_S * 1e6)
)


@pytest.fixture
def delayed(clock: Clock) -> BatchQueue[Named]:
    return BatchQueue(DELAYED, clock)


def test_without_a_delay_nothing_waits(queue: BatchQueue[Named], clock: Clock) -> None:
    assert queue.ready_at_s() is None
    clock.now_s = 3.0
    queue.put(pending("a"))
    assert queue.ready_at_s() == 3.0


def test_a_batch_waits_until_its_oldest_request_has_waited_long_enough(
    delayed: BatchQueue[Named], clock: Clock
) -> None:
    clock.now_s = 3.0
    delayed.put(Named(payload="low", num_rows=1, num_ids=1, priority=Priority.LOW))
    clock.now_s = 3.001
    delayed.put(Named(payload="high", num_rows=1, num_ids=1, priority=Priority.HIGH))
    assert delayed.ready_at_s() == 3.0 + DELAY_S
    assert names(delayed.take().batch) == ["high", "low"]
    assert delayed.ready_at_s() is None


@pytest.mark.parametrize(
    ("rows", "ids"), [pytest.param(9, 1, id="rows"), pytest.param(1, 99, id="ids"), (20, 1)]
)
def test_a_full_batch_does_not_wait(delayed: BatchQueue[Named], rows: int, ids: int) -> None:
    delayed.put(pending("a"))
    assert delayed.ready_at_s() == DELAY_S
    delayed.put(pending("b", rows=rows, ids=ids))
    assert delayed.ready_at_s() == 0.0


def test_a_cancelled_request_delays_nobody(delayed: BatchQueue[Named], clock: Clock) -> None:
    first = pending("a", rows=9, deadline_s=DELAY_S)
    delayed.put(first)
    clock.now_s = 0.0005
    delayed.put(pending("b"))
    delayed.cancel(first)
    assert delayed.ready_at_s() == 0.0005 + DELAY_S


@pytest.mark.parametrize(
    ("deadline_s", "ready_s"),
    [
        pytest.param(10 * DELAY_S, DELAY_S, id="far"),
        pytest.param(1.5 * DELAY_S, 0.5 * DELAY_S, id="near"),
        pytest.param(0.5 * DELAY_S, -0.5 * DELAY_S, id="shorter-than-the-delay"),
    ],
)
def test_no_request_expires_because_of_the_delay(
    delayed: BatchQueue[Named], deadline_s: float, ready_s: float
) -> None:
    delayed.put(pending("a"))
    delayed.put(pending("b", deadline_s=deadline_s))
    assert delayed.ready_at_s() == pytest.approx(ready_s)


def test_a_clock_that_jumps_back_neither_expires_nor_delays_nor_reorders(
    delayed: BatchQueue[Named], clock: Clock
) -> None:
    clock.now_s = 1000.0
    delayed.put(pending("a", deadline_s=1001.0))
    clock.now_s = 10.0
    delayed.put(Named(payload="b", num_rows=1, num_ids=1, deadline_s=11.0, priority=Priority.LOW))
    assert delayed.ready_at_s() == pytest.approx(10.0 + DELAY_S)
    clock.now_s = 10.5
    delayed.put(Named(payload="c", num_rows=1, num_ids=1, priority=Priority.HIGH, deadline_s=12.0))
    clock.now_s = 11.0
    taken = delayed.take()
    assert (names(taken.expired), names(taken.batch)) == (["a", "b"], ["c"])
