"""Traces of requests, and how they reach a collector without any request waiting.

A request is traced after it has ended, from the times that its batch noted anyway. What OpenTelemetry needs happens
in a thread of its own; its packages are imported only where traces are asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from serve.config.settings import TraceConfig
from serve.engine.records import EndedRequest
from serve.threads import Worker

_MAX_WAITING = 2048
_MAX_EXPORTED = 256
# How long a trace waits for others to be sent with.
_COLLECT_S = 1.0
# How long the last ones may take when the server ends.
_GRACE_S = 3.0


class SpanSink(Protocol):
    """Makes spans of requests and sends them; called in the tracer's thread."""

    def send(self, requests: Sequence[EndedRequest]) -> bool:
        """Blocks; whether the collector has them."""
        ...

    def close(self) -> None:
        """Give up what is being sent. May be called from another thread; idempotent."""
        ...


class Tracer:
    """Hands requests that are traced on to a sink, in a thread of its own. Thread-safe.

    Args:
        sink: makes spans and sends them.
    """

    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._num_dropped = 0
        self._requests: Worker[EndedRequest] = Worker(
            "traces",
            self._send,
            max_waiting=_MAX_WAITING,
            max_taken=_MAX_EXPORTED,
            collect_s=_COLLECT_S,
        )

    def record(self, request: EndedRequest) -> None:
        """Trace a request that has ended; never blocks."""
        if not self._requests.put(request):
            self._drop(1)

    def counts(self) -> dict[str, int]:
        """Return how many requests' traces were ``dropped``, for ``Metrics.watch``."""
        with self._lock:
            return {"dropped": self._num_dropped}

    def close(self) -> None:
        """Send what waits, for a few seconds at most; idempotent."""
        self._requests.close(_GRACE_S)
        self._sink.close()
        self._requests.close(_GRACE_S)

    def _send(self, requests: list[EndedRequest]) -> None:
        if not self._sink.send(requests):
            self._drop(len(requests))

    def _drop(self, count: int) -> None:
        with self._lock:
            self._num_dropped += count


def make_tracer(config: TraceConfig) -> Tracer:
    """A tracer that sends to a collector over OTLP/gRPC.

    Raises:
        ValueError: the endpoint is none, or the packages that traces need are not installed.
    """
    url = urlsplit(config.endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(
            f"endpoint: got {config.endpoint!r}, expected a URL such as http://127.0.0.1:4317 "
            "(https:// for TLS)"
        )
    try:
        from serve.observe.spans import otlp_sink
    except ImportError as error:
        raise ValueError(
            f"trace: the package {error.name} is missing; install the extra: pip install 'recsys-serving[otel]'"
        ) from error
    return Tracer(otlp_sink(config.endpoint))
