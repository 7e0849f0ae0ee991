"""Clients that are broken, hostile or gone: each hurts itself alone."""

from __future__ import annotations

import resource
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from serve.client import PREDICT, PREDICT_STREAM
from serve.wire import predict_pb2 as wire
from tests.conformance.support import http2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http2 import RawConnection, frame, hello, message, opened
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine

NUM_IDLE = 1000
_MESSAGE_LIMIT = 4 << 20


@dataclass
class Bystander:
    """A client that does everything right, over a connection that was there before the trouble."""

    server: ServerUnderTest
    small: Exported

    def __post_init__(self) -> None:
        self._client = self.server.client()
        self._sample = self.small.sample(3)
        self._answer = self.small.answer(self._sample)

    def is_served(self) -> None:
        """Over the old connection, and over a new one."""
        for client in (self._client, self.server.client()):
            found = client.predict(self._sample.dense, self._sample.sparse, self._sample.weights)
            assert_answers(found, self._answer)


@pytest.fixture
def bystander(server: ServerUnderTest, small: Exported) -> Iterator[Bystander]:
    """Served before a case, and after it; nothing that a case does may count as the server's own failure."""
    found = Bystander(server, small)
    found.is_served()
    yield found
    found.is_served()
    assert server.is_alive()
    assert "Traceback" not in server.log.read_text()  # nor may it fill the log
    assert server.total("recsys_requests_total", outcome="failed") == 0
    assert server.total("recsys_pending_rows") == 0


def _client_hello() -> bytes:
    """What a client says that expects TLS."""
    context = ssl.create_default_context()
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(coming, going, server_hostname="localhost").do_handshake()
    return going.read()


