"""The collector of Prometheus' metric families; docs/operate/metrics.md describes each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from recsys.base.machine import package_version
from recsys.base.table_names import short_names
from serve.metrics.counters import ANSWER_RESULTS, CAPTURE_RESULTS, STATES, HistogramTotals, ModelTotals
from serve.metrics.streams import StreamState, StreamStatus

_Family = CounterMetricFamily | GaugeMetricFamily
_MODEL = ("model", "version")
# Why connections were closed, and under which name the engine counts them.
_CLOSED_REASONS = {
    "too_many": "refused",
    "silent": "closed_silent",
    "resets": "closed_resets",
    "control_frames": "closed_control_frames",
    "headers": "closed_headers",
    "memory": "closed_memory",
}


class MetricsSource(Protocol):
    """The source of a collector, such as ``serve.metrics.registry.Metrics``."""

    def read(self) -> tuple[list[ModelTotals], dict[tuple[str, str], str]]:
        """Return the counters of every loaded version, and the state of every version that has one."""
        ...

    def read_streams(self) -> dict[tuple[str, str], StreamStatus]:
        """Return the status of the stream of deltas of every loaded version that has one."""
        ...

    def read_unrouted(self) -> dict[str, int]:
        """Return the number of requests that named no loaded model, by outcome."""
        ...

    def read_watched(self) -> dict[str, dict[str, int]]:
        """Return counts by result of ``capture``, ``answers``, ``log``, ``trace`` and ``port``, if present."""
        ...


class MetricsCollector(Collector):
    """A Prometheus collector; reads its source on each collection.

    Args:
        source: the source of the counters.
        now: returns the present time in seconds since the epoch.
    """

    def __init__(self, source: MetricsSource, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._server_version = server_version()

    def describe(self) -> Iterable[Metric]:
        """Yield the families without samples, for the registry to learn their names."""
        yield from self._families([], {}, {}, {})
        yield from _streams({}, 0.0)

    def collect(self) -> Iterable[Metric]:
        """Yield every family with its current samples."""
        models, states = self._source.read()
        yield from self._families(models, states, self._source.read_unrouted(), self._source.read_watched())
        yield from _streams(self._source.read_streams(), self._now())

    def _families(
        self,
        models: Sequence[ModelTotals],
        states: dict[tuple[str, str], str],
        unrouted: dict[str, int],
        watched: dict[str, dict[str, int]],
    ) -> Iterator[Metric]:
        yield from _requests(models, unrouted)
        yield from _batches(models)
        yield from _queues(models)
        yield from _tables(models)
        yield from _parts(models, "context_cache", _CONTEXT_CACHE)
        yield from _parts(models, "outside_rows", _OUTSIDE_ROWS)
        yield _outside_seconds(models)
        yield _info(models)
        yield _states(states)
        yield from _watched(watched)
        yield from _port(watched.get("port", {}))
        server = GaugeMetricFamily("recsys_server_info", "1, with the server's version", labels=("version",))
        server.add_metric((self._server_version,), 1)
        yield server


def _requests(models: Sequence[ModelTotals], unrouted: dict[str, int]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "recsys_requests", "Predict requests that have ended, by outcome", labels=(*_MODEL, "outcome")
    )
    accepted = CounterMetricFamily(
        "recsys_requests_accepted", "Predict requests that joined the queue", labels=_MODEL
    )
    seconds = HistogramMetricFamily(
        "recsys_request_seconds", "Time of answered requests, from arrival to answer", labels=_MODEL
    )
    for outcome, count in unrouted.items():
        requests.add_metric(("", "", outcome), count)
    for totals in models:
        for outcome, count in totals.outcomes.items():
            requests.add_metric((totals.model, totals.version, outcome), count)
        accepted.add_metric((totals.model, totals.version), totals.accepted)
        _add(seconds, (totals.model, totals.version), totals.request)
    yield from (requests, accepted, seconds)


def _batches(models: Sequence[ModelTotals]) -> Iterator[Metric]:
    stages = HistogramMetricFamily(
        "recsys_stage_seconds",
        "Time by stage: queue per request; collate, execute and respond per batch",
        labels=(*_MODEL, "stage"),
    )
    requests = HistogramMetricFamily("recsys_batch_requests", "Requests of each batch", labels=_MODEL)
    rows = HistogramMetricFamily("recsys_batch_rows", "Rows of each batch", labels=_MODEL)
    ids = HistogramMetricFamily("recsys_batch_ids", "IDs of each batch", labels=_MODEL)
    cut = CounterMetricFamily(
        "recsys_cut_requests", "Requests whose rows several executors have computed", labels=_MODEL
    )
    for totals in models:
        key = (totals.model, totals.version)
        for stage, seconds in totals.stages.items():
            _add(stages, (*key, stage), seconds)
        _add(requests, key, totals.batch_requests)
        _add(rows, key, totals.batch_rows)
        _add(ids, key, totals.batch_ids)
        cut.add_metric(key, totals.cut_requests)
    yield from (stages, requests, rows, ids, cut)


def _queues(models: Sequence[ModelTotals]) -> Iterator[Metric]:
    for unit, what in (("rows", "Rows"), ("ids", "IDs"), ("bytes", "Bytes of requests")):
        pending = GaugeMetricFamily(f"recsys_pending_{unit}", f"{what} that wait in the queue", labels=_MODEL)
        limit = GaugeMetricFamily(
            f"recsys_pending_limit_{unit}", f"{what} that may wait; more are refused", labels=_MODEL
        )
        for totals in models:
            key = (totals.model, totals.version)
            pending.add_metric(key, getattr(totals.pending, unit))
            if totals.description is not None:
                limit.add_metric(key, getattr(totals.description.limits, f"max_queue_{unit}"))
        yield from (pending, limit)
    executors = GaugeMetricFamily("recsys_executors", "Threads that run batches", labels=_MODEL)
    for totals in models:
        if totals.description is not None:
            executors.add_metric((totals.model, totals.version), totals.description.num_executors)
    yield executors


def _tables(models: Sequence[ModelTotals]) -> Iterator[Metric]:
    tables = GaugeMetricFamily("recsys_table_bytes", "Bytes of each table's rows", labels=(*_MODEL, "table"))
    pages = GaugeMetricFamily(
        "recsys_rows_bytes", "Bytes of rows in host memory, when they were loaded", labels=(*_MODEL, "pages")
    )
    applied = CounterMetricFamily("recsys_deltas_applied", "Table deltas that were applied", labels=_MODEL)
    failed = CounterMetricFamily("recsys_deltas_failed", "Table deltas that were refused", labels=_MODEL)
    shadow = CounterMetricFamily(
        "recsys_shadow",
        "Answers of a shadow version, compared with those that clients got",
        labels=(*_MODEL, "result"),
    )
    for totals in models:
        key = (totals.model, totals.version)
        names = short_names(totals.table_bytes)
        for table, num_bytes in totals.table_bytes.items():
            tables.add_metric((*key, names[table]), num_bytes)
        if totals.description is not None:
            held = totals.description.rows_pages
            pages.add_metric((*key, "resident"), held.resident_bytes)
            pages.add_metric((*key, "huge"), held.huge_bytes)
            pages.add_metric((*key, "locked"), held.locked_bytes)
        applied.add_metric(key, totals.deltas_applied)
        failed.add_metric(key, totals.deltas_failed)
        for result, count in totals.shadow.items():
            shadow.add_metric((*key, result), count)
    yield from (tables, pages, applied, failed, shadow)


_CONTEXT_CACHE = (
    (CounterMetricFamily, "hits", "Contexts of batches whose values the context cache held"),
    (CounterMetricFamily, "misses", "Contexts of batches that the context cache did not hold"),
    (CounterMetricFamily, "grown", "Contexts that were computed on from what it held of a shorter history"),
    (CounterMetricFamily, "evictions", "Contexts that left the context cache to make room"),
    (GaugeMetricFamily, "bytes", "Memory that the context cache holds"),
)
_OUTSIDE_ROWS = (
    (CounterMetricFamily, "hits", "Rows outside the process that batches found in the cache"),
    (CounterMetricFamily, "misses", "Rows outside the process that batches read from nodes"),
    (CounterMetricFamily, "read_bytes", "Bytes of rows that nodes sent"),
    (CounterMetricFamily, "failures", "Reads of nodes that failed"),
    (CounterMetricFamily, "hedged", "Reads that replicas were asked for too"),
    (CounterMetricFamily, "zeros", "Rows that were answered as zeros, because they could not be read"),
    (GaugeMetricFamily, "cache_bytes", "Memory that the cache of rows outside the process holds"),
)


def _parts(
    models: Sequence[ModelTotals], part: str, families: Sequence[tuple[type[_Family], str, str]]
) -> Iterator[Metric]:
    """Yield a family for each field of a part of the models' totals."""
    for kind, field, text in families:
        family = kind(f"recsys_{part}_{field}", text, labels=_MODEL)
        for totals in models:
            family.add_metric((totals.model, totals.version), getattr(getattr(totals, part), field))
        yield family


