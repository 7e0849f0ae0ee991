"""Senders of single requests. Each belongs to the event loop in which it was opened."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any, Protocol

import grpc
import grpc.aio

from serve.bench.load.measured import Failure
from serve.bench.load.plan import Target
from serve.bench.load.requests import Prepared
from serve.bench.load.wires import PROTOCOLS, rest_path, with_request_id
from serve.client import CHANNEL_OPTIONS, PREDICT_STREAM
from serve.wire import predict_pb2 as wire

_CONNECT_S = 10.0
# Each channel has its own connection, even to the same address.
_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_MOST_HEADERS = 64
_MOST_BODY_BYTES = 1 << 30

_Waiting = dict[str, asyncio.Future[Failure | None]]
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Sender(Protocol):
    """A way to send one request."""

    async def open(self) -> None:
        """Connect; raises OSError if no server answers."""

    async def send(self, request: Prepared) -> Failure | None:
        """Send a request, wait for its end, and return its failure; None if it was answered."""

    async def close(self) -> None:
        """Close the connections."""


def sender(target: Target, model: str, version: str) -> Sender:
    """Return the sender for a target.

    Args:
        target: where requests go.
        model: model in the path of HTTP requests.
        version: version in the path of HTTP requests; empty to let the server choose.
    """
    if target.protocol == "rest":
        return HttpSender(target, rest_path(model, version))
    return StreamSender(target) if target.stream else CallSender(target)


class _Channels:
    """The connections of a target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.channels: list[Any] = []

    async def open(self) -> None:
        target = self._target
        secret = target.tls.credentials() if target.tls else None
        for _ in range(target.num_connections):
            if secret is None:
                channel = grpc.aio.insecure_channel(target.address, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(target.address, secret, options=_OPTIONS)
            self.channels.append(channel)
        try:
            ready = (channel.channel_ready() for channel in self.channels)
            await asyncio.wait_for(asyncio.gather(*ready), _CONNECT_S)
        except TimeoutError:
            raise ConnectionError(f"UNAVAILABLE: no connection to {target.address}") from None

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


class CallSender:
    """A gRPC call for each request.

    Args:
        target: where requests go.
    """

    def __init__(self, target: Target) -> None:
        self._channels = _Channels(target)
        self._method = PROTOCOLS[target.protocol].method
        self._timeout_s = target.timeout_s
        self._calls: Any = None

    async def open(self) -> None:
        """Connect."""
        await self._channels.open()
        self._calls = itertools.cycle([c.unary_unary(self._method) for c in self._channels.channels])

    async def send(self, request: Prepared) -> Failure | None:
        """Send, wait for the end, and return why it failed."""
        try:
            await next(self._calls)(request.data, timeout=request.deadline_s or self._timeout_s)
        except grpc.aio.AioRpcError as error:
            return Failure(error.code().name, error.details() or "")
        return None

    async def close(self) -> None:
        """Close the connections."""
        await self._channels.close()


class StreamSender:
    """Requests over ``PredictStream``, one stream for each connection; a broken stream is reopened.

    Args:
        target: where requests go.
    """

    def __init__(self, target: Target) -> None:
        self._channels = _Channels(target)
        self._timeout_s = target.timeout_s
        self._streams: Any = None
        self._all: list[_Stream] = []

    async def open(self) -> None:
        """Connect."""
        await self._channels.open()
        self._all = [_Stream(channel.stream_stream(PREDICT_STREAM)) for channel in self._channels.channels]
        self._streams = itertools.cycle(self._all)

    async def send(self, request: Prepared) -> Failure | None:
        """Send, wait for the end, and return why it failed."""
        stream: _Stream = next(self._streams)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await stream.send(request.data)
        except TimeoutError:
            return Failure("DEADLINE_EXCEEDED", "no answer on the stream in time")

    async def close(self) -> None:
        """Close the connections."""
        for stream in self._all:
            await stream.close()
        await self._channels.close()


class _Stream:
    """One stream: a task reads its answers and passes each to its waiting request."""

    def __init__(self, method: Any) -> None:
        self._method = method
        self._call: Any = None
        self._waiting: _Waiting = {}
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        # gRPC accepts one message at a time.
        self._writing = asyncio.Lock()

    async def send(self, data: bytes) -> Failure | None:
        name = str(next(self._numbers))
        answered: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        async with self._writing:
            if self._call is None:
                self._call, self._waiting = self._method(), {}
                self._reader = asyncio.create_task(self._read(self._call, self._waiting))
            call, waiting = self._call, self._waiting
            waiting[name] = answered
            try:
                await call.write(with_request_id(data, name.encode()))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                # The reader gets the reason and fails every waiting request; the next request opens a new
                # stream.
                self._forget(call)
        try:
            return await answered
        finally:
            waiting.pop(name, None)

    async def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    def _forget(self, call: Any) -> None:
        if self._call is call:
            self._call = None

    async def _read(self, call: Any, waiting: _Waiting) -> None:
        """Pass on answers until the stream ends, then fail the waiting requests."""
        failure = Failure("CANCELLED", "the server ended the stream")
        try:
            async for data in call:
                message = wire.StreamResponse.FromString(data)
                answered = waiting.get(message.request_id)
                if answered is not None and not answered.done():
                    answered.set_result(_stream_failure(message))
        except grpc.aio.AioRpcError as error:
            failure = Failure(error.code().name, error.details() or "")
        finally:
            self._forget(call)
            for answered in waiting.values():
                if not answered.done():
                    answered.set_result(failure)


def _stream_failure(message: wire.StreamResponse) -> Failure | None:
    if message.WhichOneof("result") != "error":
        return None
    return Failure(_CODES.get(message.error.code, "UNKNOWN"), message.error.message)


class HttpSender:
    """``POST`` for each request, with one connection per unanswered request.

    Args:
        target: where requests go.
        path: path of the request.
    """

    def __init__(self, target: Target, path: str) -> None:
        self._connections = HttpConnections(target.address, path)
        self._timeout_s = target.timeout_s

    async def open(self) -> None:
        """Connect."""
        await self._connections.open()

    async def send(self, request: Prepared) -> Failure | None:
        """Send, wait for the end, and return why it failed."""
        try:
            async with asyncio.timeout(request.deadline_s or self._timeout_s):
                status, body = await self._connections.post(request.data)
        except TimeoutError:
            return Failure("DEADLINE_EXCEEDED", "no answer in time")
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            return Failure("UNAVAILABLE", str(error))
        return None if status == 200 else Failure(f"HTTP_{status}", body.decode(errors="replace"))

    async def close(self) -> None:
        """Close the connections."""
        await self._connections.close()


class HttpConnections:
    """A pool of HTTP/1.1 connections for ``POST`` requests.

    The most recently used idle connection is reused; without one, a new connection is opened.

    Args:
        address: ``host:port``.
        path: path of the requests.
    """

    def __init__(self, address: str, path: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[_Connection] = []
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()

    async def open(self) -> None:
        """Open the first connection; raises OSError if no server answers."""
        self._idle.append(await asyncio.open_connection(self._host.strip("[]"), self._port))

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Send a request and return the status and body of the answer.

        Raises:
            OSError: the connection broke or could not be opened.
            EOFError: the connection ended within the answer.
            ValueError: the answer is not HTTP/1.1.
        """
        if not self._idle:
            await self.open()
        reader, writer = self._idle.pop()
        is_open = False
        try:
            writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
            await writer.drain()
            status, answer, is_open = await _read(reader)
        finally:
            if is_open:
                self._idle.append((reader, writer))
            else:
                await _close(writer)
        return status, answer

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await _close(self._idle.pop()[1])


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Return status, body, and whether the connection stays open."""
    words = (await reader.readuntil(b"\r\n")).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("expected an answer of HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
        if len(headers) > _MOST_HEADERS:
            raise ValueError(f"expected at most {_MOST_HEADERS} headers")
    is_open = headers.get(b"connection") != b"close"
    if headers.get(b"transfer-encoding") == b"chunked":
        return int(words[1]), await _read_chunks(reader), is_open
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > _MOST_BODY_BYTES:
        raise ValueError("expected a Content-Length of at most 1 GiB")
    return int(words[1]), await reader.readexactly(int(length)), is_open


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    num_bytes = 0
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        num_bytes += size
        if size < 0 or num_bytes > _MOST_BODY_BYTES:
            raise ValueError("expected chunks of at most 1 GiB together")
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers are ignored
    return b"".join(pieces)
