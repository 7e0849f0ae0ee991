"""Who sees requests come and go: the log, traces, captures. Made of a server's settings, each only where asked for."""

from __future__ import annotations

import time

import grpc

from serve.capture import Capture
from serve.config import ServerConfig
from serve.ended import EndedRequest
from serve.gateway import Call, Watcher
from serve.hosted import HostedModel
from serve.logs import RequestLog, log_counts
from serve.metrics import Metrics
from serve.raw import RawRequestLike
from serve.tracing import Tracer, make_tracer


class Watchers:
    """All watchers of one server.

    Args:
        config: says which there are.
        metrics: shows what they drop.

    Raises:
        OSError: the capture's file cannot be made.
        ValueError: traces are asked for, and what they need is not installed.
    """

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self._capture = None if config.capture is None else Capture(config.capture)
        self._tracer = None if config.trace is None else make_tracer(config.trace)
        watchers: list[Watcher] = []
        metrics.watch("log", log_counts)
        if self._capture is not None:
            metrics.watch("capture", self._capture.counts)
            watchers.append(CaptureWatcher(self._capture))
        if self._tracer is not None:
            metrics.watch("trace", self._tracer.counts)
        if config.log.requests != "none" or self._tracer is not None:
            watchers.append(EndWatcher(RequestLog(config.log), self._tracer))
        self.all = tuple(watchers)

    def close(self) -> None:
        """Write what is left; blocks, for a few seconds at most."""
        if self._capture is not None:
            self._capture.close()
        if self._tracer is not None:
            self._tracer.close()


class CaptureWatcher:
    """A sample of the requests, to a file."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def accepted(self, raw: RawRequestLike, hosted: HostedModel) -> None:
        """See ``Watcher``."""
        self._capture.offer(raw, hosted.name, hosted.version)

    def ended(self, call: Call, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """Nothing to write any more."""


class EndWatcher:
    """A line of the log and a trace, for each request that is to have one.

    Args:
        log: knows which requests get a line.
        tracer: knows which are traced; None for none.
    """

    def __init__(self, log: RequestLog, tracer: Tracer | None) -> None:
        self._log = log
        self._tracer = tracer

    def accepted(self, raw: RawRequestLike, hosted: HostedModel) -> None:
        """Nothing to say yet."""

    def ended(self, call: Call, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """See ``Watcher``."""
        tracer = self._tracer
        if tracer is not None and not tracer.start(call.incoming.trace_parent):
            tracer = None
        is_logged = self._log.takes(outcome)
        if tracer is None and not is_logged:
            return  # most requests: nothing is built for them
        request = _ended(call, outcome, code, reason)
        if is_logged:
            self._log.write(request)
        if tracer is not None:
            tracer.record(request)


def _ended(call: Call, outcome: str, code: grpc.StatusCode, reason: str) -> EndedRequest:
    incoming, hosted, pending = call.incoming, call.hosted, call.pending
    return EndedRequest(
        trace_parent=incoming.trace_parent,
        protocol=incoming.protocol,
        model=incoming.model if hosted is None else hosted.name,
        version=incoming.version if hosted is None else hosted.version,
        request_id=incoming.request_id,
        outcome=outcome,
        code=code.name,
        reason=reason,
        num_rows=0 if pending is None else pending.num_rows,
        num_ids=0 if pending is None else pending.num_ids,
        started_s=call.started_s,
        ended_s=time.monotonic(),
        enqueued_s=None if pending is None else pending.enqueued_s,
        times=None if pending is None else pending.payload.times,
    )
