"""Traces: the right spans at the right times, in the trace that the client began, and nobody waits for them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from serve.config.settings import TraceConfig
from serve.engine.records import BatchTimes, EndedRequest, Sampling
from serve.observe.tracing import Tracer, make_tracer

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from serve.observe.spans import ExporterSink, SpanMaker
from tests.support.serve.collector import Collector

ROOT = Path(__file__).parents[3]
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", f"00-{TRACE_ID}-{SPAN_ID}-00"
BEGAN_NS = 1_700_000_000_000_000_000


def batch_times() -> BatchTimes:
    return BatchTimes(
        taken_s=10.1, collated_s=10.2, executed_s=10.5, responded_s=10.6, num_requests=2, num_rows=5
    )


def request(**changes: Any) -> EndedRequest:
    given: dict[str, Any] = {
        "trace_parent": "",
        "protocol": "recsys",
        "model": "dlrm",
        "version": "7",
        "request_id": "visit-12",
        "outcome": "ok",
        "code": "OK",
        "started_s": 10.0,
        "ended_s": 11.0,
        "num_rows": 3,
        "num_ids": 40,
        "enqueued_s": 10.05,
        "times": batch_times(),
    }
    return EndedRequest(**{**given, **changes})


def spans_of(one: EndedRequest, maker: SpanMaker | None = None) -> dict[str, ReadableSpan]:
    made = list((maker or SpanMaker(BEGAN_NS)).spans(one))
    assert len({span.context.trace_id for span in made}) == 1
    assert len({span.context.span_id for span in made}) == len(made)
    return {span.name: span for span in made}


def test_a_request_has_a_span_for_each_part_of_its_way() -> None:
    spans = spans_of(request())
    seconds = {
        name: (round((s.start_time - BEGAN_NS) / 1e9, 6), round((s.end_time - BEGAN_NS) / 1e9, 6))
        for name, s in spans.items()
        if s.start_time is not None and s.end_time is not None
    }
    assert seconds == {
        "predict": (10.0, 11.0),
        "queue": (10.05, 10.1),
        "batch": (10.1, 10.6),
        "collate": (10.1, 10.2),
        "execute": (10.2, 10.5),
        "respond": (10.5, 10.6),
    }
    parents = {name: s.parent and s.parent.span_id for name, s in spans.items()}
    root, batch = spans["predict"].context.span_id, spans["batch"].context.span_id
    assert parents == {
        "predict": None,
        "queue": root,
        "batch": root,
        "collate": batch,
        "execute": batch,
        "respond": batch,
    }


def test_a_span_says_what_was_asked_and_what_became_of_it() -> None:
    spans = spans_of(request())
    assert spans["predict"].kind is SpanKind.SERVER
    assert dict(spans["predict"].attributes or {}) == {
        "recsys.model": "dlrm",
        "recsys.version": "7",
        "recsys.protocol": "recsys",
        "recsys.outcome": "ok",
        "recsys.num_rows": 3,
        "recsys.num_ids": 40,
        "recsys.request_id": "visit-12",
    }
    assert dict(spans["batch"].attributes or {}) == {
        "recsys.batch.num_requests": 2,
        "recsys.batch.num_rows": 5,
    }
    assert spans["predict"].resource.attributes["service.name"] == "recsys-serve"


def test_times_are_those_of_the_clock_on_the_wall() -> None:
    import time

    before_ns = time.time_ns()
    now_s = time.monotonic()
    span = spans_of(request(started_s=now_s), SpanMaker())["predict"]
    assert span.start_time is not None
    assert abs(span.start_time - before_ns) < 1e9  # far from any other clock's zero


def test_a_request_goes_on_in_its_clients_trace() -> None:
    root = spans_of(request(trace_parent=SAMPLED))["predict"]
    assert f"{root.context.trace_id:032x}" == TRACE_ID
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == SPAN_ID
    assert root.parent.is_remote


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"outcome": "invalid", "enqueued_s": None, "times": None}, ["predict"]),
        ({"outcome": "expired", "times": None}, ["predict", "queue"]),
        (
            {"outcome": "failed", "times": BatchTimes(taken_s=10.1, collated_s=10.2)},
            ["predict", "queue", "batch", "collate"],
        ),
    ],
    ids=["refused", "expired", "failed"],
)
def test_parts_that_a_request_did_not_reach_have_no_span(changes: dict[str, Any], names: list[str]) -> None:
    assert list(spans_of(request(**changes))) == names


@pytest.mark.parametrize(
    ("outcome", "is_error"),
    [("ok", False), ("invalid", False), ("rejected", False), ("failed", True), ("expired", True)],
)
def test_errors_are_the_servers_own(outcome: str, is_error: bool) -> None:
    root = spans_of(request(outcome=outcome, reason="" if outcome == "ok" else "why"))["predict"]
    assert (root.status.status_code is StatusCode.ERROR) == is_error
    if is_error:
        assert root.status.description == "why"
    else:
        assert (root.attributes or {}).get("recsys.reason") == (None if outcome == "ok" else "why")


def test_clients_texts_are_bounded() -> None:
    root = spans_of(request(model="m" * 10**6, request_id="r" * 10**6, reason="w" * 10**6))["predict"]
    assert all(len(str(value)) <= 256 for value in (root.attributes or {}).values())


def test_requests_of_one_batch_are_linked() -> None:
    maker, times = SpanMaker(BEGAN_NS), batch_times()
    first, second = (spans_of(request(times=times), maker)["batch"] for _ in range(2))
    other = spans_of(request(times=batch_times()), maker)["batch"]
    assert first.links == other.links == ()
    assert [link.context for link in second.links] == [first.context]


def test_batches_are_not_remembered_for_ever() -> None:
    maker = SpanMaker(BEGAN_NS)
    for _ in range(2000):
        list(maker.spans(request(times=batch_times())))
    assert len(maker._batches) <= 256


# Which requests.


class Sink:
    """Collects; holds the tracer up until the gate opens."""

    def __init__(self, works: bool = True) -> None:
        self.reached, self.gate = threading.Event(), threading.Event()
        self.sent: list[EndedRequest] = []
        self.num_closed = 0
        self._works = works

    def send(self, requests: Sequence[EndedRequest]) -> bool:
        self.reached.set()
        assert self.gate.wait(60)
        self.sent.extend(requests)
        return self._works

    def close(self) -> None:
        self.num_closed += 1
        self.gate.set()


@pytest.mark.parametrize(
    ("header", "draw", "sampled"),
    [
        (SAMPLED, 0.99, True),
        (UNSAMPLED, 0.0, False),
        ("", 0.24, True),
        ("", 0.25, False),
        ("nonsense", 0.24, True),
    ],
)
def test_the_client_decides_or_else_the_share(header: str, draw: float, sampled: bool) -> None:
    sampling = Sampling(trace_share=0.25)
    assert sampling.is_traced(header, draw) is sampled


def test_nobody_waits_for_the_collector() -> None:
    sink = Sink()
    tracer = Tracer(sink)
    for _ in range(256):
        tracer.record(request())
    assert sink.reached.wait(60)
    for _ in range(3000):
        tracer.record(request())
    assert tracer.counts() == {"dropped": 3000 - 2048}
    sink.gate.set()
    tracer.close()
    tracer.close()
    assert len(sink.sent) == 256 + 2048


def test_what_the_collector_did_not_take_is_counted() -> None:
    sink = Sink(works=False)
    sink.gate.set()
    tracer = Tracer(sink)
    tracer.record(request())
    tracer.close()
    tracer.record(request())
    assert tracer.counts() == {"dropped": 2}


# Through the SDK, and to a collector.


def test_spans_reach_the_sdks_exporter() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(ExporterSink(exporter))
    tracer.record(request())
    tracer.close()
    assert [span.name for span in exporter.get_finished_spans()] == [
        "predict",
        "queue",
        "batch",
        "collate",
        "execute",
        "respond",
    ]
    assert tracer.counts() == {"dropped": 0}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def test_traces_reach_a_collector_over_otlp(collector: Collector) -> None:
    tracer = make_tracer(TraceConfig(endpoint=collector.endpoint, share=1.0))
    tracer.record(request(trace_parent=SAMPLED))
    tracer.close()
    assert tracer.counts() == {"dropped": 0}
    (resource,) = collector.requests[0].resource_spans
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.name"] == "recsys-serve"
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    assert set(spans) == {"predict", "queue", "batch", "collate", "execute", "respond"}
    assert spans["predict"].trace_id.hex() == TRACE_ID
    assert spans["predict"].parent_span_id.hex() == SPAN_ID
    assert spans["execute"].parent_span_id == spans["batch"].span_id


def test_a_collector_that_is_away_stops_nothing() -> None:
    tracer = make_tracer(TraceConfig(endpoint="http://127.0.0.1:1", share=1.0))
    tracer.record(request())
    tracer.close()
    assert tracer.counts() == {"dropped": 1}


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4317", "ftp://host", "http://"])
def test_endpoints_that_are_none_are_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"endpoint: got .* expected"):
        make_tracer(TraceConfig(endpoint=endpoint))


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "serve.observe.spans")
    with pytest.raises(ValueError, match=r"pip install 'opentelemetry-sdk>=1\.30' 'open"):
        make_tracer(TraceConfig(endpoint="http://127.0.0.1:4317"))


def test_the_packages_are_imported_only_when_traces_are_asked_for() -> None:
    script = """
        import sys
        import serve.observe.tracing, serve.observe.logs, serve.metrics.registry
        print([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout == "[]\n"
