"""Config, errors, allocator, warm-up: the small parts."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pytest

from recsys.allocator import tune_malloc
from serve.batching import BatchLimits
from serve.client_errors import PredictError, ServerError, predict_error
from serve.collate import collate
from serve.config import ServerConfig
from serve.errors import STATUS_CODES, DrainingError, QueueFullError, RequestError, status_of
from serve.lifetime import serve
from serve.metrics import Metrics, MetricsServer
from serve.model import ServedModel
from serve.warm_up import warm_up_batches
from tests.serve.live import INFO
from tests.serve.models import SIGNATURE, FailingModel


@pytest.mark.parametrize(
    ("values", "text"),
    [
        pytest.param({"host": ""}, "host: got an empty text", id="host"),
        pytest.param({"port": 65536}, "port: got 65536, expected 0 to 65535", id="port"),
        pytest.param({"metrics_port": -1}, "metrics_port: got -1", id="metrics-port"),
        pytest.param({"max_message_bytes": 10}, "max_message_bytes: got 10", id="message-bytes"),
        pytest.param({"num_executors": 0}, "num_executors: got 0", id="executors"),
        pytest.param({"drain_timeout_s": 0.0}, "drain_timeout_s: got 0.0", id="drain"),
        pytest.param({"drain_timeout_s": float("nan")}, "drain_timeout_s: got nan", id="drain-nan"),
    ],
)
def test_settings_out_of_range_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ServerConfig(**values)


@pytest.mark.parametrize("error", STATUS_CODES, ids=lambda error: error.__name__)
def test_every_error_has_a_code_and_keeps_its_text(error: type[Exception]) -> None:
    assert status_of(error("field: got 1, expected 2")) == (STATUS_CODES[error], "field: got 1, expected 2")


def test_busy_and_stopping_tell_clients_to_come_back_and_wrong_does_not() -> None:
    assert STATUS_CODES[QueueFullError] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert STATUS_CODES[DrainingError] is grpc.StatusCode.UNAVAILABLE
    assert STATUS_CODES[RequestError] is grpc.StatusCode.INVALID_ARGUMENT


def test_the_text_of_an_unforeseen_error_stays_in_the_log() -> None:
    code, text = status_of(KeyError("/secret/path 0x7f00"))
    assert code is grpc.StatusCode.INTERNAL
    assert "secret" not in text


class FailedCall(grpc.RpcError):
    """A failed call as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_clients_get_a_named_error_for_every_code(code: grpc.StatusCode) -> None:
    error = predict_error(FailedCall(code, "field: got 1"))
    assert isinstance(error, PredictError)
    assert (error.code, error.message) == (code, "field: got 1")
    named = {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "UNAVAILABLE",
        "CANCELLED",
    }
    assert (type(error) is not ServerError) == (code.name in named)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_glibc_takes_the_allocators_settings() -> None:
    assert tune_malloc()


def test_warm_up_takes_both_ways_through_the_collation_within_the_limits() -> None:
    limits = BatchLimits(max_batch_rows=40)
    batches = list(warm_up_batches(SIGNATURE, limits))
    rows = [sum(request.num_rows for request in batch) for batch in batches]
    assert min(rows) == 1
    assert max(rows) == 32
    assert {len(batch) > 1 for batch in batches} == {True, False}
    for batch, num_rows in zip(batches, rows, strict=True):
        context, *_, lengths, values, weights = collate(batch)
        assert (len(context), len(lengths), len(values), len(weights)) == (num_rows, *[4 * num_rows] * 3)


def test_warm_up_runs_one_row_whatever_the_limits() -> None:
    assert list(warm_up_batches(SIGNATURE, BatchLimits(max_batch_rows=1, max_batch_ids=1)))


def test_a_server_whose_model_cannot_warm_up_does_not_start(model: ServedModel) -> None:
    config = ServerConfig(port=0, metrics_port=0)
    with pytest.raises(RuntimeError, match="failed to warm up"):
        asyncio.run(serve(FailingModel(model, bad_id=0), INFO, config, as_json=True))


def test_the_metrics_server_closes_twice() -> None:
    server = MetricsServer(Metrics(), "127.0.0.1", 0)
    server.close()
    server.close()