def _outside_seconds(models: Sequence[ModelTotals]) -> Metric:
    seconds = HistogramMetricFamily(
        "recsys_outside_rows_read_seconds", "Time that a batch waited for rows of nodes", labels=_MODEL
    )
    for totals in models:
        _add(seconds, (totals.model, totals.version), totals.outside_rows.seconds)
    return seconds


def _info(models: Sequence[ModelTotals]) -> Metric:
    info = GaugeMetricFamily(
        "recsys_model_info", "1 for each loaded version", labels=(*_MODEL, "target", "digest")
    )
    for totals in models:
        if totals.description is not None:
            about = totals.description
            info.add_metric((totals.model, totals.version, about.target, about.digest), 1)
    return info


def _states(states: dict[tuple[str, str], str]) -> Metric:
    family = GaugeMetricFamily(
        "recsys_model_state",
        "1 for the state that a version is in, 0 for the others",
        labels=(*_MODEL, "state"),
    )
    for (model, version), present in states.items():
        for state in STATES:
            family.add_metric((model, version, state), float(state == present))
    return family


def _streams(streams: Mapping[tuple[str, str], StreamStatus], now_s: float) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "recsys_delta_stream_state",
        "1 for the state that a version's stream of deltas is in, 0 for the others",
        labels=(*_MODEL, "state"),
    )
    pending = GaugeMetricFamily(
        "recsys_deltas_pending", "Deltas of the stream that wait to be applied", labels=_MODEL
    )
    created = GaugeMetricFamily(
        "recsys_delta_created_timestamp_seconds", "When the last applied delta was made", labels=_MODEL
    )
    lag = GaugeMetricFamily(
        "recsys_delta_lag_seconds", "Time since the last applied delta was made", labels=_MODEL
    )
    delay = GaugeMetricFamily(
        "recsys_delta_delay_seconds",
        "Time from when the last applied delta was made until it was applied",
        labels=_MODEL,
    )
    for key, status in streams.items():
        for one in StreamState:
            state.add_metric((*key, one.value), float(status.state is one))
        pending.add_metric(key, status.num_pending)
        if status.last:
            created.add_metric(key, status.last_created_s)
            lag.add_metric(key, max(0.0, now_s - status.last_created_s))
            delay.add_metric(key, status.last_delay_s)
    yield from (state, pending, created, lag, delay)


