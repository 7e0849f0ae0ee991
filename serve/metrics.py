"""What the server counts and times, for Prometheus, in a registry of its own."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

OUTCOMES = (
    "ok",
    "invalid",
    "not_found",
    "rejected",
    "expired",
    "cancelled",
    "unavailable",
    "failed",
)
STAGES = ("queue", "collate", "execute", "respond")
# 50 µs to 1 s, in steps of about two: a lookup on one row takes the first, a queue under overload the last.
_SECONDS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0)
_ROWS = tuple(2**power for power in range(0, 14))
_IDS = tuple(4**power for power in range(2, 12))


class Metrics:
    """All metrics of one server. Thread-safe.

    Attributes:
        registry: what ``start_metrics_server`` shows.
        num_accepted: counts requests that joined the queue.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests = Counter(
            "recsys_requests", "Predict requests by outcome", ["outcome"], registry=self.registry
        )
        seconds = Histogram(
            "recsys_stage_seconds",
            "Time by stage: queue per request; collate, execute and respond per batch",
            ["stage"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._requests = {outcome: requests.labels(outcome) for outcome in OUTCOMES}
        self._seconds = {stage: seconds.labels(stage) for stage in STAGES}
        self._batch_rows = Histogram(
            "recsys_batch_rows", "Rows of each batch", registry=self.registry, buckets=_ROWS
        )
        self._batch_ids = Histogram(
            "recsys_batch_ids", "IDs of each batch", registry=self.registry, buckets=_IDS
        )
        self._batch_requests = Histogram(
            "recsys_batch_requests", "Requests of each batch", registry=self.registry, buckets=_ROWS
        )
        self.accepted = Counter(
            "recsys_requests_accepted", "Predict requests that joined the queue", registry=self.registry
        )
        self.pending_rows = Gauge(
            "recsys_pending_rows", "Rows that wait in the queue", registry=self.registry
        )
        self.pending_ids = Gauge("recsys_pending_ids", "IDs that wait in the queue", registry=self.registry)
        self.table_bytes = Gauge(
            "recsys_table_bytes", "Bytes of each table's rows", ["table"], registry=self.registry
        )
        self.model = Gauge(
            "recsys_model_info",
            "1 for the model that is being served",
            ["model", "version", "target"],
            registry=self.registry,
        )

    def count(self, outcome: str) -> None:
        """Count one request that has ended, by one of ``OUTCOMES``."""
        self._requests[outcome].inc()

    def observe(self, stage: str, seconds: float) -> None:
        """Add one time to one of ``STAGES``."""
        self._seconds[stage].observe(seconds)

    def observe_batch(self, num_requests: int, num_rows: int, num_ids: int) -> None:
        """Add one batch."""
        self._batch_requests.observe(num_requests)
        self._batch_rows.observe(num_rows)
        self._batch_ids.observe(num_ids)

    def outcomes(self) -> dict[str, int]:
        """Requests so far by outcome, and how many were ``accepted`` into the queue."""
        names = {"recsys_requests_total", "recsys_requests_accepted_total"}
        samples = [s for metric in self.registry.collect() for s in metric.samples if s.name in names]
        return {s.labels.get("outcome", "accepted"): int(s.value) for s in samples}


class MetricsServer:
    """Shows a registry over HTTP at ``/metrics``, in a thread of its own.

    Args:
        metrics: what to show.
        host: the address to listen on.
        port: 0 lets the system choose.

    Raises:
        OSError: the port is taken or the address is not this machine's.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
        self._server: WSGIServer = server
        self._thread: threading.Thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop listening; idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
