"""The inference port on ``grpc.aio``: three protocols, health, and the calls common to all engines.

Why asyncio: one event loop that only checks and forwards requests, next to executors that run the models
without the interpreter's lock, answers more single-row requests than a pool of threads that each wait for one
answer (measured in docs/operate/tuning.md).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from serve.engine.interface import HostCall, PortSettings
from serve.engine.reference.gateway import Gateway, Request
from serve.engine.reference.protocols import recsys_v1, torchrec
from serve.engine.reference.protocols.open_inference import InferRequest
from serve.engine.reference.protocols.recsys_v1 import PredictRequest
from serve.engine.reference.protocols.torchrec import PredictionRequest
from serve.net.limits import channel_options
from serve.net.sockets import add_port
from serve.protocols import open_inference
from serve.protocols.calls import BytesMethod, abort, headers_of
from serve.protocols.streams import Write, infer_stream, predict_stream

# Metadata keys of a TorchRec call for the model and its version.
MODEL_KEY, VERSION_KEY = "recsys-model", "recsys-version"
# The engine limits the drain time itself.
_UNLIMITED_S = 1e6

_Kind = type[PredictRequest] | type[InferRequest] | type[PredictionRequest]
_UnaryHandler = Callable[[bytes, Any], Awaitable[bytes]]
_StreamHandler = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]
_AnswerStream = Callable[[BytesMethod, AsyncIterator[bytes], Write, int], Awaitable[None]]


class Port:
    """Listens between ``start`` and ``close``.

    Args:
        gateway: answers the requests.
        settings: the address and the limits.
        calls: methods common to all engines, by full name.
    """

    def __init__(self, gateway: Gateway, settings: PortSettings, calls: Mapping[str, HostCall]) -> None:
        self._gateway = gateway
        self._settings = settings
        self._max_stream_requests = settings.connections.max_stream_requests
        self._health = health.aio.HealthServicer()
        self._tasks: set[asyncio.Future[None]] = set()
        self._stopping: asyncio.Future[None] | None = None
        self._server = grpc.aio.server(options=channel_options(settings.connections))
        self._server.add_generic_rpc_handlers(self._handlers(calls))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> int:
        """Listen, and return the port's number.

        Raises:
            OSError: the port is taken or the address is not this machine's.
            SecurityError: the TLS files cannot be used.
        """
        settings = self._settings
        for service in ("", recsys_v1.SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)
        port = add_port(self._server, settings.host, settings.port, settings.tls, "listen")
        await self._server.start()
        return port

    def set_health(self, service: str, is_serving: bool) -> None:
        """Set the health status of a service."""
        status = health_pb2.HealthCheckResponse
        self._run(self._health.set(service, status.SERVING if is_serving else status.NOT_SERVING))

    def drain(self) -> None:
        """Accept no further connections and calls; open ones go on. Health is NOT_SERVING. Idempotent."""
        if self._stopping is not None:
            return
        self._run(self._health.enter_graceful_shutdown())
        # Ends as soon as no call is left.
        self._stopping = asyncio.ensure_future(self._server.stop(_UNLIMITED_S))

    async def has_ended(self, timeout_s: float) -> bool:
        """Wait until the last call has ended, or until the timeout; return False on timeout."""
        if self._stopping is None:
            return True
        await asyncio.wait({self._stopping}, timeout=timeout_s)
        return self._stopping.done()

    async def close(self) -> None:
        """End the remaining calls: open streams, and requests beyond the drain time."""
        await self._server.stop(None)
        if self._stopping is not None:
            await self._stopping
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, change: Awaitable[None]) -> None:
        """Run a coroutine of the health service; these only wait for a lock."""
        task = asyncio.ensure_future(change)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _handlers(self, calls: Mapping[str, HostCall]) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return handlers without (de)serializers: they take and return bytes."""
        methods: dict[str, dict[str, grpc.RpcMethodHandler]] = defaultdict(dict)
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        methods[recsys_v1.SERVICE]["Predict"] = unary(self._unary(PredictRequest))
        methods[recsys_v1.SERVICE]["PredictStream"] = stream(self._stream(PredictRequest, predict_stream))
        methods[open_inference.SERVICE]["ModelInfer"] = unary(self._unary(InferRequest))
        methods[open_inference.SERVICE]["ModelStreamInfer"] = stream(self._stream(InferRequest, infer_stream))
        # Model and version are in the call's metadata.
        methods[torchrec.SERVICE]["Predict"] = unary(self._unary(PredictionRequest))
        for name, call in calls.items():
            _, service, method = name.split("/")
            methods[service][method] = stream(_stream_of(call)) if call.is_stream else unary(_alone(call))
        return tuple(
            grpc.method_handlers_generic_handler(service, of_service)
            for service, of_service in methods.items()
        )

    def _unary(self, kind: _Kind) -> _UnaryHandler:
        return _unary_of(lambda data, context: self._answer(kind, context, data))

    def _stream(self, kind: _Kind, answer_stream: _AnswerStream) -> _StreamHandler:
        async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
            one = partial(self._answer, kind, context)
            await answer_stream(one, requests, context.write, self._max_stream_requests)

        return answer

    async def _answer(self, kind: _Kind, context: Any, data: bytes) -> bytes:
        request: Request
        try:
            request = kind.parse(data)
        except Exception as error:
            self._gateway.refused(error, kind.PROTOCOL)
            raise
        request.protocol = kind.PROTOCOL
        request.client = context.peer()
        request.expect_within(context.time_remaining())
        if self._gateway.reads_headers or kind is PredictionRequest:
            headers = headers_of(context)
            if kind is PredictionRequest:
                request.model = headers.get(MODEL_KEY, "")
                request.version = headers.get(VERSION_KEY, "")
            self._gateway.read_headers(request, headers)
        return await self._gateway.predict(request)


def _unary_of(call: _UnaryHandler) -> _UnaryHandler:
    """Return a handler that aborts a call whose answer fails."""

    async def answer(data: bytes, context: Any) -> bytes:
        try:
            return await call(data, context)
        except Exception as error:
            await abort(context, error)

    return answer


def _alone(call: HostCall) -> _UnaryHandler:
    return _unary_of(lambda data, _context: call.answer(data))


def _stream_of(call: HostCall) -> _StreamHandler:
    async def answer(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            async for data in requests:
                await context.write(await call.answer(data))
        except grpc.aio.BaseError:
            raise
        except Exception as error:
            await abort(context, error)

    return answer
