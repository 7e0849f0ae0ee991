"""Errors of calls by status code, and what is said of an address that is not that of a server's gRPC port."""

from __future__ import annotations

import copy
import pickle
import socket
from collections.abc import Callable, Iterator

import grpc
import pytest

from serve.client import Client, errors
from serve.client.errors import PredictError, ServerError, UnavailableError, predict_error
from serve.metrics.registry import Metrics
from serve.metrics.server import MetricsServer


class FailedCall(grpc.RpcError):
    """A failed call as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("grpc-retry-pushback-ms", "20"),)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_clients_get_a_named_error_for_every_code(code: grpc.StatusCode) -> None:
    error = predict_error(FailedCall(code, "field: got 1"))
    assert isinstance(error, PredictError)
    assert (error.code, error.message, error.retry_after_ms) == (code, "field: got 1", 20)
    named = {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "UNAVAILABLE",
        "CANCELLED",
    }
    assert (type(error) is not ServerError) == (code.name in named)


@pytest.fixture
def metrics_address() -> Iterator[str]:
    server = MetricsServer(Metrics(), "127.0.0.1", 0)
    yield f"127.0.0.1:{server.port}"
    server.close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens, and nothing else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def said(address: str) -> str:
    with Client(address, timeout_s=30) as client, pytest.raises(UnavailableError) as caught:
        client.metadata()
    return caught.value.message


def test_nothing_listens(nobody: str) -> None:
    assert said(nobody) == (
        f"no server listens at {nobody} (connection refused); start recsys-serve, or give the port= of its ready line"
    )


def test_the_port_is_one_of_http(metrics_address: str) -> None:
    assert said(metrics_address) == (
        f"{metrics_address} speaks HTTP/1, not gRPC: it may be the port of metrics or of REST; expected the port= of "
        "the server's ready line"
    )


def test_the_host_is_unknown() -> None:
    details = (
        "errors resolving no-such-host:8500: [field:hostname lookup error:address lookup failed for no-such-host:8500: "
        "Domain name not found]"
    )
    error = predict_error(FailedCall(grpc.StatusCode.UNAVAILABLE, details))
    assert error.message == "the host of no-such-host:8500 cannot be found; expected HOST:PORT of a server"


def test_other_reasons_are_grpcs_own_words() -> None:
    assert predict_error(FailedCall(grpc.StatusCode.UNAVAILABLE, "stopping")).message == "stopping"


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PredictError)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "crossed", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]
)
def test_errors_cross_processes(
    kind: type[PredictError], crossed: Callable[[PredictError], PredictError]
) -> None:
    error = kind(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", 7)
    error.add_note("of request 3")
    again = crossed(error)
    assert (type(again), str(again)) == (kind, "RESOURCE_EXHAUSTED: full")
    assert (again.code, again.message, again.retry_after_ms) == (error.code, "full", 7)
    assert again.__notes__ == ["of request 3"]
