"""A process of the Python sender. It runs its parent's steps one by one, over a pipe, until the pipe ends.

The parent's messages: a ``Job``; then, for each measurement, a ``Step`` and, once all processes are ready, the time at
which it starts (by the clock that all processes of a machine share). The answers: ``Ready``, ``Tick`` at
intervals, ``Measured``; or ``Failed``, and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from serve.bench.load.drive import closed_loop, open_loop, played, poisson, replayed, shuffled, until
from serve.bench.load.measured import Measured, Recorder
from serve.bench.load.plan import Job, Step
from serve.bench.load.pool import prepare, request_generator
from serve.bench.load.requests import Prepared
from serve.bench.load.senders import Sender, sender
from serve.bench.load.wires import encoder
from serve.wire import predict_pb2 as wire

_TICK_S = 0.25
# Keys of separate random streams of processes and steps (numpy's SeedSequence); 0 is for the requests.
_ORDER, _ARRIVALS = 1, 2


@dataclass(frozen=True)
class Ready:
    """The process has connected and waits for the start time."""

    num_requests: int


@dataclass(frozen=True)
class Tick:
    """The progress of a measurement.

    Attributes:
        num_answered: answered requests of the measured time so far.
        num_failed: failed requests of the measured time so far.
    """

    num_answered: int
    num_failed: int


@dataclass(frozen=True)
class Failed:
    """Nothing can be measured; the message says why."""

    text: str


class _Worker:
    """State of the process between steps."""

    def __init__(self, job: Job, parent: Connection) -> None:
        self._job = job
        self._parent = parent
        metadata = wire.ModelMetadata.FromString(job.metadata)
        encode = encoder(job.target.protocol, metadata)
        self._offsets_s: Sequence[float] = ()
        if job.recording is None:
            generator = request_generator(job.seed, job.index)
            self._requests = prepare(metadata, job.shape, encode, generator, job.seed)
        else:
            self._offsets_s, self._requests = played(job.recording, encode, job.index, job.num_processes)
        model = job.shape.model or metadata.model
        self._sender: Sender = sender(job.target, model, job.shape.version)

    async def serve(self) -> None:
        """Run steps until the pipe is closed."""
        loop = asyncio.get_running_loop()
        opened = False
        while (step := await loop.run_in_executor(None, self._receive)) is not None:
            if not opened:
                await self._sender.open()
                opened = True
            self._parent.send(Ready(len(self._requests)))
            start_s = await loop.run_in_executor(None, self._receive)
            if start_s is None:
                break
            self._parent.send(await self._measure(step, start_s))
        await self._sender.close()

    def _receive(self) -> Any:
        """Return the parent's next message; None if the parent has exited."""
        try:
            return self._parent.recv()
        except (EOFError, OSError):
            return None

    async def _measure(self, step: Step, start_s: float) -> Measured:
        begin_s = start_s + step.warm_up_s
        end_s = begin_s + step.duration_s
        recorder = Recorder(begin_s, end_s, by_due=step.is_open)
        watch = asyncio.create_task(self._watch(recorder.measured, begin_s, end_s))
        await asyncio.sleep(max(start_s - time.monotonic(), 0.0))
        if step.num_in_flight is not None:
            requests = self._in_turn(step)
            await closed_loop(self._sender, requests, recorder, step.num_in_flight, end_s)
        else:
            due = zip(until(end_s, self._times_s(step, start_s)), self._in_turn(step), strict=False)
            await open_loop(self._sender, due, recorder, step.max_in_flight)
        if self._job.recording is not None:
            recorder.measured.elapsed_s = min(time.monotonic(), end_s) - begin_s
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
        return recorder.measured

    async def _watch(self, measured: Measured, begin_s: float, end_s: float) -> None:
        """Report progress to the parent, and measure the process's share of a core."""
        await asyncio.sleep(max(begin_s - time.monotonic(), 0.0))
        first_s, first_cpu_s = time.monotonic(), time.process_time()

        def share() -> float:
            return (time.process_time() - first_cpu_s) / max(time.monotonic() - first_s, 1e-9)

        try:
            while time.monotonic() < end_s:
                await asyncio.sleep(max(min(_TICK_S, end_s - time.monotonic()), 0.001))
                self._parent.send(Tick(measured.num_in_time, measured.num_failed))
                measured.cpu_shares = [share()]
        finally:
            measured.cpu_shares = measured.cpu_shares or [share()]

    def _generator(self, what: int, step: int) -> np.random.Generator:
        return np.random.default_rng([self._job.seed, self._job.index, what, step])

    def _in_turn(self, step: Step) -> Iterator[Prepared]:
        if self._job.recording is not None:
            return iter(self._requests)
        return shuffled(self._requests, self._generator(_ORDER, step.number))

    def _times_s(self, step: Step, start_s: float) -> Iterable[float]:
        """Return the due times of requests, on the clock."""
        if step.rate_per_s is not None:
            offsets_s = poisson(step.rate_per_s, self._generator(_ARRIVALS, step.number))
        else:
            assert self._job.recording is not None
            offsets_s = replayed(self._offsets_s, self._job.recording.speed or 1.0)
        return (start_s + offset_s for offset_s in offsets_s)


def run(parent: Connection) -> None:
    """Run the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends the run.
    try:
        job = parent.recv()
        factory = None if job.target.protocol == "rest" else _loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_Worker(job, parent).serve())
    except (OSError, ValueError, EOFError) as error:
        with contextlib.suppress(OSError):
            parent.send(Failed(str(error)))


def _loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose timers are exact to microseconds: epoll, asyncio's default, counts in milliseconds.

    It supports at most 1024 files, so HTTP, which needs a connection per request, cannot use it.
    """
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
