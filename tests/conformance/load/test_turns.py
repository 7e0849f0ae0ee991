"""Clients take turns: one that keeps thousands of calls open delays a neighbour by a turn, not by all of them.

No case looks at a clock: the neighbour is answered while calls of the flood, which were all sent before its own, still
wait. ``python -m benchmarks.server.floods`` has the times.
"""

from __future__ import annotations

import math
import signal
import struct

import pytest

from serve.client import PREDICT
from serve.wire import predict_pb2
from tests.conformance.support import http2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ENGINE, ServerUnderTest
from tests.conformance.support.http2 import DATA, END_STREAM, HEADERS, RawConnection, frame
from tests.conformance.support.pipelines import Calls

_SERVICE = "/recsys.v1.PredictionService"
_METADATA = f"{_SERVICE}/GetModelMetadata"
_HEALTH = "/grpc.health.v1.Health/Check"
_CONNECTIONS = 8
# For calls that the native engine answers within microseconds.
_MANY_CONNECTIONS = 64 if ENGINE == "native" else _CONNECTIONS
# gRPC's core reads connections in an order of its own, in which the neighbour's is the last now and then.
_ATTEMPTS = 1 if ENGINE == "native" else 3
# Calls of each connection; fewer than it may have open.
_DEPTH = 900
_ROOM = struct.pack(">I", 1 << 30)

pytestmark = pytest.mark.engine


class _Flood:
    """Connections with many calls each, of which no answer has been read."""

    def __init__(self, address: str, calls: Calls, num_connections: int = _CONNECTIONS) -> None:
        self._connections = [RawConnection(address) for _ in range(num_connections)]
        for connection in self._connections:
            room = frame(http2.WINDOW_UPDATE, 0, 0, _ROOM)
            connection.send(http2.hello() + room + calls.opening())
        for connection in self._connections:
            connection.send(calls.of(3, _DEPTH - 1))

    def num_answered(self) -> int:
        """The number of calls that the server has answered by now, as far as it was sent."""
        return sum(_num_ended(connection.received()) for connection in self._connections)

    def wait_until_answered(self) -> int:
        """Read until every call has ended; return their number."""
        num_ended = 0
        for connection in self._connections:
            ended: set[int] = set()
            for got in connection.frames():
                assert got.kind != http2.GOAWAY
                if got.kind == HEADERS and got.flags & END_STREAM:
                    ended.add(got.stream)
                if len(ended) == _DEPTH:
                    break
            num_ended += len(ended)
        return num_ended

    def close(self) -> None:
        for connection in self._connections:
            connection.__exit__()


def _num_ended(data: bytes) -> int:
    num, at = 0, 0
    while at + 9 <= len(data):
        num += data[at + 3] == HEADERS and bool(data[at + 4] & END_STREAM)
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return num


def _is_answered(connection: RawConnection) -> bool:
    """Whether the call of stream 1 is answered with a message."""
    has_message = False
    for got in connection.frames():
        has_message = has_message or (got.kind == DATA and bool(got.payload))
        if got.stream == 1 and got.flags & END_STREAM:
            return has_message
    return False


def _num_answered_before_neighbours(
    server: ServerUnderTest, calls: Calls, num_connections: int, request: bytes
) -> int:
    """Return how many calls of a flood are answered when a neighbour is that had sent its request behind them."""
    with RawConnection(server.address) as neighbour:
        neighbour.send(http2.hello())
        neighbour.until_acknowledged()
        # All is sent before anything is answered.
        server.signal(signal.SIGSTOP)
        flood = _Flood(server.address, calls, num_connections)
        try:
            neighbour.send(http2.opened(PREDICT) + http2.message(request))
            server.signal(signal.SIGCONT)
            assert _is_answered(neighbour)
            num_answered = flood.num_answered()
            # A connection that is opened now is not the last either.
            with RawConnection(server.address) as newcomer:
                newcomer.send(http2.hello() + http2.opened(PREDICT) + http2.message(request))
                assert _is_answered(newcomer)
        finally:
            server.signal(signal.SIGCONT)
            flood.close()
    return num_answered


@pytest.mark.parametrize("kind", ["refused", "good", "unknown", "health", "metadata"])
def test_a_neighbour_is_answered_while_a_flood_waits(
    server: ServerUnderTest, small: Exported, kind: str
) -> None:
    request = small.sample(1).request().SerializeToString()
    metadata = predict_pb2.GetModelMetadataRequest().SerializeToString()
    calls = {
        "refused": Calls(PREDICT, b""),
        "good": Calls(PREDICT, request),
        "unknown": Calls(f"{_SERVICE}/Unknown", b""),
        "health": Calls(_HEALTH, b""),
        "metadata": Calls(_METADATA, metadata),
    }[kind]
    num_connections = _CONNECTIONS if kind == "metadata" else _MANY_CONNECTIONS
    assert any(
        _num_answered_before_neighbours(server, calls, num_connections, request) < num_connections * _DEPTH
        for _ in range(_ATTEMPTS)
    )
    assert server.is_alive()


@pytest.mark.parametrize("kind", ["refused", "health"])
def test_every_call_of_a_flood_is_answered(server: ServerUnderTest, kind: str) -> None:
    calls = {"refused": Calls(PREDICT, b""), "health": Calls(_HEALTH, b"")}[kind]
    flood = _Flood(server.address, calls, 2)
    assert flood.wait_until_answered() == 2 * _DEPTH
    flood.close()


@pytest.mark.skipif(ENGINE != "native", reason="gRPC's core bounds no memory of headers")
def test_headers_of_calls_that_send_nothing_are_counted(server: ServerUnderTest) -> None:
    calls = Calls(PREDICT, None, http2.header("x-more", "a" * 10_000))
    before = server.total("recsys_port_held_bytes")
    with RawConnection(server.address) as connection:
        connection.send(http2.hello() + calls.opening() + calls.of(3, 99))
        connection.until_acknowledged()
        held = server.total("recsys_port_held_bytes") - before
        assert 100 * 10_000 < held < 2 * 100 * 10_000
    # The client is gone.
    while server.total("recsys_port_held_bytes") > before + 100_000:
        assert server.is_alive()


def test_memory_that_a_flood_has_held_goes_back_to_the_system(server: ServerUnderTest) -> None:
    calls = Calls(PREDICT, None, http2.header("x-more", "a" * 10_000))
    num_bytes = 100e6
    before = server.rss_bytes()
    connections = []
    for _ in range(math.ceil(num_bytes / (_DEPTH * 10_000))):
        connections.append(RawConnection(server.address))
        connections[-1].send(http2.hello() + calls.opening() + calls.of(3, _DEPTH - 1))
    for connection in connections:
        connection.until_acknowledged()
    while (most := server.rss_bytes()) < before + num_bytes * 0.9:
        assert server.is_alive()
    for connection in connections:
        connection.__exit__()
    # In some seconds, and whatever the allocator keeps for batches.
    while (now := server.rss_bytes()) > before + (most - before) * 0.3:
        most = max(most, now)
        assert server.is_alive()
