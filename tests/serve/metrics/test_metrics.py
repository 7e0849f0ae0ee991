"""The metrics, as Prometheus reads them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from recsys.rows.memory import RowsPages
from serve.config.models import BatchLimits
from serve.engine.interface import EngineCounts
from serve.metrics.counters import OUTCOMES, STAGES, STATES, Histogram, ModelCounters, ModelDescription
from serve.metrics.registry import Metrics
from serve.metrics.streams import StreamState, StreamStatus
from tests.support.serve.quality import quality_collector

PAGE = Path(__file__).parents[3] / "docs" / "operate" / "metrics.md"
KEY = {"model": "dlrm", "version": "7"}
DESCRIPTION = ModelDescription(
    target="cpu",
    digest="46ab3e1c20ff",
    num_executors=2,
    limits=BatchLimits(max_queue_rows=9000),
    rows_pages=RowsPages(resident_bytes=30, huge_bytes=20, locked_bytes=10),
)
# Counts of a native engine's port.
PORT = {
    "open": 3,
    "accepted": 9,
    "refused": 1,
    "closed_silent": 2,
    "closed_resets": 4,
    "closed_control_frames": 5,
    "closed_headers": 12,
    "closed_memory": 6,
    "resets": 7,
    "stalled_messages": 8,
    "refused_calls": 11,
    "held_bytes": 10,
    "threads": 13,
    "moved": 15,
    "busy_us": 14_000_000,
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def dlrm(metrics: Metrics) -> ModelCounters:
    return begin(metrics, "dlrm", "7")


def begin(metrics: Metrics, model: str, version: str) -> ModelCounters:
    """The numbers of a version that was loaded just now."""
    counters = ModelCounters(model, version)
    metrics.add(counters)
    return counters


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_requests_are_counted_by_version_and_outcome(metrics: Metrics, dlrm: ModelCounters) -> None:
    for outcome in OUTCOMES:
        dlrm.count(outcome)
    dlrm.count("rejected")
    dlrm.accepted()
    begin(metrics, "dlrm", "8").count("rejected")
    got = {o: value(metrics, "recsys_requests_total", **KEY, outcome=o) for o in OUTCOMES}
    assert got == {**dict.fromkeys(OUTCOMES, 1), "rejected": 2}
    assert value(metrics, "recsys_requests_accepted_total", **KEY) == 1
    assert value(metrics, "recsys_requests_total", model="dlrm", version="8", outcome="rejected") == 1


def test_connections_are_shown_where_the_engine_counts_them(metrics: Metrics) -> None:
    metrics.watch_engine(EngineCounts)
    assert value(metrics, "recsys_connections") is None
    metrics.watch_engine(lambda: EngineCounts(port=PORT))
    assert value(metrics, "recsys_connections") == 3
    assert value(metrics, "recsys_connections_accepted_total") == 9
    reasons = ("too_many", "silent", "resets", "control_frames", "headers", "memory")
    closed = [value(metrics, "recsys_connections_closed_total", reason=reason) for reason in reasons]
    assert closed == [1, 2, 4, 5, 12, 6]
    assert value(metrics, "recsys_stream_resets_total") == 7
    assert value(metrics, "recsys_stalled_messages_total") == 8
    assert value(metrics, "recsys_port_refused_calls_total") == 11
    assert value(metrics, "recsys_port_held_bytes") == 10
    assert value(metrics, "recsys_connections_moved_total") == 15
    assert value(metrics, "recsys_polling_threads") == 13
    assert value(metrics, "recsys_polling_seconds_total") == 14


def test_streams_of_deltas_show_their_state_and_their_age() -> None:
    metrics = Metrics(lambda: 1000.0)
    counters = begin(metrics, "dlrm", "7")
    metrics.set_stream("dlrm", "8", StreamStatus())  # is not loaded
    metrics.set_stream("dlrm", "7", StreamStatus(num_pending=2))
    assert value(metrics, "recsys_delta_stream_state", **KEY, state="following") == 1
    assert value(metrics, "recsys_delta_lag_seconds", **KEY) is None
    status = StreamStatus(
        state=StreamState.GAP, num_pending=3, last="7.delta", last_created_s=940.5, last_delay_s=1.5
    )
    metrics.set_stream("dlrm", "7", status)
    assert value(metrics, "recsys_delta_stream_state", **KEY, state="following") == 0
    assert value(metrics, "recsys_delta_stream_state", **KEY, state="gap") == 1
    assert value(metrics, "recsys_deltas_pending", **KEY) == 3
    assert value(metrics, "recsys_delta_created_timestamp_seconds", **KEY) == 940.5
    assert value(metrics, "recsys_delta_lag_seconds", **KEY) == 59.5
    assert value(metrics, "recsys_delta_delay_seconds", **KEY) == 1.5
    assert value(metrics, "recsys_deltas_pending", model="dlrm", version="8") is None
    metrics.drop(counters)
    assert value(metrics, "recsys_deltas_pending", **KEY) is None


def test_a_new_version_shows_zeros_so_that_its_first_request_is_an_increase(metrics: Metrics) -> None:
    begin(metrics, "dlrm", "7")
    assert value(metrics, "recsys_requests_total", **KEY, outcome="failed") == 0
    assert value(metrics, "recsys_stage_seconds_count", **KEY, stage="queue") == 0


def test_an_answered_request_is_counted_and_timed(metrics: Metrics, dlrm: ModelCounters) -> None:
    dlrm.answered(0.25)
    dlrm.answered(0.5)
    assert value(metrics, "recsys_requests_total", **KEY, outcome="ok") == 2
    assert value(metrics, "recsys_request_seconds_sum", **KEY) == 0.75
    assert value(metrics, "recsys_request_seconds_bucket", **KEY, le="0.2") == 0
    assert value(metrics, "recsys_request_seconds_bucket", **KEY, le="0.5") == 2


def test_outcomes_are_summed_over_models_past_models_and_requests_for_none(
    metrics: Metrics, dlrm: ModelCounters
) -> None:
    dlrm.answered(0.1)
    dlrm.accepted()
    other = begin(metrics, "ranker", "1")
    other.count("invalid")
    metrics.refused("not_found")
    dlrm.count("failed")
    metrics.drop(dlrm)
    metrics.drop(other)
    assert metrics.outcomes() == {
        **dict.fromkeys(OUTCOMES, 0),
        "ok": 1,
        "invalid": 1,
        "not_found": 1,
        "failed": 1,
        "accepted": 1,
    }


def test_a_dropped_version_leaves_no_series_and_begins_anew(metrics: Metrics, dlrm: ModelCounters) -> None:
    dlrm.describe(DESCRIPTION)
    dlrm.set_table_bytes({"users": 1600})
    metrics.set_state("dlrm", "7", "ready")
    dlrm.count("ok")
    assert 'version="7"' in text(metrics)
    metrics.drop(dlrm)
    metrics.drop(dlrm)
    metrics.set_state("dlrm", "7", "available")
    assert 'version="7"' not in text(metrics)
    assert "users" not in text(metrics)
    begin(metrics, "dlrm", "7")
    assert value(metrics, "recsys_requests_total", **KEY, outcome="ok") == 0


@pytest.mark.parametrize("is_early", [True, False], ids=["begun-before-the-drop", "begun-after-it"])
def test_a_version_that_is_loaded_again_has_series_of_its_own(metrics: Metrics, is_early: bool) -> None:
    old = begin(metrics, "dlrm", "7")
    old.count("ok")
    old.count("failed")
    old.accepted()
    if is_early:
        new = begin(metrics, "dlrm", "7")
        metrics.set_state("dlrm", "7", "loading")
        metrics.drop(old)
    else:
        metrics.drop(old)
        new = begin(metrics, "dlrm", "7")
        metrics.set_state("dlrm", "7", "loading")
    new.describe(DESCRIPTION)
    new.count("ok")
    new.count("ok")
    metrics.delta("dlrm", "7", "applied")
    metrics.drop(old)
    assert value(metrics, "recsys_requests_total", **KEY, outcome="ok") == 2
    assert value(metrics, "recsys_requests_total", **KEY, outcome="failed") == 0
    assert value(metrics, "recsys_deltas_applied_total", **KEY) == 1
    assert value(metrics, "recsys_executors", **KEY) == 2
    assert value(metrics, "recsys_model_state", **KEY, state="loading") == 1
    totals = metrics.outcomes()
    assert (totals["ok"], totals["failed"], totals["accepted"]) == (3, 1, 1)
    metrics.drop(new)
    assert metrics.outcomes() == totals


def test_a_request_for_no_model_makes_no_series_of_the_clients_choosing(metrics: Metrics) -> None:
    metrics.refused("not_found")
    metrics.refused("invalid")
    assert value(metrics, "recsys_requests_total", model="", version="", outcome="not_found") == 1
    assert value(metrics, "recsys_requests_total", model="", version="", outcome="invalid") == 1


def test_what_waits_is_shown_as_it_was_last_said(metrics: Metrics, dlrm: ModelCounters) -> None:
    dlrm.set_pending(3, 40, 500)
    dlrm.set_pending(2, 30, 400)
    got = [value(metrics, f"recsys_pending_{unit}", **KEY) for unit in ("rows", "ids", "bytes")]
    assert got == [2, 30, 400]
    dlrm.set_pending(0, 0, 0)
    assert value(metrics, "recsys_pending_rows", **KEY) == 0


def test_a_version_is_described(metrics: Metrics, dlrm: ModelCounters) -> None:
    dlrm.describe(DESCRIPTION)
    dlrm.set_table_bytes({"users": 1600, "items": 32})
    about = {**KEY, "target": "cpu", "digest": "46ab3e1c20ff"}
    assert value(metrics, "recsys_model_info", **about) == 1
    assert value(metrics, "recsys_executors", **KEY) == 2
    assert value(metrics, "recsys_pending_limit_rows", **KEY) == 9000
    pages = [
        value(metrics, "recsys_rows_bytes", **KEY, pages=kind) for kind in ("resident", "huge", "locked")
    ]
    assert pages == [30, 20, 10]
    assert value(metrics, "recsys_table_bytes", **KEY, table="users") == 1600
    dlrm.set_table_bytes({"users": 3200})
    assert value(metrics, "recsys_table_bytes", **KEY, table="users") == 3200
    assert value(metrics, "recsys_table_bytes", **KEY, table="items") is None


def test_a_version_is_in_one_state_or_in_none(metrics: Metrics) -> None:
    def states() -> list[float | None]:
        return [value(metrics, "recsys_model_state", **KEY, state=state) for state in STATES]

    metrics.set_state("dlrm", "7", "loading")
    assert states() == [1, 0, 0, 0]
    metrics.set_state("dlrm", "7", "ready")
    assert states() == [0, 1, 0, 0]
    metrics.set_state("dlrm", "7", "available")
    assert states() == [None] * 4


def test_shadows_and_deltas_are_counted(metrics: Metrics, dlrm: ModelCounters) -> None:
    dlrm.shadow("same")
    metrics.shadow("dlrm", "7", "different")
    metrics.shadow("dlrm", "7", "different")
    metrics.delta("dlrm", "7", "applied")
    metrics.delta("dlrm", "7", "failed")
    got = [value(metrics, "recsys_shadow_total", **KEY, result=r) for r in ("same", "different", "failed")]
    assert got == [1, 2, 0]
    assert value(metrics, "recsys_deltas_applied_total", **KEY) == 1
    assert value(metrics, "recsys_deltas_failed_total", **KEY) == 1


def test_counts_that_others_keep_are_read_when_the_metrics_are(metrics: Metrics) -> None:
    counts = {"written": 1, "dropped": 0, "failed": 0}
    metrics.watch("capture", lambda: counts)
    counts["written"] = 5
    assert value(metrics, "recsys_captured_requests_total", result="written") == 5
    assert value(metrics, "recsys_log_records_dropped_total") == 0


def test_totals_are_what_was_added(dlrm: ModelCounters) -> None:
    dlrm.observe_batch(2, 5, 40)
    dlrm.observe_batch(1, 1, 3)
    dlrm.observe_stages([0.001, 0.002], 0.01, 0.1, 0.02)
    dlrm.observe("execute", 0.2)
    totals = dlrm.totals()
    assert {stage: totals.stages[stage].count for stage in STAGES} == {
        "queue": 2,
        "collate": 1,
        "execute": 2,
        "respond": 1,
    }
    assert totals.stages["execute"].sum == pytest.approx(0.3)
    assert (totals.batch_requests.sum, totals.batch_rows.sum, totals.batch_ids.sum) == (3, 6, 43)
    assert totals.batch_rows.count == 2
    assert totals.last_batch_s > 0
    dlrm.observe_batch(1, 1, 1)
    assert totals.batch_rows.count == 2  # a copy


def test_an_unknown_outcome_is_an_error(dlrm: ModelCounters) -> None:
    with pytest.raises(KeyError):
        dlrm.count("great")


def test_threads_lose_no_count(metrics: Metrics, dlrm: ModelCounters) -> None:
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(2000):
            dlrm.accepted()
            dlrm.answered(0.001)
            dlrm.observe("queue", 0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        metrics.outcomes()
        text(metrics)
    for thread in threads:
        thread.join()
    totals = dlrm.totals()
    assert (totals.accepted, totals.outcomes["ok"], totals.request.count) == (8000, 8000, 8000)
    assert totals.stages["queue"].count == 8000


@pytest.mark.parametrize("number", [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 4.1, 1e9])
def test_histograms_agree_with_prometheus_own(number: float) -> None:
    bounds = (0.5, 1.0, 2.0, 4.0)
    registry = prometheus_client.CollectorRegistry()
    oracle = prometheus_client.Histogram("h", "h", buckets=bounds, registry=registry)
    ours = Histogram(bounds)
    for histogram in (oracle.observe, ours.add):
        histogram(number)
        histogram(1.0)
    totals = ours.totals()
    assert totals.cumulative() == [
        (le, registry.get_sample_value("h_bucket", {"le": le})) for le in ("0.5", "1.0", "2.0", "4.0", "+Inf")
    ]
    assert totals.count == 2
    assert totals.sum == registry.get_sample_value("h_sum")


def text(metrics: Metrics) -> str:
    return prometheus_client.generate_latest(metrics.registry).decode()


@pytest.fixture
def busy(metrics: Metrics, dlrm: ModelCounters) -> Metrics:
    """Has at least one series of every family."""
    dlrm.describe(DESCRIPTION)
    dlrm.set_table_bytes({'users "of"\nours\\': 1600})
    dlrm.answered(0.01)
    metrics.set_state("dlrm", "7", "ready")
    metrics.set_stream("dlrm", "7", StreamStatus(last="7.delta", last_created_s=940.5))
    metrics.refused("not_found")
    metrics.watch_engine(lambda: EngineCounts(port=PORT))
    metrics.registry.register(quality_collector())
    return metrics


def test_every_family_can_be_parsed_and_has_a_series(busy: Metrics) -> None:
    families = {family.name: family for family in plain_text(text(busy))}
    assert all(family.samples for family in families.values())
    assert families["recsys_table_bytes"].samples[0].labels["table"] == 'users "of"\nours\\'
    body = prometheus_client.openmetrics.exposition.generate_latest(busy.registry).decode()
    assert {family.name for family in openmetrics(body)} >= {"recsys_requests", "recsys_stage_seconds"}


def test_the_process_and_the_server_are_there(busy: Metrics) -> None:
    names = {family.name for family in plain_text(text(busy))}
    assert {
        "process_resident_memory_bytes",
        "process_cpu_seconds",
        "process_open_fds",
        "process_start_time_seconds",
        "recsys_server_info",
    } <= names


def test_a_scrape_of_some_names_gives_these(busy: Metrics) -> None:
    some = busy.registry.restricted_registry(["recsys_pending_rows"])
    assert [metric.name for metric in some.collect()] == ["recsys_pending_rows"]


def families_on_the_page() -> Iterator[tuple[str, set[str]]]:
    """First column of the page's tables: `name{label, label}`."""
    for name, labels in re.findall(
        r"^\| `((?:recsys|process)_\w+)(?:\{([^}]*)\})?` \|", PAGE.read_text(), re.MULTILINE
    ):
        yield name, set(labels.replace(" ", "").split(",")) - {""}


def test_the_page_names_every_metric_with_its_labels_and_no_other(busy: Metrics) -> None:
    shown = {}
    for family in busy.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        shown[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    page = dict(families_on_the_page())
    assert page == shown