def _random(num_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(num_bytes)


def _garbage_frames() -> bytes:
    rng = np.random.default_rng(1)
    return b"".join(
        frame(
            int(rng.integers(0, 256)),
            int(rng.integers(0, 256)),
            int(rng.integers(0, 1 << 31)),
            _random(99, i),
        )
        for i in range(100)
    )


def _endless_headers() -> bytes:
    """1 MB of one call's headers, in pieces of which none is the last."""
    piece = http2.header("x-more", "a" * 16000)
    first = frame(http2.HEADERS, 0, 1, http2.call(PREDICT))
    return first + 64 * frame(http2.CONTINUATION, 0, 1, piece)


def _header_bomb() -> bytes:
    """16 KB that stand for 64 MB: one large header, remembered, then named again with a byte each time."""
    block = http2.call(PREDICT, http2.remembered("x-bomb", "a" * 4000)) + bytes([0x80 | 62]) * 12000
    return frame(http2.HEADERS, http2.END_HEADERS, 1, block)


def _resets() -> bytes:
    """Calls that are opened and given up at once, again and again (CVE-2023-44487)."""
    cancel = struct.pack(">I", 8)
    return b"".join(
        opened(PREDICT, stream) + frame(http2.RST_STREAM, 0, stream, cancel) for stream in range(1, 4001, 2)
    )


BYTES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "http1": lambda: b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-tls-hello": _client_hello,
    "random": lambda: _random(1 << 16),
    "zeros": lambda: bytes(1 << 16),
    "half-a-preface": lambda: http2.PREFACE[:11],
    "no-settings": lambda: http2.PREFACE + opened(PREDICT),
    "garbage-frames": lambda: hello() + _garbage_frames(),
    "random-after-the-hello": lambda: hello() + _random(1 << 16),
    "a-huge-frame": lambda: hello() + b"\xff\xff\xff" + frame(http2.DATA, 0, 1)[3:] + bytes(1 << 16),
    "half-a-frame": lambda: hello() + opened(PREDICT)[:20],
    "data-of-no-call": lambda: hello() + message(b"data", stream=7),
    "data-of-the-connection": lambda: hello() + frame(http2.DATA, 0, 0, b"data"),
    "an-even-call": lambda: hello() + opened(PREDICT, stream=2),
    "a-call-that-depends-on-itself": lambda: hello() + frame(http2.PRIORITY, 0, 1, b"\0\0\0\x01\x10"),
    "settings-of-an-odd-size": lambda: hello() + frame(http2.SETTINGS, 0, 0, b"12345"),
    "a-promise": lambda: hello() + frame(http2.PUSH_PROMISE, http2.END_HEADERS, 1, b"\0\0\0\x02"),
    "headers-that-are-none": lambda: hello() + frame(http2.HEADERS, http2.END_HEADERS, 1, _random(1000)),
    "headers-named-that-never-were": lambda: (
        hello() + frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\x7f")
    ),
    "a-window-beyond-its-bound": lambda: hello() + 2 * frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"),
    "settings-again-and-again": lambda: hello() + 5000 * frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff"),
    "pings-again-and-again": lambda: hello() + 5000 * frame(http2.PING, 0, 0, b"8 bytes!"),
    "empty-data-again-and-again": lambda: hello() + opened(PREDICT) + 5000 * frame(http2.DATA, 0, 1),
    "headers-without-end": lambda: hello() + _endless_headers(),
    "a-header-bomb": lambda: hello() + _header_bomb(),
    "calls-given-up-again-and-again": lambda: hello() + _resets(),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_calls_hurt_nobody_else(bystander: Bystander, name: str) -> None:
    data = BYTES[name]()
    before = bystander.server.rss_bytes()
    with ExitStack() as opened_connections:
        for _ in range(5):
            connection = opened_connections.enter_context(RawConnection(bystander.server.address))
            connection.send(data)
        bystander.is_served()
    with RawConnection(bystander.server.address) as connection:
        connection.send(data)
        connection.end_of_input()
        connection.drain()  # the server closes its side too
    assert bystander.server.rss_bytes() - before < 150e6


def test_two_hundred_connections_of_random_bytes_hurt_nobody_else(bystander: Bystander) -> None:
    rng = np.random.default_rng(3)
    for seed in range(200):
        start = [b"", http2.PREFACE, hello(), hello() + opened(PREDICT)][seed % 4]
        with RawConnection(bystander.server.address) as connection:
            connection.send(start + _random(int(rng.integers(1, 5000)), seed))
            if seed % 2:
                connection.reset()


def _half(data: bytes) -> bytes:
    """A message of which the second half never comes."""
    body = struct.pack(">BI", 0, len(data)) + data[: len(data) // 2]
    return frame(http2.DATA, 0, 1, body)


NO_MESSAGES = {
    "no-bytes": b"",
    "half-a-prefix": b"\0\0\0",
    "truncated": struct.pack(">BI", 0, 999) + bytes(50),
    "of-4-gib": struct.pack(">BI", 0, 0xFFFFFFFF) + bytes(50),
    "compressed-by-nothing": struct.pack(">BI", 1, 50) + bytes(50),
    "an-unknown-flag": struct.pack(">BI", 77, 50) + bytes(50),
}


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_a_message_that_is_none_is_not_accepted_and_the_next_call_of_its_connection_is_answered(
    bystander: Bystander, small: Exported, name: str
) -> None:
    body = frame(http2.DATA, http2.END_STREAM, 1, NO_MESSAGES[name])
    data = small.sample(3).request().SerializeToString()
    accepted = bystander.server.total("recsys_requests_accepted_total")
    with RawConnection(bystander.server.address) as connection:
        connection.send(hello() + opened(PREDICT) + body + opened(PREDICT, 3) + message(data, 3))
        end = connection.until_ended(3)
        assert end is not None
        assert end.kind == http2.HEADERS
    assert bystander.server.total("recsys_requests_accepted_total") == accepted + 1


def test_two_messages_where_one_belongs_end_their_call(bystander: Bystander, small: Exported) -> None:
    data = small.sample(1).request().SerializeToString()
    with RawConnection(bystander.server.address) as connection:
        connection.send(hello() + opened(PREDICT) + message(data, flags=0) + message(data))
        assert connection.until_ended() is not None


@pytest.mark.parametrize("extra", [1, 1 << 20], ids=["a-byte", "a-megabyte"])
def test_a_message_above_the_limit_is_refused_and_the_connection_goes_on(
    bystander: Bystander, small: Exported, extra: int
) -> None:
    channel = bystander.server.channel()
    code, text = status_of(lambda: bystander.server.predict_bytes(channel)(bytes(_MESSAGE_LIMIT + extra)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(_MESSAGE_LIMIT) in text
    sample = small.sample(2)
    answer = bystander.server.predict_bytes(channel)(sample.request().SerializeToString())
    assert wire.PredictResponse.FromString(answer).version == bystander.server.ready["version"]


def test_a_message_at_the_limit_is_read(bystander: Bystander) -> None:
    code, text = status_of(lambda: bystander.server.predict_bytes()(bytes(_MESSAGE_LIMIT)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"got {_MESSAGE_LIMIT} bytes that are not a PredictRequest" in text


@pytest.mark.parametrize("end", [RawConnection.reset, RawConnection.end_of_input], ids=["reset", "closed"])
@pytest.mark.parametrize("method", [PREDICT, PREDICT_STREAM], ids=["predict", "stream"])
def test_a_client_that_vanishes_in_the_middle_of_a_request_leaves_nothing_behind(
    bystander: Bystander, small: Exported, method: str, end: Callable[[RawConnection], None]
) -> None:
    data = small.sample(100).request().SerializeToString()
    accepted = bystander.server.total("recsys_requests_accepted_total")
    before = bystander.server.rss_bytes()
    for _ in range(100):
        with RawConnection(bystander.server.address) as connection:
            connection.send(hello() + opened(method) + _half(data))
            connection.until_acknowledged()
            end(connection)
    assert bystander.server.total("recsys_requests_accepted_total") == accepted
    assert bystander.server.rss_bytes() - before < 20e6


def test_a_client_that_vanishes_before_its_answers_leaves_nothing_behind(
    bystander: Bystander, small: Exported
) -> None:
    data = small.sample(100).request().SerializeToString()
    for i in range(100):
        connection = RawConnection(bystander.server.address)
        if i % 2:
            connection.send(hello() + opened(PREDICT) + message(data))
        else:
            connection.send(hello() + opened(PREDICT_STREAM) + 3 * message(data, flags=0))
        connection.reset()
    bystander.is_served()
    # What was accepted has ended in one way or another.
    for _ in range(1000):
        ended = bystander.server.total("recsys_requests_total")
        accepted = bystander.server.total("recsys_requests_accepted_total")
        # Those that are not accepted: the request of the server's fixture, and what found the queue full.
        for outcome in ("invalid", "rejected"):
            accepted += bystander.server.total("recsys_requests_total", outcome=outcome)
        if ended == accepted:
            break
    assert ended == accepted


def _much_from_little(small: Exported) -> bytes:
    """A request of some hundred bytes whose answer has more than a hundred thousand."""
    request = small.sample(1, max_ids=1).request()
    for given, shared in ((request.dense, request.context_dense), (request.sparse, request.context_sparse)):
        shared.extend(given)
        del given[:]
    request.num_rows = 4096
    data: bytes = request.SerializeToString()
    return data


def test_clients_that_send_and_never_read_take_bounded_memory_and_no_more_each_time(
    small: Exported, tmp_path: Path
) -> None:
    data = _much_from_little(small)
    # All that a client may send before it has read that there is room for more.
    num_requests = http2.WINDOW_BYTES // (len(data) + 5)
    flood = hello() + b"".join(
        opened(PREDICT, stream) + message(data, stream) for stream in range(1, 2 * num_requests, 2)
    )
    num_floods, taken = 2, []
    with running(small.path, "--max-queue-rows", 100_000_000, folder=tmp_path) as server:
        bystander = Bystander(server, small)
        bystander.is_served()
        before = server.rss_bytes()
        # The engine's own thread makes answers as well as its executors.
        num_threads = 1 + server.total("recsys_executors")
        for _ in range(2 + int(num_threads)):
            accepted = server.total("recsys_requests_accepted_total")
            with ExitStack() as silent:
                for _ in range(num_floods):
                    silent.enter_context(RawConnection(server.address, receive_bytes=4096)).send(flood)
                while server.total("recsys_requests_accepted_total") < accepted + num_floods * num_requests:
                    bystander.is_served()
                while server.total("recsys_pending_rows"):
                    bystander.is_served()
                taken.append(server.rss_bytes() - before)
        bystander.is_served()
        assert server.total("recsys_requests_total", outcome="failed") == 0
        assert "Traceback" not in server.log.read_text()
    # Each connection holds its answers, of 112 KiB each. What is freed the allocator may keep for the next ones, apart
    # for each thread; it is more after a flood that another thread has answered.
    assert max(taken) < 1.25 * num_threads * num_floods * num_requests * 115_000
    assert max(taken) < 1.25 * num_threads * taken[0]


@pytest.fixture
def many_files() -> Iterator[None]:
    """Files enough for our end of many connections; skips where the machine does not let us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NUM_IDLE + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files; this machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    "data", [b"", hello(), hello() + opened(PREDICT)], ids=["silent", "idle", "open-calls"]
)
def test_a_thousand_idle_connections_take_bounded_memory_and_hurt_nobody(
    bystander: Bystander, data: bytes
) -> None:
    before = bystander.server.rss_bytes()
    with ExitStack() as idle:
        for i in range(NUM_IDLE):
            idle.enter_context(RawConnection(bystander.server.address)).send(data)
            if i % 100 == 0:
                bystander.is_served()
        bystander.is_served()
        assert bystander.server.rss_bytes() - before < NUM_IDLE * 128 * 1024
