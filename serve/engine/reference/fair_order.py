"""The order of waiting requests over all clients, without tensors, threads or sleeps.

**One client.** There is one FIFO line per level of urgency, and the client's next request is the one with the
smallest ``enqueued_s + level * window``.

**Many clients.** Those whose next requests have the same level take turns by start-time fair queueing: a client's
next request starts, in virtual time, where its last one ended, but not before now; it ends one unit per row later;
now is the start of the last request that was taken. Of those with the same start, the one that has waited for its
turn longer is next, but a request goes ahead of as many turns as it has fewer rows, and whoever had nothing waiting
of ``TURNS_AHEAD`` more. What such a client owes is forgotten if it is little beside the requests that wait. So
whoever sends few rows hardly waits for the others, however much these have waiting. Each
level has a virtual time of its own.

**Levels.** Of the clients whose turn it is at each level, the one with the smallest ``since_s + level * window`` is
next. ``since_s`` is when its request became its client's next one, because the time behind requests of its own
client is not owed by others.

Clients without a waiting request are remembered because a turn may still be counted against them, but only the
last ``MAX_IDLE`` of them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from serve.config.models import Priority

if TYPE_CHECKING:
    from serve.engine.reference.batching import Pending

# One more than the priorities: huge requests of the lowest priority are queued behind all others. Level 0 is
# never used.
_NUM_LEVELS = max(Priority) + 2
#: Clients without a waiting request that are remembered.
MAX_IDLE = 256
#: How many turns a client that had nothing waiting goes ahead, among those with the same start; and how many at most
#: for a request with fewer rows.
TURNS_AHEAD = 256
# What a client owes that had nothing waiting is forgotten if it is less than this share of the average request's rows.
_LITTLE_SHARE = 4
# Entries of a heap that no longer count are swept once they outnumber the others and are at least this many.
_SPARE = 64
T = TypeVar("T", bound="Pending")


@dataclass(eq=False, slots=True)
class Client(Generic[T]):
    """A client's waiting requests and its place among the other clients.

    Attributes:
        name: names the client.
        lines: its requests by level, in order of arrival.
        rows: rows that wait; a request without rows counts as one.
        ids: IDs that wait.
        num_bytes: bytes that wait.
        level: level of its next request; 0 if none waits.
        since_s: when that request became its next one.
        start: virtual time at which it starts, in rows.
        finished: by level, the virtual time at which its last request ended.
        place: orders clients with the same start.
        turn: orders clients with the same place.
    """

    name: str
    lines: list[OrderedDict[T, None]] = field(
        default_factory=lambda: [OrderedDict() for _ in range(_NUM_LEVELS)]
    )
    rows: int = 0
    ids: int = 0
    num_bytes: int = 0
    level: int = 0
    since_s: float = 0.0
    start: int = 0
    finished: list[int] = field(default_factory=lambda: [0] * _NUM_LEVELS)
    place: int = 0
    turn: int = 0

    def next(self, window_s: float) -> T | None:
        """Return its next request; None if none waits."""
        heads = [next(iter(line)) for line in self.lines if line]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda head: head.enqueued_s + head.level * window_s)

    def last(self) -> T:
        """Return the last of its least urgent requests."""
        return next(reversed(next(line for line in reversed(self.lines) if line)))

    def count(self, pending: T, sign: int) -> None:
        """Add a request's room, or subtract it."""
        self.rows += sign * max(pending.num_rows, 1)
        self.ids += sign * pending.num_ids
        self.num_bytes += sign * pending.num_bytes

    def amount(self, name: str) -> int:
        """Return how much waits: "rows", "IDs" or "bytes"."""
        return {"rows": self.rows, "IDs": self.ids, "bytes": self.num_bytes}[name]


class _Level(Generic[T]):
    """The clients whose next request has one level, the earliest start first."""

    def __init__(self) -> None:
        self.now = 0
        self.last_finish = 0
        # By turn, which is new each time that a client enters.
        self.clients: dict[int, Client[T]] = {}
        self._heap: list[tuple[int, int, int]] = []

    def add(self, client: Client[T]) -> None:
        self.clients[client.turn] = client
        heapq.heappush(self._heap, (client.start, client.place, client.turn))

    def remove(self, client: Client[T]) -> None:
        del self.clients[client.turn]
        if len(self._heap) > 2 * len(self.clients) + _SPARE:
            self._heap = [entry for entry in self._heap if entry[2] in self.clients]
            heapq.heapify(self._heap)

    def first(self) -> Client[T] | None:
        while self._heap and self._heap[0][2] not in self.clients:
            heapq.heappop(self._heap)
        return self.clients[self._heap[0][2]] if self._heap else None


