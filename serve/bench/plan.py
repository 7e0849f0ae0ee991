"""What the processes are told to do. Plain values: they travel to processes of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from serve.bench.requests import Shape
from serve.client import ClientTls


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go.

    Attributes:
        address: ``host:port``.
        protocol: one of ``serve.bench.wires.PROTOCOLS``.
        stream: whether they go over streams, one for each connection.
        num_connections: of one process.
        timeout_s: of a request without a deadline of its own.
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
    """Captured requests to send instead of made ones.

    Attributes:
        path: the file.
        speed: 2 sends twice as fast as it was recorded; None as fast as answers come.
        model: of the model whose requests are played; empty for all.
    """

    path: Path
    speed: float | None = 1.0
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process prepares once.

    Attributes:
        target: where requests go.
        metadata: the model's, serialized.
        shape: of the requests that are made.
        recording: takes their place.
        seed: of the run; every process makes something of its own of it.
        index: of the process.
        num_processes: that share the work.
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
    """One measurement by one process. With neither a rate nor a number in flight a recording sets the pace.

    Attributes:
        duration_s: that is measured.
        warm_up_s: before that.
        num_in_flight: a closed loop: so many requests wait for their answers at any time.
        rate_per_s: an open loop: so many requests become due every second, answers or not.
        max_in_flight: of an open loop; what becomes due beyond that is not sent, and counts as failed.
        number: of the step; each has arrivals of its own.
    """

    duration_s: float
    warm_up_s: float = 0.0
    num_in_flight: int | None = None
    rate_per_s: float | None = None
    max_in_flight: int = 10_000
    number: int = 0

    @property
    def is_open(self) -> bool:
        """Whether requests are due at times of their own."""
        return self.num_in_flight is None
