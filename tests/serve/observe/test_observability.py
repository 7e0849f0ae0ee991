"""One live server, and all that an operator sees of the requests that it gets: metrics, log, traces, capture."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.config.settings import CaptureConfig, LogConfig, ServerConfig, TraceConfig
from serve.engine.reference.executor import ServedModel
from serve.observe.capture_file import CapturedRequest, CaptureReader
from serve.observe.logs import set_up_logging, shut_down_logging
from serve.wire import predict_pb2 as wire
from serve.wire import predict_pb2_grpc
from tests.support.serve.live import INFO, LiveServer
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.models import SIGNATURE

pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra otel is not installed")

from tests.support.serve.collector import Collector

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass
class Seen:
    """What was left of three requests: a good one, one that lies about its rows, and one for no model."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Any] = field(default_factory=list)
    captured: list[CapturedRequest] = field(default_factory=list)

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, frozenset(labels.items())]


def send(stub: Any, request: wire.PredictRequest, sampled: str) -> grpc.StatusCode:
    metadata = (("traceparent", f"00-{TRACE_ID}-{SPAN_ID}-{sampled}"),)
    try:
        stub.Predict(request, timeout=60, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.fixture(scope="module")
def good_request() -> wire.PredictRequest:
    request = random_sample(SIGNATURE, 3, np.random.default_rng(1)).request()
    request.request_id = "good"
    return request


@pytest.fixture(scope="module")
def seen(
    model: ServedModel, good_request: wire.PredictRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    path: Path = tmp_path_factory.mktemp("capture") / "requests.capture"
    stream, all_seen = io.StringIO(), Seen()
    wrong = wire.PredictRequest(request_id="wrong\n", num_rows=-1)
    nobodys = wire.PredictRequest(request_id="nobody's", model="missing")
    set_up_logging(LogConfig(as_json=True), stream)
    with Collector() as collector:
        config = ServerConfig(
            port=0,
            metrics_port=0,
            log=LogConfig(requests="all"),
            trace=TraceConfig(endpoint=collector.endpoint, share=0.0),
            capture=CaptureConfig(path=path, share=1.0),
        )
        with LiveServer(model, config) as live, grpc.insecure_channel(live.address) as channel:
            stub = predict_pb2_grpc.PredictionServiceStub(channel)
            assert send(stub, good_request, "01") is grpc.StatusCode.OK
            assert send(stub, wrong, "01") is grpc.StatusCode.INVALID_ARGUMENT
            assert send(stub, nobodys, "00") is grpc.StatusCode.NOT_FOUND
            url = f"http://127.0.0.1:{live.server.metrics_port}/metrics"
            with urllib.request.urlopen(url, timeout=60) as response:
                families = text_string_to_metric_families(response.read().decode())
            all_seen.samples = {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in families
                for sample in family.samples
            }
        all_seen.spans = collector.spans()
    shut_down_logging()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    all_seen.log = [line for line in lines if line["logger"] == "serve.requests"]
    with CaptureReader(path) as reader:
        all_seen.captured = list(reader)
    yield all_seen
    shut_down_logging()


def test_metrics(seen: Seen) -> None:
    key = {"model": INFO.name, "version": INFO.version}
    assert seen.value("recsys_requests_total", **key, outcome="ok") == 1
    assert seen.value("recsys_requests_total", **key, outcome="invalid") == 1
    assert seen.value("recsys_requests_total", model="", version="", outcome="not_found") == 1
    assert seen.value("recsys_requests_accepted_total", **key) == 1
    assert seen.value("recsys_request_seconds_count", **key) == 1
    for stage in ("queue", "collate", "execute", "respond"):
        assert seen.value("recsys_stage_seconds_count", **key, stage=stage) == 1
    assert seen.value("recsys_batch_rows_sum", **key) == 3
    assert seen.value("recsys_pending_rows", **key) == 0
    assert seen.value("recsys_pending_limit_rows", **key) == 8192
    assert seen.value("recsys_table_bytes", **key, table="users") == INFO.table_bytes["users"]
    assert seen.value("recsys_model_state", **key, state="ready") == 1
    assert seen.value("process_resident_memory_bytes") > 0


def test_log(seen: Seen) -> None:
    lines = {line["request_id"]: line for line in seen.log}
    assert {name: line["outcome"] for name, line in lines.items()} == {
        "good": "ok",
        "wrong\n": "invalid",
        "nobody's": "not_found",
    }
    assert (lines["good"]["model"], lines["good"]["num_rows"], lines["good"]["code"]) == (INFO.name, 3, "OK")
    assert lines["good"]["trace_id"] == TRACE_ID
    assert "expected 0 or more" in lines["wrong\n"]["reason"]
    assert lines["nobody's"]["model"] == "missing"


def test_traces(seen: Seen) -> None:
    """The client's flag decides: two requests were sampled."""
    assert {span.trace_id.hex() for span in seen.spans} == {TRACE_ID}
    roots = [span for span in seen.spans if span.name == "predict"]
    assert {span.parent_span_id.hex() for span in roots} == {SPAN_ID}
    names = [span.name for span in seen.spans]
    assert names == ["predict", "queue", "batch", "collate", "execute", "respond", "predict"]
    spans = dict(zip(names[:6], seen.spans[:6], strict=True))
    ordered = [spans["predict"], *(spans[n] for n in ("queue", "collate", "execute", "respond"))]
    starts = [span.start_time_unix_nano for span in ordered]
    assert starts == sorted(starts)
    assert spans["respond"].end_time_unix_nano <= spans["predict"].end_time_unix_nano


def test_capture(seen: Seen, good_request: wire.PredictRequest) -> None:
    (captured,) = seen.captured
    expected = wire.PredictRequest()
    expected.CopyFrom(good_request)
    expected.ClearField("request_id")
    assert captured.parse() == expected
    assert (captured.model, captured.version) == (INFO.name, INFO.version)
