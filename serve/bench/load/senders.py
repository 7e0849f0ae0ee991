"""Senders of single requests. Each belongs to the event loop in which it was opened."""

from __future__ import annotations

import asyncio
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

_Waiting = dict[str, asyncio.Future[Failure | None]]


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
        self._address = target.address
        self._url = f"http://{target.address}{path}"
        self._timeout_s = target.timeout_s
        self._session: Any = None

    async def open(self) -> None:
        """Connect once, to see that a server answers."""
        import aiohttp  # an optional dependency

        host, _, port = self._address.rpartition(":")
        _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"},
            raise_for_status=False,
        )

    async def send(self, request: Prepared) -> Failure | None:
        """Send, wait for the end, and return why it failed."""
        import aiohttp

        try:
            async with (
                asyncio.timeout(request.deadline_s or self._timeout_s),
                self._session.post(self._url, data=request.data) as response,
            ):
                body = await response.read()
        except TimeoutError:
            return Failure("DEADLINE_EXCEEDED", "no answer in time")
        except (OSError, aiohttp.ClientError) as error:
            return Failure("UNAVAILABLE", str(error) or type(error).__name__)
        return (
            None
            if response.status == 200
            else Failure(f"HTTP_{response.status}", body.decode(errors="replace"))
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