def _watched(watched: dict[str, dict[str, int]]) -> Iterator[Metric]:
    capture = CounterMetricFamily(
        "recsys_captured_requests", "Sampled requests, by what became of them", labels=("result",)
    )
    for result in CAPTURE_RESULTS:
        capture.add_metric((result,), watched.get("capture", {}).get(result, 0))
    yield capture
    answers = CounterMetricFamily(
        "recsys_answer_log_requests",
        "Requests for the log of answers, by what became of them",
        labels=("result",),
    )
    for result in ANSWER_RESULTS:
        answers.add_metric((result,), watched.get("answers", {}).get(result, 0))
    yield answers
    for what, name, text in (
        ("log", "recsys_log_records_dropped", "Log records that were lost because writing was too slow"),
        (
            "trace",
            "recsys_traces_dropped",
            "Traces of requests that were lost because the collector was too slow, or away",
        ),
    ):
        family = CounterMetricFamily(name, text)
        family.add_metric((), watched.get(what, {}).get("dropped", 0))
        yield family


def _port(counts: dict[str, int]) -> Iterator[Metric]:
    """Yield the families of the inference port's connections; without samples if the engine counts none."""
    closed = CounterMetricFamily(
        "recsys_connections_closed", "Connections that the server closed or refused", labels=("reason",)
    )
    for reason, key in _CLOSED_REASONS.items():
        if counts:
            closed.add_metric((reason,), counts[key])
    yield closed
    for kind, name, key, text in (
        (GaugeMetricFamily, "recsys_connections", "open", "Open connections"),
        (CounterMetricFamily, "recsys_connections_accepted", "accepted", "Connections that were opened"),
        (
            CounterMetricFamily,
            "recsys_connections_moved",
            "moved",
            "Connections that went from one polling thread to another",
        ),
        (
            CounterMetricFamily,
            "recsys_stream_resets",
            "resets",
            "Calls that clients reset before their answer",
        ),
        (
            CounterMetricFamily,
            "recsys_stalled_messages",
            "stalled_messages",
            "Messages that did not come or grow in time",
        ),
        (
            CounterMetricFamily,
            "recsys_port_refused_calls",
            "refused_calls",
            "Calls refused for the memory that their connection held",
        ),
        (
            GaugeMetricFamily,
            "recsys_port_held_bytes",
            "held_bytes",
            "Sessions, open calls, unfinished messages and untaken answers",
        ),
        (GaugeMetricFamily, "recsys_polling_threads", "threads", "Threads that read and write connections"),
    ):
        family = kind(name, text)
        if counts:
            family.add_metric((), counts[key])
        yield family
    polling = CounterMetricFamily("recsys_polling_seconds", "Time in which those threads had something to do")
    if counts:
        polling.add_metric((), counts["busy_us"] / 1e6)
    yield polling


def _add(family: HistogramMetricFamily, labels: Sequence[str], totals: HistogramTotals) -> None:
    family.add_metric(labels, totals.cumulative(), totals.sum)


def server_version() -> str:
    """Return the release's version; ``unknown`` if the package is not installed."""
    return package_version("recsys-serving") or "unknown"
