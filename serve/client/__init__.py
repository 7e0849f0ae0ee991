"""Clients: ``Client`` blocks, ``AsyncClient`` awaits. Neither imports torch.

Example::

    from serve.client import Client, Context

    with Client("127.0.0.1:8500") as client:
        scores = client.predict(
            dense={"dense": [[0.5, 1.0]]},
            sparse={"user": [[7]], "genres": [[1, 4]]},
        )["score"]
        ranked = client.predict(
            dense={"dense": [[0.5, 1.0], [0.1, 2.0]]},
            sparse={"genres": [[1, 4], [2]]},
            context=Context(sparse={"user": [[7]]}),
        )["score"]
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from serve.client.errors import PredictError, error_on_stream, predict_error
from serve.client.feedback import Feedback, feedback_request
from serve.client.frames import check_alone, frame_requests, is_frame, joined
from serve.client.packing import Answer, ArrayLike, Context, build_request, read_response
from serve.client.retries import Retries, RetryBudget
from serve.client.settings import ClientTls, Settings, checked_address
from serve.wire import feedback_pb2
from serve.wire import predict_pb2 as wire

__all__ = ["Answer", "AsyncClient", "Client", "ClientTls", "Context", "Feedback", "Retries", "Settings"]

_SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name
PREDICT = f"/{_SERVICE}/Predict"
PREDICT_STREAM = f"/{_SERVICE}/PredictStream"
GET_MODEL_METADATA = f"/{_SERVICE}/GetModelMetadata"
FEEDBACK = f"/{feedback_pb2.DESCRIPTOR.services_by_name['FeedbackService'].full_name}/Feedback"
# No limit (-1): the size of an answer follows from the request.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))

# One answer of a stream: the request's ID, and its outputs or its error.
StreamAnswer = tuple[str, Answer | PredictError]


class _Calls:
    """The service's methods on a channel of either kind."""

    def __init__(self, channel: Any) -> None:
        self.predict = _method(channel.unary_unary, PREDICT, wire.PredictRequest, wire.PredictResponse)
        self.stream = _method(channel.stream_stream, PREDICT_STREAM, wire.PredictRequest, wire.StreamResponse)
        self.metadata = _method(
            channel.unary_unary, GET_MODEL_METADATA, wire.GetModelMetadataRequest, wire.ModelMetadata
        )
        self.feedback = _method(
            channel.unary_unary, FEEDBACK, feedback_pb2.FeedbackRequest, feedback_pb2.FeedbackResponse
        )


def _method(kind: Any, name: str, request: type[Message], answer: type[Message]) -> Any:
    """Return a method of a channel by its full name."""
    return kind(name, request_serializer=request.SerializeToString, response_deserializer=answer.FromString)


def _settings(settings: Settings | None, timeout_s: float, model: str) -> Settings:
    return Settings(timeout_s=timeout_s, model=model) if settings is None else settings


def _channel(kind: ModuleType, address: str, settings: Settings) -> Any:
    """Return a channel of ``grpc`` or of ``grpc.aio``."""
    checked_address(address)
    if settings.tls is None:
        return kind.insecure_channel(address, options=CHANNEL_OPTIONS)
    return kind.secure_channel(address, settings.tls.credentials(), options=CHANNEL_OPTIONS)


class _Attempts:
    """The attempts of one call.

    Args:
        settings: of the client.
        budget: of the client.
        timeout_s: timeout of the call; None for the client's.
    """

    def __init__(self, settings: Settings, budget: RetryBudget, timeout_s: float | None) -> None:
        self._settings, self._budget = settings, budget
        self._deadline_s = time.monotonic() + (settings.timeout_s if timeout_s is None else timeout_s)
        self._num = 0
        budget.earn()

    def begin(self) -> float:
        """Return the timeout of the next attempt."""
        self._num += 1
        return max(self._deadline_s - time.monotonic(), 0.0)

    def wait_s(self, error: grpc.RpcError) -> float:
        """Return how long to wait after a failed attempt.

        Raises:
            PredictError: the call has failed.
        """
        failed = predict_error(error, uses_tls=self._settings.tls is not None)
        failed.num_attempts = self._num
        remaining_s = self._deadline_s - time.monotonic()
        wait_s = self._settings.retries.wait_s(failed, remaining_s, random.random())
        if wait_s is None or not self._budget.spend():
            raise failed from None
        return wait_s


