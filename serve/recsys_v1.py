"""Our own protocol, ``recsys.v1.PredictionService``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from serve.batching import Priority
from serve.errors import QueueFullError, RequestError, status_of
from serve.gateway import Gateway, Incoming, checked_request_id
from serve.grpc_support import abort, parse, respond, trace_parent
from serve.hosted import HostedModel
from serve.wire import predict_pb2 as wire
from serve.work import Rows

SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name
_PROTOCOL = "recsys"


class RecsysV1:
    """Predict, PredictStream, GetModelMetadata.

    Args:
        gateway: answers.
        max_message_bytes: stands in the metadata.
        max_stream_requests: unanswered requests of one stream; more are not read from it.
    """

    def __init__(self, gateway: Gateway, *, max_message_bytes: int, max_stream_requests: int) -> None:
        self._gateway = gateway
        self._max_message_bytes = max_message_bytes
        self._max_stream_requests = max_stream_requests

    def handlers(self) -> grpc.GenericRpcHandler:
        """For the server."""
        # Without (de)serializers: the handlers take and give bytes.
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Predict": grpc.unary_unary_rpc_method_handler(self.predict),
                "PredictStream": grpc.stream_stream_rpc_method_handler(self.predict_stream),
                "GetModelMetadata": grpc.unary_unary_rpc_method_handler(self.get_model_metadata),
            },
        )

    async def predict(self, data: bytes, context: Any) -> bytes:
        """One request."""
        try:
            incoming = self._incoming(data, context)
        except Exception as error:
            self._gateway.refused(error, _PROTOCOL)
            await abort(context, error)
            raise AssertionError("abort returned") from None
        return await respond(self._gateway, incoming, context)

    async def predict_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Many requests; each is answered as soon as it can be."""
        stream = _Stream(self, context, self._max_stream_requests)
        try:
            async for data in requests:
                await stream.accept(data)
            await stream.drain()
        finally:
            stream.cancel()

    async def get_model_metadata(self, data: bytes, context: Any) -> bytes:
        """What the model takes and gives."""
        try:
            request = parse(wire.GetModelMetadataRequest, data)
            hosted = self._gateway.hosted(request.model, request.version)
        except Exception as error:
            await abort(context, error)
            raise AssertionError("abort returned") from None
        return hosted.metadata(self._max_message_bytes)

    async def answer_on_stream(self, data: bytes, context: Any) -> bytes:
        """One request of a stream; its errors are answers too."""
        request_id = ""
        try:
            incoming = self._incoming(data, context)
            request_id = incoming.request_id
            incoming.remaining_s = context.time_remaining()
        except Exception as error:
            self._gateway.refused(error, _PROTOCOL)
            return _stream_error(request_id, error)
        try:
            response = await self._gateway.predict(incoming)
        except Exception as error:
            return _stream_error(request_id, error)
        return _stream_answer(request_id, response)

    def _incoming(self, data: bytes, context: Any) -> Incoming:
        request = parse(wire.PredictRequest, data)
        return Incoming(
            read=lambda _: request,
            encode=_encode,
            model=request.model,
            version=request.version,
            request_id=checked_request_id(request.request_id),
            priority=_priority(request.priority),
            num_bytes=len(data),
            protocol=_PROTOCOL,
            trace_parent=trace_parent(self._gateway, context),
        )


class _Stream:
    """One PredictStream: as many requests at a time as it may have, each answered when it is done.

    A client that sends and never reads fills its connection's window; then the write of an answer waits, the request
    stays unanswered, and nothing further is read.
    """

    def __init__(self, service: RecsysV1, context: Any, max_requests: int) -> None:
        self._service = service
        self._context = context
        self._room = asyncio.Semaphore(max_requests)
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, data: bytes) -> None:
        """Begin to answer a request, once there is room for it."""
        await self._room.acquire()
        task = asyncio.ensure_future(self._answer(data))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def drain(self) -> None:
        """Wait for what was accepted."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Give up what is left: nobody is there to read it."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, data: bytes) -> None:
        answer = await self._service.answer_on_stream(data, self._context)
        async with self._writing:
            await self._context.write(answer)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()  # a write failed: the client is gone, and the stream ends by itself


def _encode(hosted: HostedModel, rows: Rows) -> bytes:
    return hosted.writer.write(rows)


def _priority(number: int) -> Priority:
    if number == wire.PRIORITY_UNSPECIFIED:
        return Priority.NORMAL
    try:
        return Priority(number)
    except ValueError:
        raise RequestError(f"priority: got {number}, expected HIGH (1), NORMAL (2) or LOW (3)") from None


def _stream_answer(request_id: str, response: bytes) -> bytes:
    # Fields of a message may come in pieces: the answer's bytes are not parsed again.
    head: bytes = wire.StreamResponse(request_id=request_id).SerializeToString()
    return head + _RESPONSE_TAG + _varint(len(response)) + response


def _stream_error(request_id: str, error: Exception) -> bytes:
    code, text = status_of(error)
    retry_after_ms = error.retry_after_ms if isinstance(error, QueueFullError) else 0
    error_message = wire.StreamError(code=code.value[0], message=text, retry_after_ms=retry_after_ms)
    data: bytes = wire.StreamResponse(request_id=request_id, error=error_message).SerializeToString()
    return data


# Field 2 (response), length-delimited.
_RESPONSE_TAG = bytes([2 << 3 | 2])


def _varint(number: int) -> bytes:
    """Protobuf's form of a whole number."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
