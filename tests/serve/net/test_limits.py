"""Each limit of connections at work on a live gRPC server."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest

from serve.client import PREDICT, Client
from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.net import limits as connections
from serve.net.limits import allow_open_files, channel_options, missing_open_files, num_ports
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import assert_answers, random_sample
from tests.support.serve.messages.echo import OWN_CONNECTION, call, echo_server
from tests.support.serve.spawned import spawned

# Frames of HTTP/2 (RFC 9113): what a client must say first, and an empty SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"any data"
_PONG, _GOAWAY = (6, 1), (7, 0)
NUM_IDLE = 1000


def _channel(address: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[*OWN_CONNECTION, *options])


async def _until_closed(channel: grpc.aio.Channel) -> None:
    """Until the channel has no connection any more; it does not make a new one by itself."""
    state = channel.get_state()
    while state is grpc.ChannelConnectivity.READY:
        await channel.wait_for_state_change(state)
        state = channel.get_state()


def test_a_larger_message_is_refused_and_one_at_the_limit_is_not() -> None:
    async def scenario() -> None:
        options = channel_options(ConnectionLimits(max_message_bytes=2048))
        async with echo_server(options) as (address, _), _channel(address) as channel:
            assert len(await call(channel, bytes(2048))) == 2048
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(channel, bytes(2049))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(await call(channel, bytes(2048))) == 2048

    asyncio.run(scenario())


def test_calls_beyond_the_limit_of_a_connection_wait_and_none_fails() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_concurrent_streams=50)
        async with echo_server(channel_options(limits)) as (address, echo), _channel(address) as channel:
            assert await call(channel) == b"hello"  # the limit is known to the client from here
            answers = await asyncio.gather(*(call(channel, bytes([i % 256])) for i in range(1000)))
            assert answers == [bytes([i % 256]) for i in range(1000)]
            assert echo.most_open <= 50

    asyncio.run(scenario())


def test_another_connection_has_calls_of_its_own_while_one_is_full() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_concurrent_streams=2)
        async with (
            echo_server(channel_options(limits)) as (address, echo),
            _channel(address) as full,
            _channel(address) as other,
        ):
            assert await call(full) == await call(other) == b"hello"
            echo.gate.clear()
            calls = [asyncio.ensure_future(call(full)) for _ in range(5)]
            another = asyncio.ensure_future(call(other))
            for _ in range(2 + 3):
                await echo.arrived.acquire()
            echo.gate.set()
            assert await asyncio.gather(*calls, another) == [b"hello"] * 6
            assert echo.most_open <= 4

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(ConnectionLimits(max_connection_idle_s=0.2), id="idle"),
        pytest.param(ConnectionLimits(max_connection_age_s=0.2), id="age"),
    ],
)
def test_old_connections_are_closed_and_new_ones_are_made(limits: ConnectionLimits) -> None:
    async def scenario() -> None:
        async with echo_server(channel_options(limits)) as (address, _), _channel(address) as channel:
            for _ in range(2):
                assert await call(channel) == b"hello"
                await asyncio.wait_for(_until_closed(channel), 60)

    asyncio.run(scenario())


def test_an_old_connection_ends_its_calls_first() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_connection_age_s=0.2, max_connection_idle_s=0.2)
        async with echo_server(channel_options(limits)) as (address, echo), _channel(address) as channel:
            assert await call(channel) == b"hello"
            echo.gate.clear()
            waiting = asyncio.ensure_future(call(channel))
            # The server says goodbye: the channel has no connection for new calls, and the old one goes on.
            await asyncio.wait_for(_until_closed(channel), 60)
            assert not waiting.done()
            echo.gate.set()
            assert await waiting == b"hello"

    asyncio.run(scenario())


def test_further_connections_are_refused_until_others_leave() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_connections=2)
        async with echo_server(channel_options(limits)) as (address, _), AsyncExitStack() as stack:
            first, second = [await stack.enter_async_context(_channel(address)) for _ in range(2)]
            assert await call(first) == await call(second) == b"hello"
            async with _channel(address) as third:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(third)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await call(first) == await call(second) == b"hello"
            await first.close()
            async with _channel(address, ("grpc.initial_reconnect_backoff_ms", 100)) as fourth:
                assert (
                    await fourth.unary_unary("/test.Echo/Echo")(b"x", wait_for_ready=True, timeout=60) == b"x"
                )

    asyncio.run(scenario())


def test_a_connection_that_never_says_what_it_wants_is_closed() -> None:
    async def scenario() -> None:
        async with echo_server(channel_options(ConnectionLimits(handshake_timeout_s=0.2))) as (address, _):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await asyncio.wait_for(reader.read(), 60)  # until its end
            writer.close()

    asyncio.run(scenario())


def test_a_connection_whose_client_is_gone_is_closed() -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(keepalive_s=0.1, keepalive_timeout_s=0.1)
        async with echo_server(channel_options(limits)) as (address, _):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(_HELLO)  # and no answer to any ping
            await asyncio.wait_for(reader.read(), 60)
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("num_bytes", [6_000, 60_000], ids=["within", "beyond"])
def test_headers_are_bounded(num_bytes: int) -> None:
    async def scenario() -> None:
        limits = ConnectionLimits(max_header_bytes=32 << 10)
        async with echo_server(channel_options(limits)) as (address, _), _channel(address) as channel:
            answer = channel.unary_unary("/test.Echo/Echo")(b"x", metadata=[("some-key", "v" * num_bytes)])
            if num_bytes <= limits.max_header_bytes:
                assert await answer == b"x"
                return
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(scenario())


async def _frame(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Type and flags of the next frame."""
    head = await reader.readexactly(9)
    await reader.readexactly(int.from_bytes(head[:3], "big"))
    return head[3], head[4]


