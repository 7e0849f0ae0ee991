"""The processes of the Python sender, seen from their parent: jobs out, progress and counts back."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from serve.bench.load.measured import Measured
from serve.bench.load.plan import Job, LoadError, Progress, Step
from serve.bench.load.worker import Failed, Ready, Tick, run

# Time between the ready state of all processes and the first request; the start message arrives in it.
_LEAD_S = 0.05
# A process is abandoned if it is silent for this long beyond the measured time and the requests' timeout.
_SILENCE_S = 60.0


class Workers:
    """The Python sender of one run; its processes connect once and make any number of measurements.

    Args:
        jobs: one for each process.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self.num_requests = 0

    def __enter__(self) -> Workers:
        context = multiprocessing.get_context("spawn")
        for job in self._jobs:
            here, there = context.Pipe()
            process = context.Process(target=run, args=(there,), daemon=True)
            process.start()
            there.close()
            here.send(job)
            self._pipes.append(here)
            self._processes.append(process)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            if kind is not None:
                process.terminate()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def measure(self, step: Step, progress: Progress | None = None) -> Measured:
        """Make one measurement.

        Args:
            step: what all processes measure together; each gets its share.
            progress: receives the seconds since the start, and the requests answered and failed so far.

        Raises:
            LoadError: a process failed.
        """
        for pipe, share in zip(self._pipes, shares(step, len(self._pipes)), strict=True):
            _tell(pipe, share)
        self.num_requests = sum(_expect(pipe, Ready).num_requests for pipe in self._pipes)
        start_s = time.monotonic() + _LEAD_S
        for pipe in self._pipes:
            _tell(pipe, start_s)
        return self._collect(start_s, step, progress)

    def _collect(self, start_s: float, step: Step, progress: Progress | None) -> Measured:
        total = Measured()
        ticks: dict[Connection, Tick] = {}
        open_pipes: list[Any] = list(self._pipes)
        timeout_s = max(job.target.timeout_s for job in self._jobs)
        last_s = start_s + step.warm_up_s + step.duration_s + timeout_s + _SILENCE_S
        while open_pipes:
            for pipe in wait(open_pipes, timeout=0.1):
                message = _receive(pipe)  # type: ignore[arg-type]
                if isinstance(message, Tick):
                    ticks[pipe] = message  # type: ignore[index]
                elif isinstance(message, Measured):
                    total.merge(message)
                    open_pipes.remove(pipe)
                else:
                    raise LoadError(
                        f"a sending process: got {type(message).__name__}, expected Tick or Measured"
                    )
            now_s = time.monotonic()
            if now_s > last_s:
                raise LoadError("a sending process no longer answers")
            if progress is not None:
                answered = sum(tick.num_answered for tick in ticks.values())
                progress(now_s - start_s, answered, sum(tick.num_failed for tick in ticks.values()))
        return total


def shares(step: Step, num_processes: int) -> list[Step]:
    """Return the share of each process in a step."""
    found = []
    for i in range(num_processes):
        num_in_flight = None
        if step.num_in_flight is not None:
            num_in_flight = len(range(i, step.num_in_flight, num_processes))
        rate_per_s = None if step.rate_per_s is None else step.rate_per_s / num_processes
        max_in_flight = math.ceil(step.max_in_flight / num_processes)
        found.append(
            replace(step, num_in_flight=num_in_flight, rate_per_s=rate_per_s, max_in_flight=max_in_flight)
        )
    return found


def _tell(pipe: Connection, message: Any) -> None:
    try:
        pipe.send(message)
    except OSError:
        _receive(pipe)  # raises the reason if the process sent one
        raise LoadError("a sending process has ended") from None


def _expect(pipe: Connection, kind: type[Ready]) -> Ready:
    message = _receive(pipe)
    if not isinstance(message, kind):
        raise LoadError(f"a sending process: got {type(message).__name__}, expected {kind.__name__}")
    return message


def _receive(pipe: Connection) -> Any:
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        raise LoadError("a sending process has ended") from None
    if isinstance(message, Failed):
        raise LoadError(message.text)
    return message
