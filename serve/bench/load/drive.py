"""Arrival times of requests, and the loops that send them: closed (one answer, next request) and open."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from serve.bench.load.measured import NOT_SENT, Failure, Recorder
from serve.bench.load.plan import Recording
from serve.bench.load.requests import Prepared
from serve.bench.load.senders import Sender
from serve.bench.load.wires import Encode
from serve.observe.capture_file import CapturedRequest, CaptureReader

# A loop that has fallen behind reads answers after this many requests.
_MOST_AT_ONCE = 8
# Arrivals drawn at a time.
_DRAWN = 1024


def shuffled(requests: list[Prepared], generator: np.random.Generator) -> Iterator[Prepared]:
    """Yield the requests over and over, shuffled each time."""
    while True:
        for i in generator.permutation(len(requests)).tolist():
            yield requests[i]


async def closed_loop(
    sender: Sender, requests: Iterator[Prepared], recorder: Recorder, num_in_flight: int, end_s: float
) -> None:
    """Keep ``num_in_flight`` requests in flight until the end of the time or of the requests.

    Args:
        sender: sends the requests.
        requests: requests in the order in which they are sent.
        recorder: counts the answers.
        num_in_flight: number of unanswered requests.
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
        sender: sends the requests.
        due: ascending times, by ``time.monotonic``, with the request that is due then.
        recorder: counts the answers.
        max_in_flight: a request that becomes due while this many are unanswered is not sent.
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
    """Wait until a time; return False if it has passed already."""
    waited = False
    while (wait_s := due_s - time.monotonic()) > 0:
        await asyncio.sleep(wait_s)
        waited = True
    return waited


def until(end_s: float, times_s: Iterable[float]) -> Iterator[float]:
    """Return the times before the end."""
    return itertools.takewhile(lambda time_s: time_s < end_s, times_s)


def poisson(rate_per_s: float, generator: np.random.Generator) -> Iterator[float]:
    """Yield the times of a Poisson process, in seconds after its start: the arrivals of many independent clients.

    Processes with rates r1, r2, ... together are one with the rate r1 + r2 + ...

    Args:
        rate_per_s: mean number of arrivals in a second.
        generator: source of the gaps.
    """
    at_s = 0.0
    while True:
        times = at_s + np.cumsum(generator.exponential(1.0 / rate_per_s, _DRAWN))
        yield from times.tolist()
        at_s = float(times[-1])


def replayed(offsets_s: Sequence[float], speed: float) -> Iterator[float]:
    """Yield recorded times at another speed.

    Args:
        offsets_s: ascending times, from the start of the recording.
        speed: 2 is twice as fast.
    """
    return (offset_s / speed for offset_s in offsets_s)


def played(
    recording: Recording, encode: Encode, index: int, num_processes: int
) -> tuple[list[float], list[Prepared]]:
    """Return the requests that one process sends, with times in seconds after the recording's first one.

    Requests name the model that answered them, but no version. All are held in memory.

    Args:
        recording: the capture file.
        encode: turns a request into bytes of the protocol.
        index: number of the process.
        num_processes: processes that share the requests; each takes every ``num_processes``-th.

    Raises:
        CaptureError: the file is not a capture, or damaged.
    """
    offsets_s, requests = [], []
    with CaptureReader(recording.path) as reader:
        chosen = (one for one in reader if not recording.model or one.model == recording.model)
        first_us = -1
        for i, captured in enumerate(chosen):
            first_us = captured.time_us if first_us < 0 else first_us
            if i % num_processes == index:
                offsets_s.append(max(captured.time_us - first_us, 0) * 1e-6)
                requests.append(_prepared(captured, encode))
    return offsets_s, requests


def span(path: Path, model: str) -> tuple[int, float]:
    """Return the number of a model's requests (empty for all) in a capture, and the seconds they span.

    Raises:
        CaptureError: the file is not a capture, or damaged.
    """
    with CaptureReader(path) as reader:
        times_us = [one.time_us for one in reader if not model or one.model == model]
    return len(times_us), (max(times_us) - times_us[0]) * 1e-6 if times_us else 0.0


def _prepared(captured: CapturedRequest, encode: Encode) -> Prepared:
    request = captured.parse()
    request.model = captured.model
    return Prepared(data=encode(request), num_rows=request.num_rows)
