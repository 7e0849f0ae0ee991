"""Traces of requests: which of them, and how they reach a collector without anybody waiting.

A request is traced after it has ended, from the times that its batch noted anyway. What OpenTelemetry needs happens
in a thread of its own; its packages are imported only where traces are asked for.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from serve.config import TraceConfig
from serve.ended import EndedRequest
from serve.traceparent import read_traceparent

_MAX_WAITING = 2048
_MAX_EXPORTED = 256
# How long a trace waits for others to be sent with.
_COLLECT_S = 1.0
# How long the last ones may take when the server ends.
_LAST_WORDS_S = 3.0


class SpanSink(Protocol):
    """Makes spans of requests and sends them; called in the tracer's thread."""

    def send(self, requests: Sequence[EndedRequest]) -> bool:
        """Blocks; whether the collector has them."""
        ...

    def close(self) -> None:
        """Give up what is being sent. May be called from another thread; idempotent."""
        ...


class Tracer:
    """Decides which requests are traced, and hands them on. Thread-safe.

    Args:
        sink: makes spans and sends them.
        share: of the requests whose client does not say.
        draw: returns numbers from 0 to 1, evenly.
    """

    def __init__(self, sink: SpanSink, share: float, draw: Callable[[], float] = random.random) -> None:
        self._sink = sink
        self._share = share
        self._draw = draw
        self._changed = threading.Condition()
        self._waiting: deque[EndedRequest] = deque()
        self._num_dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def start(self, trace_parent: str) -> bool:
        """Whether a request is to be traced: as its client says, or else by the share.

        Args:
            trace_parent: the W3C ``traceparent`` header; empty where the client sent none.
        """
        parent = read_traceparent(trace_parent) if trace_parent else None
        return self._draw() < self._share if parent is None else parent.is_sampled

    def record(self, request: EndedRequest) -> None:
        """Trace a request that has ended; never blocks."""
        with self._changed:
            if self._closed or len(self._waiting) >= _MAX_WAITING:
                self._num_dropped += 1
                return
            self._waiting.append(request)
            # The first sets the time going; a full load need not wait for it.
            if len(self._waiting) in (1, _MAX_EXPORTED):
                self._changed.notify()

    def counts(self) -> dict[str, int]:
        """How many requests' traces were ``dropped``, for ``Metrics.watch``."""
        with self._changed:
            return {"dropped": self._num_dropped}

    def close(self) -> None:
        """Send what waits, for a few seconds at most; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(_LAST_WORDS_S)
        self._sink.close()
        self._thread.join(_LAST_WORDS_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(
                    lambda: len(self._waiting) >= _MAX_EXPORTED or self._closed, timeout=_COLLECT_S
                )
                if not self._waiting:
                    return
                requests = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_EXPORTED))]
            if not self._sink.send(requests):
                with self._changed:
                    self._num_dropped += len(requests)


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
        from serve.spans import otlp_sink
    except ImportError as error:
        raise ValueError(
            f"trace: the package {error.name} is missing; install the extra: pip install 'recsys-serving[otel]'"
        ) from error
    return Tracer(otlp_sink(config.endpoint), config.share)
