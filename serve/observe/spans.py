"""OpenTelemetry spans of requests. Imported only if traces are enabled: its packages are optional.

A request's span has a child for its wait in the queue and one for its batch, whose children are the batch's
stages. Requests of one batch each have these spans in their own trace; their batch spans link to the batch
span of the first request.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from serve.engine.records import BatchTimes, EndedRequest, read_traceparent
from serve.metrics.collector import server_version
from serve.observe.log_format import MAX_FIELD_CHARS

_Attributes = Mapping[str, str | int]
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
# Server errors by OpenTelemetry's conventions for gRPC servers; all others are client errors.
_ERRORS = frozenset({"failed", "unavailable", "expired"})
# Maximum number of remembered batches; the requests of one batch end at about the same time.
_MAX_BATCHES = 256


class SpanMaker:
    """Creates spans. Belongs to one thread.

    Args:
        began_ns: nanoseconds from the epoch to zero of ``time.monotonic``, so that all spans are on one clock.
    """

    def __init__(self, began_ns: int | None = None) -> None:
        self._began_ns = time.time_ns() - time.monotonic_ns() if began_ns is None else began_ns
        self._ids = RandomIdGenerator()
        self._resource = Resource.create(
            {"service.name": "recsys-serve", "service.version": server_version()}
        )
        self._scope = InstrumentationScope("recsys-serve", server_version())
        # By id of the times object that a batch's requests share; the value keeps that object alive.
        self._batches: OrderedDict[int, tuple[BatchTimes, SpanContext]] = OrderedDict()

    def spans(self, request: EndedRequest) -> Iterator[ReadableSpan]:
        """Yield all spans of one request, its own span first."""
        root = self._root(request)
        yield root
        times, enqueued_s = request.times, request.enqueued_s
        if not enqueued_s:  # the queue refused the request
            return
        left_s = request.ended_s if times is None else times.taken_s
        yield self._child(root.context, "queue", enqueued_s, left_s)
        if times is not None:
            yield from self._batch(root.context, times)

    def _root(self, request: EndedRequest) -> ReadableSpan:
        parent = read_traceparent(request.trace_parent)
        remote = None
        if parent is not None:
            remote = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=_SAMPLED)
        attributes: dict[str, str | int] = {
            "recsys.model": request.model[:MAX_FIELD_CHARS],
            "recsys.version": request.version[:MAX_FIELD_CHARS],
            "recsys.protocol": request.protocol,
            "recsys.outcome": request.outcome,
            "recsys.num_rows": request.num_rows,
            "recsys.num_ids": request.num_ids,
        }
        if request.request_id:
            attributes["recsys.request_id"] = request.request_id[:MAX_FIELD_CHARS]
        status = Status(StatusCode.UNSET)
        if request.outcome in _ERRORS:
            status = Status(StatusCode.ERROR, request.reason[:MAX_FIELD_CHARS])
        elif request.reason:
            attributes["recsys.reason"] = request.reason[:MAX_FIELD_CHARS]
        return ReadableSpan(
            name="predict",
            context=self._context(self._ids.generate_trace_id() if remote is None else remote.trace_id),
            parent=remote,
            resource=self._resource,
            attributes=attributes,
            kind=SpanKind.SERVER,
            status=status,
            start_time=self._ns(request.started_s),
            end_time=self._ns(request.ended_s),
            instrumentation_scope=self._scope,
        )

    def _batch(self, parent: SpanContext, times: BatchTimes) -> Iterator[ReadableSpan]:
        ends = [("collate", times.collated_s), ("execute", times.executed_s), ("respond", times.responded_s)]
        # Stages after a failure of the model have no time.
        ends = [(stage, end_s) for stage, end_s in ends if end_s]
        batch = self._child(
            parent,
            "batch",
            times.taken_s,
            ends[-1][1] if ends else times.taken_s,
            {"recsys.batch.num_requests": times.num_requests, "recsys.batch.num_rows": times.num_rows},
            self._links(times),
        )
        self._remember(times, batch.context)
        yield batch
        start_s = times.taken_s
        for stage, end_s in ends:
            yield self._child(batch.context, stage, start_s, end_s)
            start_s = end_s

    def _links(self, times: BatchTimes) -> tuple[Link, ...]:
        found = self._batches.get(id(times))
        return () if found is None else (Link(found[1]),)

    def _remember(self, times: BatchTimes, context: SpanContext) -> None:
        self._batches.setdefault(id(times), (times, context))
        if len(self._batches) > _MAX_BATCHES:
            self._batches.popitem(last=False)

    def _child(
        self,
        parent: SpanContext,
        name: str,
        start_s: float,
        end_s: float,
        attributes: _Attributes | None = None,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            context=self._context(parent.trace_id),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            links=links,
            start_time=self._ns(start_s),
            end_time=self._ns(end_s),
            instrumentation_scope=self._scope,
        )

    def _context(self, trace_id: int) -> SpanContext:
        return SpanContext(trace_id, self._ids.generate_span_id(), is_remote=False, trace_flags=_SAMPLED)

    def _ns(self, monotonic_s: float) -> int:
        return self._began_ns + round(monotonic_s * 1e9)


class ExporterSink:
    """Sends spans through an exporter of the SDK; see ``serve.observe.tracing.SpanSink``.

    Args:
        exporter: the exporter.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._maker = SpanMaker()
        self._closed = False

    def send(self, requests: Sequence[EndedRequest]) -> bool:
        """Export the spans and return whether the collector accepted them; blocks."""
        spans = [span for request in requests for span in self._maker.spans(request)]
        try:
            return self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception:
            logging.getLogger("serve.tracing").exception("traces could not be sent")
            return False

    def close(self) -> None:
        """Abort the export in progress; idempotent."""
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()


def otlp_sink(endpoint: str) -> ExporterSink:
    """Return a sink to an OTLP/gRPC collector; ``OTEL_EXPORTER_OTLP_*`` variables set all else.

    Args:
        endpoint: ``http://host:port``, or ``https://`` for TLS.
    """
    # The exporter logs every retry. Lost spans are counted, and an error is logged when all retries have
    # failed.
    logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter").setLevel(logging.ERROR)
    return ExporterSink(OTLPSpanExporter(endpoint=endpoint))
