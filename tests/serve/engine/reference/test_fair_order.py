"""Clients take turns by rows; the same cases as cpp_client/tests/core/queue/test_fair_order.cpp."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from serve.config.models import BatchLimits, Priority
from serve.engine.reference.batching import BatchQueue, Pending
from serve.engine.reference.fair_order import MAX_IDLE, TURNS_AHEAD, FairOrder
from serve.errors import QueueFullError
from tests.support.serve.queues import LIMITS, Clock

WINDOW_S = LIMITS.priority_window_us * 1e-6


@dataclass(eq=False, slots=True, kw_only=True)
class Named(Pending):
    """A request that has only a name."""

    payload: str = ""


class Clients:
    """A queue, and requests named after their clients."""

    def __init__(self, limits: BatchLimits = LIMITS) -> None:
        self.clock = Clock()
        self.queue: BatchQueue[Named] = BatchQueue(limits, self.clock)
        self._counts: Counter[str] = Counter()

    def of(self, client: str, rows: int = 1, priority: Priority = Priority.NORMAL) -> Named:
        name = f"{client}{self._counts[client]}"
        self._counts[client] += 1
        return Named(payload=name, client=client, num_rows=rows, num_ids=1, priority=priority)

    def put(self, client: str, num: int = 1, rows: int = 1, priority: Priority = Priority.NORMAL) -> None:
        for _ in range(num):
            self.queue.put(self.of(client, rows, priority))
            assert self.queue.pushed_out() is None

    def pushed_out(self, client: str, rows: int = 1) -> list[str]:
        """Put a request; return what it pushed out."""
        self.queue.put(self.of(client, rows))
        pushed_out = self.queue.pushed_out()
        assert pushed_out is not None
        assert pushed_out.retry_after_ms >= 1
        assert pushed_out.text == (
            "queue: 30 rows wait, at most 30 may, and most of them are this connection's; try again later"
        )
        return [pending.payload for pending in pushed_out.requests]

    def take(self) -> list[str]:
        return [pending.payload for pending in self.queue.take().batch]


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_a_light_neighbour_waits_for_one_turn(clients: Clients) -> None:
    clients.put("a", 20)
    clients.put("b")
    assert clients.take() == ["a0", "b0", *(f"a{i}" for i in range(1, 9))]
    clients.put("c")
    assert clients.take()[0] == "c0"


def behind_a_large_request() -> Clients:
    """Return a queue with a request of 5 rows whose client has been served before, and whose start is now."""
    clients = Clients(replace(LIMITS, max_batch_rows=5))
    for client in "def":
        clients.put(client, 2, rows=5)
    assert [clients.take() for _ in range(5)] == [["d0"], ["e0"], ["f0"], ["d1"], ["e1"]]
    return clients


def test_a_client_that_had_nothing_waiting_goes_ahead_of_large_requests() -> None:
    clients = behind_a_large_request()
    clients.put("n")
    assert [clients.take(), clients.take()] == [["n0"], ["f1"]]


def test_a_small_request_goes_ahead_of_large_ones_of_clients_that_had_nothing_waiting(
    clients: Clients,
) -> None:
    for client in "def":
        clients.put(client, rows=9)
    clients.put("n")
    assert clients.take() == ["n0", "d0"]
    # Nor does it owe the row.
    clients.put("n")
    assert clients.take() == ["n1", "e0"]


def test_clients_that_come_one_after_the_other_do_not_starve_a_large_request() -> None:
    clients = behind_a_large_request()
    taken: list[str] = []
    while "f1" not in taken:
        clients.put(f"n{len(taken)}-")
        taken += clients.take()
    assert 100 < len(taken) <= 2 * TURNS_AHEAD


def test_rows_count_not_requests(clients: Clients) -> None:
    clients.put("a", 3, rows=4)
    clients.put("b", 8)
    assert clients.take() == ["b0", "a0", "b1", "b2", "b3"]
    assert clients.take() == ["a1", "b4", "b5", "b6", "b7"]
    assert clients.take() == ["a2"]


def test_a_client_with_one_large_request_at_a_time_owes_its_rows(clients: Clients) -> None:
    clients.put("b", 20)
    clients.put("a", rows=10)
    assert clients.take() == ["b0"]
    assert clients.take() == ["a0"]
    clients.put("a", rows=10)
    assert clients.take() == [f"b{i}" for i in range(1, 10)]
    assert clients.take() == ["a1"]


def test_urgent_requests_still_go_first(clients: Clients) -> None:
    clients.put("a", 12)
    clients.put("b", priority=Priority.LOW)
    clients.put("c", priority=Priority.HIGH)
    assert clients.take()[0] == "c0"
    assert clients.take() == ["a9", "a10", "a11", "b0"]


def test_a_flood_of_urgent_requests_overtakes_for_one_window(clients: Clients) -> None:
    clients.put("a", 20, priority=Priority.HIGH)
    clients.put("b")
    assert clients.take()[-1] == "a9"
    clients.clock.now_s = WINDOW_S + 0.001
    assert clients.take()[:2] == ["a10", "b0"]


def test_a_full_queue_pushes_out_the_last_of_the_heaviest(clients: Clients) -> None:
    clients.put("a", 30)
    assert clients.pushed_out("b", rows=2) == ["a29", "a28"]
    assert clients.queue.num_rows == 30
    for i in range(13):
        assert clients.pushed_out("b") == [f"a{27 - i}"]
    # Both have as much.
    for client in ("a", "b"):
        with pytest.raises(QueueFullError):
            clients.put(client)
    assert len(clients.pushed_out("c")) == 1


def test_a_client_alone_is_refused(clients: Clients) -> None:
    clients.put("a", 30)
    with pytest.raises(QueueFullError, match=r"30 rows wait, at most 30 may; try again later"):
        clients.put("a")
    assert clients.queue.pushed_out() is None
    assert clients.queue.num_requests == 30


def test_nothing_is_pushed_out_for_as_heavy_a_client(clients: Clients) -> None:
    clients.put("a", 3, rows=10)
    with pytest.raises(QueueFullError):
        clients.put("b", rows=20)
    assert clients.queue.num_rows == 30


@pytest.mark.parametrize("name", ["num_ids", "num_bytes"])
def test_ids_and_bytes_have_a_heaviest_client_too(clients: Clients, name: str) -> None:
    at_most = {"num_ids": LIMITS.max_queue_ids, "num_bytes": LIMITS.max_queue_bytes}[name]
    for _ in range(4):
        pending = clients.of("a")
        setattr(pending, name, at_most // 4)
        clients.queue.put(pending)
    pending = clients.of("b")
    setattr(pending, name, at_most // 8)
    clients.queue.put(pending)
    pushed_out = clients.queue.pushed_out()
    assert pushed_out is not None
    assert [one.payload for one in pushed_out.requests] == ["a3"]


def test_what_leaves_unserved_costs_no_turn(clients: Clients) -> None:
    gone, late = clients.of("a", 9), clients.of("a", 9)
    late.deadline_s = 1.0
    clients.queue.put(gone)
    clients.queue.put(late)
    clients.put("a", 2)
    clients.put("b", 2)
    assert clients.queue.cancel(gone)
    clients.clock.now_s = 2.0
    taken = clients.queue.take()
    assert [pending.payload for pending in taken.expired] == ["a1"]
    assert [pending.payload for pending in taken.batch] == ["b0", "a2", "b1", "a3"]


def test_few_idle_clients_are_remembered() -> None:
    order: FairOrder[Named] = FairOrder(WINDOW_S)
    for i in range(10_000):
        pending = Named(client=str(i), num_rows=1)
        pending.level = 2
        order.join(pending, 0.0)
        order.leave(pending, 0.0, is_served=True)
    assert order.num_clients == MAX_IDLE
    assert order.next() is None


def test_waiting_clients_get_the_same_rows_whatever_they_send() -> None:
    clients = Clients(replace(LIMITS, max_queue_rows=1000, max_queue_ids=1000))
    random_ = random.Random(0)
    waiting: Counter[str] = Counter()
    served: Counter[str] = Counter()
    for _ in range(500):
        for number, client in enumerate("abcde", 1):
            while waiting[client] < 40:
                rows = random_.randint(1, 2 * number)
                clients.put(client, rows=rows)
                waiting[client] += rows
        for pending in clients.queue.take().batch:
            waiting[pending.client] -= pending.num_rows
            served[pending.client] += pending.num_rows
        # One request of the one, and one of the other.
        assert max(served.values()) - min(served[client] for client in "abcde") <= 20