@pytest.mark.parametrize("is_allowed", [True, False], ids=["allowed", "too-often"])
def test_clients_may_ask_whether_the_server_is_there(
    is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_allowed:
        monkeypatch.setattr(connections, "_MIN_PING_INTERVAL_MS", 0)

    async def scenario() -> None:
        async with echo_server(channel_options(ConnectionLimits())) as (address, _):
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(_HELLO + 10 * _PING)
            seen: Counter[tuple[int, int]] = Counter()
            while not seen[_GOAWAY] and seen[_PONG] < 11:
                seen[await asyncio.wait_for(_frame(reader), 60)] += 1
                if is_allowed and seen[_PONG] == 10:
                    writer.write(_PING)  # whoever answers this one has not said goodbye before
            assert bool(seen[_GOAWAY]) is not is_allowed
            writer.close()

    asyncio.run(scenario())


@pytest.fixture
def many_files() -> Iterator[None]:
    """Files enough for both ends of many connections; skips where the machine does not let us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * NUM_IDLE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files; this machine allows {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _resident_bytes(process: str = "self") -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("hello", [b"", _HELLO], ids=["silent", "http2"])
def test_a_thousand_idle_connections_hurt_nobody(hello: bytes) -> None:
    async def scenario() -> None:
        options = channel_options(ConnectionLimits())
        async with echo_server(options) as (address, _), _channel(address) as channel:
            assert await call(channel) == b"hello"
            host, port = address.split(":")
            before_bytes = _resident_bytes()
            with ExitStack() as idle:
                for i in range(NUM_IDLE):
                    connection = idle.enter_context(socket.create_connection((host, int(port))))
                    connection.sendall(hello)
                    if i % 100 == 0:
                        assert await call(channel, bytes(1000)) == bytes(1000)
                async with _channel(address) as new:
                    assert await call(new) == b"hello"
                assert await call(channel) == b"hello"
                # Both ends together: 256 KiB for each connection would be far too much.
                assert _resident_bytes() - before_bytes < NUM_IDLE * 256 * 1024
            assert await call(channel) == b"hello"

    asyncio.run(scenario())


def test_no_bound_is_no_option() -> None:
    names = {
        "grpc.max_allowed_incoming_connections",
        "grpc.max_concurrent_streams",
        "grpc.max_connection_idle_ms",
        "grpc.max_connection_age_ms",
    }
    unbounded = ConnectionLimits(
        max_connections=0, max_concurrent_streams=0, max_connection_idle_s=0, max_connection_age_s=0
    )
    assert not names & dict(channel_options(unbounded)).keys()
    bounded = ConnectionLimits(max_connection_age_s=1.5)
    assert names < dict(channel_options(bounded)).keys()
    assert dict(channel_options(bounded))["grpc.max_connection_age_ms"] == 1500


def test_the_process_may_open_files_for_all_connections_or_says_how_many_not() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        allow_open_files(ConnectionLimits(max_connections=100))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (356, hard)
        allow_open_files(ConnectionLimits(max_connections=10))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (356, hard)
        assert missing_open_files(ConnectionLimits(max_connections=10)) == 0
        http = ServerConfig(http_port=0, connections=ConnectionLimits(max_connections=100))
        assert num_ports(http) == 2
        allow_open_files(http.connections, 2)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (456, hard)
        if hard != resource.RLIM_INFINITY:
            assert missing_open_files(ConnectionLimits(max_connections=hard)) == 256
            allow_open_files(ConnectionLimits(max_connections=hard))
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_connections_leave_a_real_server_serving(
    server_command: list[str], model: ServedModel, tmp_path: Path
) -> None:
    sample = random_sample(model.signature, 3, np.random.default_rng(0))
    with spawned(server_command, tmp_path / "log") as server, Client(server.address, timeout_s=60) as client:
        before = client.predict(sample.dense, sample.sparse, sample.weights)
        before_bytes = _resident_bytes(str(server.process.pid))
        with ExitStack() as idle:
            for _ in range(NUM_IDLE):
                idle.enter_context(socket.create_connection(("127.0.0.1", server.ready["port"]))).sendall(
                    _HELLO
                )
            with Client(server.address, timeout_s=60) as new:
                assert_answers(new.predict(sample.dense, sample.sparse, sample.weights), before)
            assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), before)
            grown_bytes = _resident_bytes(str(server.process.pid)) - before_bytes
        assert grown_bytes < NUM_IDLE * 128 * 1024
        server.process.terminate()
        code, stopped = server.finish()
    assert (code, stopped["ok"], stopped["accepted"]) == (0, 3, 3)


def test_calls_that_wait_for_a_busy_event_loop_are_answered_and_not_cancelled(model: ServedModel) -> None:
    """gRPC's own limits would end most of them as CANCELLED, as if their clients had given up."""
    num_calls, num_connections = 3600, 4
    request = random_sample(model.signature, 1, np.random.default_rng(0)).request().SerializeToString()

    async def codes(address: str, sent: threading.Event) -> Counter[str]:
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(address, OWN_CONNECTION))
                for _ in range(num_connections)
            ]
            for channel in channels:
                await channel.channel_ready()
            calls = [
                channels[i % num_connections].unary_unary(PREDICT)(request, timeout=100)
                for i in range(num_calls)
            ]
            pending = {asyncio.ensure_future(call.code()) for call in calls}
            # All that the connections may have open is on its way once nothing has moved for a while.
            done, _ = await asyncio.wait(pending, timeout=2)
            assert not done
            sent.set()
            return Counter([code.name for code in await asyncio.gather(*pending)])

    with LiveServer(model) as live:
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            assert release.wait(60)

        live.call_in_loop(hold)
        assert held.wait(60)
        sent = threading.Event()
        waiter = threading.Thread(target=lambda: (sent.wait(60), release.set()))
        waiter.start()
        found = asyncio.run(codes(live.address, sent))
        waiter.join(60)
    assert found == {"OK": num_calls}