def _read_stream(answer: wire.StreamResponse) -> StreamAnswer:
    if answer.WhichOneof("result") == "response":
        return answer.request_id, read_response(answer.response)
    return answer.request_id, error_on_stream(answer.error)


class Client:
    """A blocking client. Thread-safe. ``close`` or the end of a ``with`` block closes its connection.

    It crosses processes: a forked process, and one that unpickles it, connect by themselves at their first call.

    Args:
        address: ``host:port`` of a server, or ``unix:PATH`` of a socket that leads to one.
        timeout_s: timeout of each call that names none.
        model: name of the model; empty for the only one that the server holds.
        settings: replaces the two above, and has more.

    Raises:
        ValueError: the address is neither, or a file of ``settings.tls`` cannot be used.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 10.0, model: str = "", settings: Settings | None = None
    ) -> None:
        self._address = address
        self._settings = _settings(settings, timeout_s, model)
        self._budget = RetryBudget(self._settings.retries)
        self._channels = {os.getpid(): _channel(grpc, address, self._settings)}
        self._calls = _Calls(self._channels[os.getpid()])
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Client, self._address, settings=self._settings), ()

    def predict(
        self,
        dense: Mapping[str, ArrayLike] | Any = None,
        sparse: Mapping[str, ArrayLike] | Any = None,
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        context: Context | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        """Score rows.

        Args:
            dense: by name, float ``[B, width]``; or, in place of all inputs, a frame of pandas, polars or Arrow with a
                column for each input: the model's inputs are asked for, and the rows sent in one request or several.
            sparse: by name, rows of IDs or of texts that stand for them; see ``serve.client.packing.build_request`` for
                the accepted forms.
            weights: by name, one weight per ID, for weighted inputs.
            context: inputs that all rows share, such as those of the user in a ranking request.
            request_id: ID of the request in the server's log.
            timeout_s: timeout of this call.

        Returns:
            Each output by name, float32 ``[B, ...]``, with the model and the version that answered.

        Raises:
            ValueError: the inputs are invalid; nothing was sent.
            PredictError: the call failed; its subclasses say how.
        """
        if is_frame(dense):
            check_alone(sparse, weights, context)
            requests = frame_requests(dense, self.metadata(timeout_s=timeout_s), request_id)
            return joined([self._predict(request, timeout_s) for request in requests])
        sparse = {} if sparse is None else sparse
        request = build_request(dense or {}, sparse, weights, context=context, request_id=request_id)
        return self._predict(request, timeout_s)

    def _predict(self, request: wire.PredictRequest, timeout_s: float | None) -> Answer:
        return read_response(self._call(self._own_calls().predict, self._settings.finish(request), timeout_s))

    def stream(
        self, requests: Iterable[wire.PredictRequest], *, timeout_s: float | None = None
    ) -> Iterator[StreamAnswer]:
        """Score many requests over one call.

        Args:
            requests: made with ``serve.client.packing.build_request``, each with its own ``request_id``. One that
                names no model, version or priority gets those of the client.
            timeout_s: timeout of the whole stream; None for none.

        Yields:
            For each request, in the order of completion, its ID and its outputs or its error.

        Raises:
            PredictError: the stream itself failed.
        """
        settings = self._settings
        try:
            for answer in self._own_calls().stream((settings.finish(r) for r in requests), timeout=timeout_s):
                yield _read_stream(answer)
        except grpc.RpcError as error:
            raise predict_error(error, uses_tls=self._settings.tls is not None) from None

    def metadata(self, *, num_examples: int = 0, timeout_s: float | None = None) -> wire.ModelMetadata:
        """Return the inputs and outputs of the model, and at most so many rows of its examples.

        Raises:
            PredictError: the call failed; its subclasses say how.
        """
        request = self._settings.metadata_request(num_examples)
        metadata: wire.ModelMetadata = self._call(self._own_calls().metadata, request, timeout_s)
        return metadata

    def feedback(
        self, items: Iterable[Feedback], *, timeout_s: float | None = None
    ) -> feedback_pb2.FeedbackResponse:
        """Send labels for answers, by which the server measures its models (docs/operate/quality.md).

        Args:
            items: labels of requests that had a ``request_id``; at most 4096.
            timeout_s: timeout of this call. A retry after a lost answer counts no label twice.

        Returns:
            How many labels were taken, and why others were not.

        Raises:
            ValueError: a label is neither 0 nor 1, or a name or an ID is empty; nothing was sent.
            PredictError: the call failed; its subclasses say how.
        """
        request = feedback_request(items, self._settings.model)
        response: feedback_pb2.FeedbackResponse = self._call(self._own_calls().feedback, request, timeout_s)
        return response

    def close(self) -> None:
        """Close the connection; idempotent."""
        if (channel := self._channels.get(os.getpid())) is not None:
            channel.close()

    def _own_calls(self) -> _Calls:
        """Return the calls on this process's connection: a forked one must not use that of its parent."""
        if os.getpid() not in self._channels:
            with self._lock:
                if os.getpid() not in self._channels:
                    # The parent's channel is kept: the end of it would close the parent's connection.
                    channel = _channel(grpc, self._address, self._settings)
                    self._calls = _Calls(channel)
                    self._channels[os.getpid()] = channel
        return self._calls

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        attempts = _Attempts(self._settings, self._budget, timeout_s)
        while True:
            try:
                return method(request, timeout=attempts.begin())
            except grpc.RpcError as error:
                wait_s = attempts.wait_s(error)
            time.sleep(wait_s)


