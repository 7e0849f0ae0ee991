"""Traces of requests, sent to a collector without delaying requests.

A request is traced after it has ended, from the recorded times of its batch. OpenTelemetry runs in a thread
of its own; its packages are imported only if traces are enabled.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from recsys.base.machine import install_command
from recsys.options.kinds import ConfigError
from serve.config.settings import TraceConfig
from serve.engine.records import EndedRequest
from serve.threads import Worker

_MAX_WAITING = 2048
_MAX_EXPORTED = 256
# Time that a trace waits for others to be sent with it.
_COLLECT_S = 1.0
# Grace period for the last traces when the server stops.
_GRACE_S = 3.0


class SpanSink(Protocol):
    """Converts requests to spans and sends them; called in the tracer's thread."""

    def send(self, requests: Sequence[EndedRequest]) -> bool:
        """Send the requests and return whether the collector accepted them; blocks."""
        ...

    def close(self) -> None:
        """Abort the export in progress. May be called from another thread; idempotent."""
        ...


class Tracer:
    """Passes traced requests to a sink in a thread of its own. Thread-safe.

    Args:
        sink: creates and sends the spans.
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
        """Queue an ended request; never blocks."""
        if not self._requests.put(request):
            self._drop(1)

    def counts(self) -> dict[str, int]:
        """Return the number of ``dropped`` traces, for ``Metrics.watch``."""
        with self._lock:
            return {"dropped": self._num_dropped}

    def close(self) -> None:
        """Send the waiting traces, for a few seconds at most; idempotent."""
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
    """Return a tracer that sends to a collector over OTLP/gRPC.

    Raises:
        ConfigError: the endpoint is invalid, or the packages for traces are not installed.
    """
    url = urlsplit(config.endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(
            f"trace.endpoint: got {config.endpoint!r}, expected a URL such as http://127.0.0.1:4317 "
            "(https:// for TLS)"
        )
    try:
        from serve.observe.spans import otlp_sink
    except ImportError as error:
        raise ConfigError(
            f"trace: the package {error.name} is missing: {install_command(extra='otel')}"
        ) from error
    return Tracer(otlp_sink(config.endpoint))
