"""Requests that cannot be read: over each protocol they are counted once and have a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import grpc
import pytest
from google.protobuf.message import Message

from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.protocols import recsys_v1, torchrec
from serve.protocols import open_inference as kserve
from serve.wire import open_inference_pb2, predict_pb2, predictor_pb2
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import INFER, PREDICT, ask

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")
_NO_MESSAGE = b"\xff"
_Send = Callable[[LiveServer], object]


@pytest.fixture(scope="module")
def live(model: ServedModel) -> Iterator[LiveServer]:
    limits = ConnectionLimits(max_message_bytes=4096)
    with LiveServer(model, ServerConfig(port=0, metrics_port=None, http_port=0, connections=limits)) as made:
        yield made


def _one(service: str, method: str) -> _Send:
    def send(live: LiveServer) -> None:
        with grpc.insecure_channel(live.address) as channel:
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(f"/{service}/{method}")(_NO_MESSAGE, timeout=60)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    return send


def _stream(service: str, method: str, failed: Callable[[bytes], bool]) -> _Send:
    def send(live: LiveServer) -> None:
        with grpc.insecure_channel(live.address) as channel:
            (answer,) = channel.stream_stream(f"/{service}/{method}")(iter([_NO_MESSAGE]), timeout=60)
            assert failed(answer)

    return send


def _http(path: str, status: int, data: bytes, headers: dict[str, str] | None = None) -> _Send:
    def send(live: LiveServer) -> None:
        assert ask(live, "POST", path, data, headers).status == status

    return send


CALLS: dict[str, tuple[str, _Send]] = {
    "recsys": ("recsys", _one(recsys_v1.SERVICE, "Predict")),
    "recsys-stream": (
        "recsys",
        _stream(
            recsys_v1.SERVICE, "PredictStream", lambda a: predict_pb2.StreamResponse.FromString(a).error.code == 3
        ),
    ),
    "kserve": ("kserve", _one(kserve.SERVICE, "ModelInfer")),
    "kserve-stream": (
        "kserve",
        _stream(
            kserve.SERVICE,
            "ModelStreamInfer",
            lambda a: bool(open_inference_pb2.ModelStreamInferResponse.FromString(a).error_message),
        ),
    ),
    "torchrec": ("torchrec", _one(torchrec.SERVICE, "Predict")),
    "rest": ("rest", _http(INFER, 400, b"{")),
    "rest-plain": ("rest", _http(PREDICT, 400, b"{")),
    "rest-long": ("rest", _http(INFER, 413, b" " * 5000)),
    "rest-encoded": ("rest", _http(PREDICT, 415, b"{}", {"Content-Encoding": "br"})),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_request_that_cannot_be_read_is_counted_and_logged(
    live: LiveServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    protocol, send = CALLS[name]
    before = live.server.metrics.outcomes()["invalid"]
    with caplog.at_level(logging.WARNING, logger="serve.requests"):
        send(live)
    assert live.server.metrics.outcomes()["invalid"] == before + 1
    (line,) = [vars(record) for record in caplog.records if record.name == "serve.requests"]
    assert (line["protocol"], line["outcome"], line["code"]) == (protocol, "invalid", "INVALID_ARGUMENT")
    assert line["reason"]


TRACE = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
_MISSING = "missing"


@pytest.mark.parametrize(
    ("service", "method", "data"),
    [
        pytest.param(recsys_v1.SERVICE, "Predict", predict_pb2.PredictRequest(model=_MISSING), id="recsys"),
        pytest.param(
            kserve.SERVICE,
            "ModelInfer",
            open_inference_pb2.ModelInferRequest(model_name=_MISSING),
            id="kserve",
        ),
        pytest.param(torchrec.SERVICE, "Predict", predictor_pb2.PredictionRequest(), id="torchrec"),
    ],
)
def test_no_call_is_searched_for_a_trace_where_none_is_wanted(
    live: LiveServer, service: str, method: str, data: Message, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, logger="serve.requests"),
        grpc.insecure_channel(live.address) as channel,
    ):
        call = channel.unary_unary(f"/{service}/{method}")
        with pytest.raises(grpc.RpcError) as error:
            call(data.SerializeToString(), timeout=60, metadata=(TRACE, (torchrec.MODEL_KEY, _MISSING)))
    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert _trace_ids(caplog) == [""]


def test_nor_is_a_request_over_http(live: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="serve.requests"):
        assert ask(live, "POST", PREDICT.replace("small", _MISSING), {}, dict([TRACE])).status == 404
    assert _trace_ids(caplog) == [""]


def _trace_ids(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["trace_id"] for record in caplog.records if record.name == "serve.requests"]
