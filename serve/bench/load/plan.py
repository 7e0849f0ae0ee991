"""Instructions for a sender. Plain values, because they are sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from serve.bench.load.requests import Shape
from serve.client import ClientTls

#: Receives the seconds since the start of a measurement, and the requests answered and failed so far.
Progress = Callable[[float, int, int], None]


class LoadError(RuntimeError):
    """Nothing was measured; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go.

    Attributes:
        address: ``host:port``.
        protocol: one of ``serve.bench.load.wires.PROTOCOLS``.
        stream: whether requests go over streams, one for each connection.
        num_connections: connections of one process.
        timeout_s: timeout of a request without a deadline of its own.
        tls: None for plain text.
    """

    address: str
    protocol: str = "recsys"
    stream: bool = False
    num_connections: int = 1
    timeout_s: float = 30.0
    tls: ClientTls | None = None


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Captured requests to send instead of generated ones.

    Attributes:
        path: the file.
        speed: 2 sends twice as fast as recorded; None as fast as answers arrive.
        model: only the requests for this model are sent; empty for all.
    """

    path: Path
    speed: float | None = 1.0
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of a sender for one run.

    Attributes:
        target: where requests go.
        metadata: serialized metadata of the model.
        shape: shape of generated requests.
        recording: recording to send instead.
        seed: seed of the run; each process derives its own from it.
        index: number of the process.
        num_processes: processes that share the work.
    """

    target: Target
    metadata: bytes
    shape: Shape = field(default_factory=Shape)
    recording: Recording | None = None
    seed: int = 0
    index: int = 0
    num_processes: int = 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """One measurement. With neither a rate nor a number in flight, a recording sets the pace.

    Attributes:
        duration_s: measured time.
        warm_up_s: time before it.
        num_in_flight: closed loop: requests that are unanswered at any time.
        rate_per_s: open loop: requests due per second, whether or not earlier ones are answered.
        max_in_flight: open loop: a request that becomes due beyond this is not sent and counts as failed.
        number: number of the step; each has arrivals of its own.
    """

    duration_s: float
    warm_up_s: float = 0.0
    num_in_flight: int | None = None
    rate_per_s: float | None = None
    max_in_flight: int = 10_000
    number: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the loop is open."""
        return self.num_in_flight is None