class AsyncClient:
    """The client for asyncio. Belongs to the event loop in which it was created.

    The arguments and errors are those of ``Client``.
    """

    def __init__(
        self, address: str, *, timeout_s: float = 10.0, model: str = "", settings: Settings | None = None
    ) -> None:
        self._settings = _settings(settings, timeout_s, model)
        self._budget = RetryBudget(self._settings.retries)
        self._channel = _channel(grpc.aio, address, self._settings)
        self._calls = _Calls(self._channel)

    async def predict(
        self,
        dense: Mapping[str, ArrayLike] | Any = None,
        sparse: Mapping[str, ArrayLike] | Any = None,
        weights: Mapping[str, ArrayLike] | None = None,
        *,
        context: Context | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        """Score rows; see ``Client.predict``."""
        if is_frame(dense):
            check_alone(sparse, weights, context)
            requests = frame_requests(dense, await self.metadata(timeout_s=timeout_s), request_id)
            return joined([await self._predict(request, timeout_s) for request in requests])
        sparse = {} if sparse is None else sparse
        request = build_request(dense or {}, sparse, weights, context=context, request_id=request_id)
        return await self._predict(request, timeout_s)

    async def _predict(self, request: wire.PredictRequest, timeout_s: float | None) -> Answer:
        return read_response(await self._call(self._calls.predict, self._settings.finish(request), timeout_s))

    async def stream(
        self, requests: AsyncIterable[wire.PredictRequest], *, timeout_s: float | None = None
    ) -> AsyncIterator[StreamAnswer]:
        """Score many requests over one call; see ``Client.stream``."""
        settings = self._settings
        try:
            finished = (settings.finish(request) async for request in requests)
            async for answer in self._calls.stream(finished, timeout=timeout_s):
                yield _read_stream(answer)
        except grpc.aio.AioRpcError as error:
            raise predict_error(error, uses_tls=self._settings.tls is not None) from None

    async def metadata(self, *, num_examples: int = 0, timeout_s: float | None = None) -> wire.ModelMetadata:
        """Return the inputs and outputs of the model; see ``Client.metadata``."""
        request = self._settings.metadata_request(num_examples)
        metadata: wire.ModelMetadata = await self._call(self._calls.metadata, request, timeout_s)
        return metadata

    async def feedback(
        self, items: Iterable[Feedback], *, timeout_s: float | None = None
    ) -> feedback_pb2.FeedbackResponse:
        """Send labels for answers; see ``Client.feedback``."""
        request = feedback_request(items, self._settings.model)
        response: feedback_pb2.FeedbackResponse = await self._call(self._calls.feedback, request, timeout_s)
        return response

    async def close(self) -> None:
        """Close the connection; idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        attempts = _Attempts(self._settings, self._budget, timeout_s)
        while True:
            try:
                return await method(request, timeout=attempts.begin())
            except grpc.aio.AioRpcError as error:
                wait_s = attempts.wait_s(error)
            await asyncio.sleep(wait_s)