class FairOrder(Generic[T]):
    """Waiting requests, in the order described in the module. Not thread-safe.

    Joining and leaving take logarithmic time in the number of clients that wait.

    Args:
        window_s: how much earlier a request may have come that one of the next level overtakes.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._levels: list[_Level[T]] = [_Level() for _ in range(_NUM_LEVELS)]
        self._clients: dict[str, Client[T]] = {}
        # The one that has been idle for longest comes first.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._last_turn = 0
        self._waiting_rows = 0
        self._num_waiting = 0

    @property
    def num_clients(self) -> int:
        """Number of clients that are remembered."""
        return len(self._clients)

    def join(self, pending: T, now_s: float) -> None:
        """Add a request."""
        client = self._clients.get(pending.client)
        if client is None:
            client = self._clients[pending.client] = Client(pending.client)
        self._idle.pop(client.name, None)
        client.lines[pending.level][pending] = None
        client.count(pending, 1)
        self._count(pending, 1)
        self._place(client, now_s)

    def leave(self, pending: T, now_s: float, *, is_served: bool = False) -> None:
        """Remove a request.

        Args:
            pending: The request.
            now_s: the present time.
            is_served: whether its rows count against its client.
        """
        client = self._clients[pending.client]
        del client.lines[pending.level][pending]
        client.count(pending, -1)
        self._count(pending, -1)
        if is_served:
            level = self._levels[client.level]
            finished = client.finished[client.level] = client.start + max(pending.num_rows, 1)
            level.now = max(level.now, client.start)
            level.last_finish = max(level.last_finish, finished)
        self._place(client, now_s, was_served=is_served)
        if client.level:
            return
        self._idle[client.name] = None
        if len(self._idle) > MAX_IDLE:
            name, _ = self._idle.popitem(last=False)
            del self._clients[name]

    def next(self) -> T | None:
        """Return the next request; None if none waits."""
        firsts = [first for level in self._levels if (first := level.first()) is not None]
        if not firsts:
            return None
        client = min(firsts, key=lambda first: first.since_s + first.level * self._window_s)
        return client.next(self._window_s)

    def waiting(self, client: str, name: str) -> int:
        """Return how much of a client waits: "rows", "IDs" or "bytes"."""
        found = self._clients.get(client)
        return 0 if found is None else found.amount(name)

    def heaviest(self, name: str) -> Client[T] | None:
        """Return the client of which most waits; None if none waits. Looks at all that wait.

        Among clients with as much, it is the one that has waited less for its turn.
        """
        clients = [client for level in self._levels for client in level.clients.values()]
        return max(clients, key=lambda client: (client.amount(name), client.turn), default=None)

    def _count(self, pending: T, sign: int) -> None:
        self._waiting_rows += sign * max(pending.num_rows, 1)
        self._num_waiting += sign

    def _place(self, client: Client[T], now_s: float, *, was_served: bool = False) -> None:
        pending = client.next(self._window_s)
        level = 0 if pending is None else pending.level
        if level == client.level and not was_served:
            return
        was_idle = not client.level
        if client.level:
            left = self._levels[client.level]
            left.remove(client)
            if not left.clients and level != client.level:
                # Nobody waits there any more: nothing is owed.
                left.now = left.last_finish
        client.level = level
        if pending is None:
            return
        now = self._levels[level].now
        client.start = max(now, client.finished[level])
        if was_idle and client.start <= now + self._waiting_rows // self._num_waiting // _LITTLE_SHARE:
            client.start = now
        client.since_s = now_s
        self._last_turn += 1
        client.turn = self._last_turn
        client.place = (
            client.turn + min(max(pending.num_rows, 1), TURNS_AHEAD) - (TURNS_AHEAD if was_idle else 0)
        )
        self._levels[level].add(client)
