"""Streams of requests on ``grpc.aio``: PredictStream and ModelStreamInfer, over a function for one request.

If a client sends and never reads, its connection's window fills up. Then the write of an answer waits, the
request stays unanswered, and no further requests are read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from serve.errors import QueueFullError, RequestError, status_of
from serve.protocols.calls import BytesMethod, checked_request_id
from serve.protocols.open_inference import parameters_of
from serve.wire import open_inference_pb2 as inference
from serve.wire import predict_pb2 as wire

Write = Callable[[bytes], Awaitable[None]]
# Field 2 (response) of StreamResponse, length-delimited.
_RESPONSE_TAG = bytes([2 << 3 | 2])
# Triton's clients may ask for a mark on a request's last answer in a stream. Here each request has one
# answer.
_FINAL = "triton_final_response"


async def predict_stream(
    answer: BytesMethod, requests: AsyncIterator[bytes], write: Write, max_requests: int
) -> None:
    """Answer the requests of a PredictStream, in order of completion. Errors are answers too.

    Args:
        answer: answers one PredictRequest.
        requests: requests of the stream.
        write: writes an answer.
        max_requests: unanswered requests; more are not read from the stream.
    """
    room = asyncio.Semaphore(max_requests)
    writing = asyncio.Lock()
    tasks: set[asyncio.Task[None]] = set()

    async def respond(data: bytes) -> None:
        response = await _predict_answer(answer, data)
        async with writing:
            await write(response)

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        room.release()
        if not task.cancelled():
            task.exception()  # a write failed: the client has disconnected, and the stream ends

    try:
        async for data in requests:
            await room.acquire()
            task = asyncio.ensure_future(respond(data))
            tasks.add(task)
            task.add_done_callback(done)
        while tasks:
            await asyncio.wait(tasks)
    finally:
        # If the client has disconnected, the remaining answers are not needed.
        for task in tasks:
            task.cancel()


async def infer_stream(
    answer: BytesMethod, requests: AsyncIterator[bytes], write: Write, max_requests: int
) -> None:
    """Answer the requests of a ModelStreamInfer in order. Errors are answers too.

    Args:
        answer: answers one ModelInferRequest.
        requests: requests of the stream.
        write: writes an answer.
        max_requests: unanswered requests; more are not read from the stream.
    """
    room = asyncio.Semaphore(max_requests)
    waiting: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()

    async def write_in_order() -> None:
        with contextlib.suppress(grpc.aio.BaseError):  # the client has disconnected
            while (task := await waiting.get()) is not None:
                await write(await task)
                room.release()

    tasks: set[asyncio.Task[Any]] = {asyncio.ensure_future(write_in_order())}
    try:
        async for data in requests:
            await room.acquire()
            task = asyncio.ensure_future(_infer_answer(answer, data))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            waiting.put_nowait(task)
        waiting.put_nowait(None)
        await asyncio.wait(tasks)
    finally:
        for left in tasks:
            left.cancel()


async def _predict_answer(answer: BytesMethod, data: bytes) -> bytes:
    try:
        response = await answer(data)
    except Exception as error:
        code, text = status_of(error)
        failed = wire.StreamError(
            code=code.value[0],
            message=text,
            retry_after_ms=error.retry_after_ms if isinstance(error, QueueFullError) else 0,
        )
        message = wire.StreamResponse(request_id=_predict_id(data), error=failed)
        return _bytes_of(message)
    # Fields of a message may be concatenated, so the answer's bytes need no parsing.
    head = _bytes_of(wire.StreamResponse(request_id=_predict_id(data)))
    return head + _RESPONSE_TAG + _varint(len(response)) + response


async def _infer_answer(answer: BytesMethod, data: bytes) -> bytes:
    message = inference.ModelStreamInferResponse()
    try:
        message.infer_response.ParseFromString(await answer(data))
        message.infer_response.parameters[_FINAL].bool_param = True
    except Exception as error:
        message.error_message = status_of(error)[1]
        message.infer_response.id = _infer_id(data)
    return _bytes_of(message)


def _predict_id(data: bytes) -> str:
    """Return the request's ID; empty if it cannot be parsed."""
    try:
        return checked_request_id(wire.PredictRequest.FromString(data).request_id)
    except (DecodeError, RequestError):
        return ""


def _infer_id(data: bytes) -> str:
    try:
        request = inference.ModelInferRequest.FromString(data)
        parameters_of(request)
        return checked_request_id(request.id)
    except (DecodeError, RequestError):
        return ""


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _varint(number: int) -> bytes:
    """Encode an integer as protobuf does."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
