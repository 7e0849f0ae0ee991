"""The order of deadlines, against sorting; and that those who left are not held."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from serve.engine.reference.batching import Deadlines


class Request:
    """Compared by identity, like the queue's requests."""


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())), st.integers(0, 20))
def test_those_that_have_passed_leave_in_order_and_the_others_stay(
    entries: list[tuple[int, bool]], now_s: int
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for i, (deadline_s, _) in enumerate(entries):
        deadlines.add(i, deadline_s)
    for i, (_, leaves) in enumerate(entries):
        if leaves:
            deadlines.discard(i)
    left = {i: deadline_s for i, (deadline_s, leaves) in enumerate(entries) if not leaves}
    assert deadlines.earliest_s() == min(left.values(), default=None)
    passed = deadlines.passed(now_s)
    assert passed == sorted((i for i in left if left[i] <= now_s), key=lambda i: (left[i], i))
    assert len(deadlines) == len(left) - len(passed)
    assert deadlines.earliest_s() == min((d for d in left.values() if d > now_s), default=None)


def test_discarding_one_without_a_deadline_changes_nothing() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 1.0)
    deadlines.discard("b")
    assert deadlines.passed(1.0) == ["a"]


def test_a_request_that_left_is_not_held_until_its_deadline() -> None:
    deadlines: Deadlines[Request] = Deadlines()
    request = Request()
    deadlines.add(Request(), 1.0)
    deadlines.add(request, 60.0)
    gone = weakref.ref(request)
    deadlines.discard(request)
    del request
    gc.collect()
    assert gone() is None


def test_room_does_not_grow_with_requests_that_came_and_left() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.add(-1, 0.5)
    for i in range(10_000):
        deadlines.add(i, 60.0 + i)
        deadlines.discard(i)
    assert len(deadlines._heap) < 200
