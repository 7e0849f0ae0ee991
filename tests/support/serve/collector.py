"""An OpenTelemetry collector on loopback that keeps what it gets."""

from __future__ import annotations

from concurrent import futures
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Listens within a ``with`` block.

    Attributes:
        endpoint: as servers are told it.
        requests: every ``ExportTraceServiceRequest``.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(1))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Called by exporters."""
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[Any]:
        """All spans so far, as messages."""
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def __enter__(self) -> Collector:
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop(None).wait()
