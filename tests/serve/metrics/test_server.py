"""The metrics' HTTP server, over real sockets, with clients that mean no good."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from serve.metrics.counters import ModelCounters
from serve.metrics.registry import Metrics
from serve.metrics.server import MetricsServer


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    counters = ModelCounters("dlrm", "7")
    counters.answered(0.01)
    made.add(counters)
    return made


@pytest.fixture
def server(metrics: Metrics) -> Iterator[MetricsServer]:
    made = MetricsServer(metrics, "127.0.0.1", 0)
    yield made
    made.close()


def ask(
    server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def answers(server: MetricsServer) -> bool:
    response, body = ask(server)
    return (
        response.status == 200 and b'recsys_requests_total{model="dlrm",outcome="ok",version="7"} 1.0' in body
    )


def test_a_client_of_grpc_is_told_where_it_is(server: MetricsServer) -> None:
    with connect(server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") as connection:
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
    assert (
        b"this port has the metrics, at /metrics, in HTTP/1.1; gRPC is answered on the server's port"
        in answer
    )


def connect(server: MetricsServer, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    made.sendall(data)
    return made


def was_ended(connection: socket.socket) -> bool:
    """Waits for the other side to say something, or to go."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_metrics_are_shown(server: MetricsServer) -> None:
    assert answers(server)
    response, body = ask(server, "/metrics?x=1")
    assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
    assert {family.name for family in plain_text(body.decode())} >= {"recsys_requests"}


def test_health_is_what_the_server_has_set(server: MetricsServer) -> None:
    response, body = ask(server, "/healthz")
    assert (response.status, body) == (503, b"NOT_SERVING\n")
    server.is_serving = True
    response, body = ask(server, "/healthz?verbose")
    assert (response.status, body) == (200, b"SERVING\n")
    response, body = ask(server, "/healthz", "HEAD")
    assert (response.status, body, response.getheader("Content-Length")) == (200, b"", "8")
    assert b"/healthz" in ask(server, "/health")[1]


def test_openmetrics_is_given_to_who_asks(server: MetricsServer) -> None:
    response, body = ask(server, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert response.getheader("Content-Type", "").startswith("application/openmetrics-text")
    assert {family.name for family in openmetrics(body.decode())} >= {"recsys_requests"}


def test_head_gives_the_length_alone(server: MetricsServer) -> None:
    response, body = ask(server, method="HEAD")
    assert (response.status, body) == (200, b"")
    assert int(response.getheader("Content-Length", "0")) > 1000


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/metrics/x", "GET", 404), ("/metrics", "POST", 405), ("/metrics", "DELETE", 405)],
)
def test_other_requests_are_told_so(server: MetricsServer, path: str, method: str, status: int) -> None:
    assert ask(server, path, method)[0].status == status
    assert answers(server)


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"\x00\xff\x16\x03\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n:::\r\n\r\n",
        b"A" * 200_000,
    ],
    ids=["empty", "binary", "no path", "odd headers", "long"],
)
def test_garbage_ends_its_own_connection_alone(server: MetricsServer, data: bytes) -> None:
    with connect(server) as mine, suppress(ConnectionError):
        mine.sendall(data)
        while mine.recv(65536):
            pass
    assert answers(server)


def test_clients_that_say_nothing_keep_nobody_waiting(server: MetricsServer) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(150)]
        silent += [stack.enter_context(connect(server, b"GET /metrics HTTP/1.1\r\n")) for _ in range(50)]
        assert answers(server)
        # The oldest gave way.
        assert was_ended(silent[0])


def test_clients_that_do_not_read_keep_nobody_waiting(server: MetricsServer) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connect(server, b"GET /metrics HTTP/1.1\r\n\r\n"))
        assert answers(server)


def test_a_slow_request_is_ended(metrics: Metrics) -> None:
    server = MetricsServer(metrics, "127.0.0.1", 0, timeout_s=0.05)
    try:
        with connect(server, b"GET /metr") as slow:
            assert was_ended(slow)
    finally:
        server.close()


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "::"])
def test_names_and_wildcards_have_one_port(metrics: Metrics, host: str) -> None:
    if host == "::" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = MetricsServer(metrics, host, 0)
    try:
        connection = http.client.HTTPConnection("localhost", server.port, timeout=30)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read()
        connection.close()
        if host == "::":
            assert answers(server)
    finally:
        server.close()


def test_a_taken_port_is_an_error(server: MetricsServer, metrics: Metrics) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer(metrics, "127.0.0.1", server.port)


def test_close_ends_open_connections_and_may_come_twice(metrics: Metrics) -> None:
    server = MetricsServer(metrics, "127.0.0.1", 0)
    with connect(server) as silent:
        assert answers(server)  # the silent one was taken in before
        server.close()
        server.close()
        assert was_ended(silent)
    with pytest.raises(ConnectionRefusedError):
        connect(server)
