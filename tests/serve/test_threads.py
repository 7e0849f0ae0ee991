"""The one worker thread: bounded, in order, and never in the way of the process's end."""

from __future__ import annotations

import threading

from serve.threads import Worker


class Gated:
    """Work that waits at a gate, and notes what it was given."""

    def __init__(self) -> None:
        self.taken: list[list[int]] = []
        self.reached, self.gate = threading.Semaphore(0), threading.Event()

    def work(self, items: list[int]) -> None:
        self.reached.release()
        assert self.gate.wait(60)
        self.taken.append(items)


def test_items_are_taken_in_order_and_those_that_find_no_room_are_refused() -> None:
    gated = Gated()
    worker: Worker[int] = Worker("w", gated.work, max_waiting=2)
    assert worker.put(0)
    assert gated.reached.acquire(timeout=60)
    assert [worker.put(i) for i in (1, 2, 3)] == [True, True, False]
    gated.gate.set()
    assert worker.close()
    assert gated.taken == [[0], [1], [2]]
    assert not worker.put(4)
    assert worker.close()


def test_bytes_bound_what_waits() -> None:
    gated = Gated()
    worker: Worker[int] = Worker("w", gated.work, max_waiting=10, max_waiting_bytes=100)
    assert not worker.put(0, 101)
    assert worker.put(1, 100)
    assert gated.reached.acquire(timeout=60)
    assert [worker.put(2, 60), worker.put(3, 60), worker.put(4, 40)] == [True, False, True]
    gated.gate.set()
    assert worker.close()
    assert gated.taken == [[1], [2], [4]]


def test_items_that_wait_are_taken_together_where_that_is_asked_for() -> None:
    gated = Gated()
    gated.gate.set()
    worker: Worker[int] = Worker("w", gated.work, max_waiting=10, max_taken=3, collect_s=60)
    for i in range(4):
        assert worker.put(i)
    assert gated.reached.acquire(timeout=60)
    assert worker.close()
    assert gated.taken == [[0, 1, 2], [3]]


def test_closing_waits_no_longer_than_it_may() -> None:
    gated = Gated()
    worker: Worker[int] = Worker("w", gated.work, max_waiting=1)
    assert worker.put(0)
    assert gated.reached.acquire(timeout=60)
    assert not worker.close(0.01)
    gated.gate.set()
    assert worker.close()


def test_a_worker_without_work_has_no_thread() -> None:
    worker: Worker[int] = Worker("idle-worker", lambda _: None, max_waiting=1)
    assert "idle-worker" not in [thread.name for thread in threading.enumerate()]
    assert worker.close()
