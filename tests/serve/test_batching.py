"""The batching policy, with a clock that only moves when told to."""

from __future__ import annotations

import pytest

from serve.batching import BatchLimits, BatchQueue, Pending
from serve.errors import QueueFullError, RequestTooLargeError

LIMITS = BatchLimits(
    max_batch_rows=10,
    max_batch_ids=100,
    max_request_rows=20,
    max_request_ids=200,
    max_queue_rows=30,
    max_queue_ids=300,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> BatchQueue[str]:
    return BatchQueue(LIMITS, clock)


def pending(name: str, rows: int = 1, ids: int = 1, deadline_s: float | None = None) -> Pending[str]:
    return Pending(payload=name, num_rows=rows, num_ids=ids, deadline_s=deadline_s)


def names(batch: list[Pending[str]]) -> list[str]:
    return [p.payload for p in batch]


def test_idle_server_takes_a_single_request_at_once(queue: BatchQueue[str]) -> None:
    queue.put(pending("a"))
    assert names(queue.take().batch) == ["a"]


def test_batch_grows_while_the_last_one_runs_and_keeps_the_order(queue: BatchQueue[str]) -> None:
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
    queue: BatchQueue[str], rows: list[int], ids: list[int], first: str
) -> None:
    for name, num_rows, num_ids in zip("abc", rows, ids, strict=True):
        queue.put(pending(name, num_rows, num_ids))
    assert names(queue.take().batch) == list(first)
    assert names(queue.take().batch) == [name for name in "abc" if name not in first]


def test_a_small_request_does_not_overtake_one_that_no_longer_fits(queue: BatchQueue[str]) -> None:
    queue.put(pending("a", rows=8))
    queue.put(pending("large", rows=5))
    queue.put(pending("small", rows=1))
    assert names(queue.take().batch) == ["a"]
    assert names(queue.take().batch) == ["large", "small"]


@pytest.mark.parametrize(("rows", "ids"), [pytest.param(11, 1, id="rows"), pytest.param(1, 101, id="ids")])
def test_a_request_larger_than_a_batch_runs_alone(queue: BatchQueue[str], rows: int, ids: int) -> None:
    queue.put(pending("large", rows, ids))
    queue.put(pending("next"))
    assert names(queue.take().batch) == ["large"]
    assert names(queue.take().batch) == ["next"]


@pytest.mark.parametrize(
    ("rows", "ids", "text"),
    [
        pytest.param(21, 1, "num_rows: got 21, expected at most 20", id="rows"),
        pytest.param(1, 201, "sparse: got 201 IDs, expected at most 200", id="ids"),
    ],
)
def test_a_request_over_the_request_limits_is_refused(
    queue: BatchQueue[str], rows: int, ids: int, text: str
) -> None:
    with pytest.raises(RequestTooLargeError, match=text):
        queue.put(pending("huge", rows, ids))
    assert queue.num_requests == 0


@pytest.mark.parametrize(
    ("rows", "ids", "text"),
    [pytest.param(15, 1, "30 rows wait", id="rows"), pytest.param(1, 150, "300 IDs wait", id="ids")],
)
def test_queue_is_bounded(queue: BatchQueue[str], rows: int, ids: int, text: str) -> None:
    queue.put(pending("a", rows, ids))
    queue.put(pending("b", rows, ids))
    with pytest.raises(QueueFullError, match=text):
        queue.put(pending("c"))
    queue.take()
    queue.put(pending("c"))


def test_requests_without_rows_fill_the_queue_too(queue: BatchQueue[str]) -> None:
    for _ in range(LIMITS.max_queue_rows):
        queue.put(pending("empty", rows=0, ids=0))
    with pytest.raises(QueueFullError):
        queue.put(pending("empty", rows=0, ids=0))


def test_expired_requests_leave_without_being_computed(queue: BatchQueue[str], clock: Clock) -> None:
    queue.put(pending("soon", deadline_s=1.0))
    queue.put(pending("later", deadline_s=3.0))
    queue.put(pending("never"))
    clock.now_s = 2.0
    taken = queue.take()
    assert names(taken.expired) == ["soon"]
    assert names(taken.batch) == ["later", "never"]


def test_a_deadline_that_is_now_has_passed(queue: BatchQueue[str], clock: Clock) -> None:
    queue.put(pending("now", deadline_s=1.0))
    clock.now_s = 1.0
    taken = queue.take()
    assert (names(taken.expired), names(taken.batch)) == (["now"], [])


def test_expired_requests_take_no_room_in_the_batch(queue: BatchQueue[str], clock: Clock) -> None:
    queue.put(pending("a", rows=5))
    queue.put(pending("gone", rows=5, deadline_s=1.0))
    queue.put(pending("b", rows=5))
    clock.now_s = 2.0
    assert names(queue.take().batch) == ["a", "b"]


def test_cancelled_requests_leave_and_free_their_room(queue: BatchQueue[str]) -> None:
    first = pending("a", rows=20, ids=200)
    queue.put(first)
    queue.put(pending("b", rows=10))
    assert queue.cancel(first)
    assert (queue.num_requests, queue.num_rows, queue.num_ids) == (1, 10, 1)
    queue.put(pending("c", rows=20))
    assert names(queue.take().batch) == ["b"]
    assert names(queue.take().batch) == ["c"]


def test_cancelling_after_the_batch_was_taken_changes_nothing(queue: BatchQueue[str]) -> None:
    first = pending("a")
    queue.put(first)
    queue.take()
    assert not queue.cancel(first)
    assert (queue.num_requests, queue.num_rows, queue.num_ids) == (0, 0, 0)


def test_an_empty_queue_gives_an_empty_batch(queue: BatchQueue[str]) -> None:
    taken = queue.take()
    assert (taken.batch, taken.expired) == ([], [])


def test_the_queue_notes_when_a_request_joined(queue: BatchQueue[str], clock: Clock) -> None:
    clock.now_s = 5.0
    request = pending("a")
    queue.put(request)
    assert request.enqueued_s == 5.0


@pytest.mark.parametrize("name", [*vars(LIMITS)])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: got 0, expected at least 1"):
        BatchLimits(**{name: 0})


@pytest.mark.parametrize("what", ["rows", "ids"])
def test_a_request_may_not_be_larger_than_the_queue(what: str) -> None:
    with pytest.raises(ValueError, match=f"max_request_{what}: got 9, expected at most max_queue_{what}"):
        BatchLimits(**{f"max_request_{what}": 9, f"max_queue_{what}": 8})
