"""The HTTP port holds as many connections as it may, and no more."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serve.config.settings import ConnectionLimits
from serve.engine.reference.executor import ServedModel
from serve.net.sockets import BoundedListener, listening
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import CONFIG, ask

TWO = replace(CONFIG, connections=ConnectionLimits(max_connections=2))
LIVE = "/v2/health/live"


def port_of(live: LiveServer) -> int:
    assert live.server.http_port is not None
    return live.server.http_port


@contextlib.contextmanager
def connected(live: LiveServer) -> Iterator[http.client.HTTPConnection]:
    """A connection that asks more than once."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(live), timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def alive(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", LIVE)
    response = connection.getresponse()
    response.read()
    return response.status == 200


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed it, without a word; waits for that."""
    connection.settimeout(60)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def answered(live: LiveServer) -> None:
    """Ask until somebody else's place is free."""
    while True:
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
            assert ask(live, "GET", LIVE).status == 200
            return


def test_further_connections_are_closed_until_others_leave(model: ServedModel) -> None:
    with LiveServer(model, TWO) as live, connected(live) as first:
        with connected(live) as second:
            assert alive(first)
            assert alive(second)
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port_of(live))) as third:
                    assert is_closed(third)
            assert alive(first)
            assert alive(second)
        answered(live)
        assert alive(first)


def test_who_never_ends_the_handshake_has_a_place_too(model: ServedModel, tmp_path: Path) -> None:
    authority = Authority()
    config = replace(TWO, tls=write_tls(tmp_path, authority.issue()))
    with LiveServer(model, config) as live:
        address = ("127.0.0.1", port_of(live))
        with contextlib.ExitStack() as silent:
            for _ in range(2):
                silent.enter_context(socket.create_connection(address))
            with socket.create_connection(address) as third:
                assert is_closed(third)
        context = ssl.create_default_context(cadata=authority.certificate.decode())
        while True:
            connection = http.client.HTTPSConnection("localhost", address[1], timeout=60, context=context)
            try:
                connection.request("GET", LIVE)
                assert connection.getresponse().status == 200
                break
            except OSError:
                continue  # the silent ones have not left yet
            finally:
                connection.close()


@pytest.mark.parametrize("max_connections", [0, 2])
def test_a_listener_counts_what_is_open(max_connections: int) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(BoundedListener(listening("127.0.0.1", 0), max_connections))
        address = listener.getsockname()
        accepted = []
        for _ in range(2):
            stack.enter_context(socket.create_connection(address))
            accepted.append(stack.enter_context(listener.accept()[0]))
        stack.enter_context(socket.create_connection(address))
        if max_connections:
            with pytest.raises(ConnectionAbortedError):
                listener.accept()
            accepted[0].close()
            accepted[0].close()
            stack.enter_context(socket.create_connection(address))
        third = stack.enter_context(listener.accept()[0])
        stack.enter_context(socket.create_connection(address)).sendall(b"x")
        if max_connections:
            with pytest.raises(ConnectionAbortedError):
                listener.accept()
        assert third.fileno() >= 0
