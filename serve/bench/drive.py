"""The loops that send: closed (an answer lets the next request go) and open (requests are due, answers or not)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator

import numpy as np

from serve.bench.measured import NOT_SENT, Failure, Recorder
from serve.bench.requests import Prepared
from serve.bench.senders import Sender

# A loop that has fallen behind lets answers in after so many requests.
_MOST_AT_ONCE = 8


def shuffled(requests: list[Prepared], generator: np.random.Generator) -> Iterator[Prepared]:
    """The requests over and over, in an order of their own each time."""
    while True:
        for i in generator.permutation(len(requests)).tolist():
            yield requests[i]


async def closed_loop(
    sender: Sender, requests: Iterator[Prepared], recorder: Recorder, num_in_flight: int, end_s: float
) -> None:
    """Keep so many requests unanswered until the time is over, or the requests are.

    Args:
        sender: sends.
        requests: in turn.
        recorder: counts.
        num_in_flight: requests at a time.
        end_s: when to stop, by ``time.monotonic``.
    """

    async def one_after_the_other() -> None:
        sent_s = time.monotonic()
        for request in requests:
            failure = await sender.send(request)
            done_s = time.monotonic()
            recorder.done(request, sent_s, sent_s, done_s, failure)
            sent_s = done_s
            if done_s >= end_s:
                return

    await asyncio.gather(*(one_after_the_other() for _ in range(num_in_flight)))


async def open_loop(
    sender: Sender, due: Iterable[tuple[float, Prepared]], recorder: Recorder, max_in_flight: int
) -> None:
    """Send each request when it is due, and wait for the last answer.

    Args:
        sender: sends.
        due: times, by ``time.monotonic``, ascending, with what is due then.
        recorder: counts.
        max_in_flight: what becomes due while so many are unanswered is not sent.
    """
    waiting: set[asyncio.Task[None]] = set()

    async def one(request: Prepared, due_s: float) -> None:
        sent_s = time.monotonic()
        failure = await sender.send(request)
        recorder.done(request, due_s, sent_s, time.monotonic(), failure)

    behind = 0
    for due_s, request in due:
        behind = 0 if await _wait_until(due_s) else behind + 1
        if behind >= _MOST_AT_ONCE:
            behind = 0
            await asyncio.sleep(0)
        if len(waiting) >= max_in_flight:
            failure = Failure(NOT_SENT, f"{max_in_flight} earlier requests were unanswered")
            recorder.done(request, due_s, due_s, due_s, failure)
            continue
        task = asyncio.create_task(one(request, due_s))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    if waiting:
        await asyncio.gather(*waiting)


async def _wait_until(due_s: float) -> bool:
    """False where there was nothing to wait for."""
    waited = False
    while (wait_s := due_s - time.monotonic()) > 0:
        await asyncio.sleep(wait_s)
        waited = True
    return waited


def until(end_s: float, times_s: Iterable[float]) -> Iterator[float]:
    """Times before the end."""
    return itertools.takewhile(lambda time_s: time_s < end_s, times_s)
