"""Open Inference over gRPC, ``inference.GRPCInferenceService``, with what Triton's clients ask for beside it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from serve.errors import ModelNotFoundError, NotAllowedError, NotReadyError, RequestError, status_of
from serve.gateway import Gateway, Incoming
from serve.grpc_support import Answer, abort, parse, trace_parent, unary_handlers
from serve.hosted import HostedModel
from serve.kserve_messages import infer_request, infer_response, model_config, model_metadata, server_metadata
from serve.kserve_repository import loaded_versions, model_statistics, repository_index
from serve.kserve_request import InferRequest
from serve.wire import open_inference_pb2 as wire
from serve.work import Rows

SERVICE = wire.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
_MAX_STREAM_REQUESTS = 64
# The one parameter of a load that has a meaning here.
_VERSION = "version"
# On streams, Triton's clients may ask which answer is the last of a request. Here each request has one.
_FINAL = "triton_final_response"
_ADMIN_ONLY = (
    "loading and unloading are not allowed on this port; call the server's admin port, with its token"
)
_PROTOCOL = "kserve"


def handlers(
    gateway: Gateway, *, admin: bool = False, max_stream_requests: int = _MAX_STREAM_REQUESTS
) -> grpc.GenericRpcHandler:
    """For a server of ``grpc.aio``.

    Args:
        gateway: answers.
        admin: whether callers may load and unload models.
        max_stream_requests: unanswered requests of one ModelStreamInfer; more are not read from it.
    """
    inference, models = _Inference(gateway, max_stream_requests), _Models(gateway, admin)
    methods = unary_handlers(models.methods(), SERVICE)
    methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(inference.model_infer)
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(inference.model_stream_infer)
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def is_model_ready(gateway: Gateway, name: str, version: str) -> bool:
    """Whether a model, or a version of it, answers; one that is not there does not."""
    try:
        gateway.hosted(name, version)
    except (ModelNotFoundError, NotReadyError):
        return False
    return True


class _Models:
    """All methods but inference: message to message.

    Args:
        gateway: knows the models.
        admin: whether callers may load and unload them.
    """

    def __init__(self, gateway: Gateway, admin: bool) -> None:
        self._gateway = gateway
        self._admin = admin

    def methods(self) -> dict[str, tuple[type[Message], Answer]]:
        """By name: what each takes, and what answers it."""
        return {
            "ServerLive": (wire.ServerLiveRequest, self._server_live),
            "ServerReady": (wire.ServerReadyRequest, self._server_ready),
            "ServerMetadata": (wire.ServerMetadataRequest, self._server_metadata),
            "ModelReady": (wire.ModelReadyRequest, self._model_ready),
            "ModelMetadata": (wire.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": (wire.ModelConfigRequest, self._model_config),
            "ModelStatistics": (wire.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": (wire.RepositoryIndexRequest, self._repository_index),
            "RepositoryModelLoad": (wire.RepositoryModelLoadRequest, self._load),
            "RepositoryModelUnload": (wire.RepositoryModelUnloadRequest, self._unload),
        }

    async def _server_live(self, _: Message) -> Message:
        return wire.ServerLiveResponse(live=True)

    async def _server_ready(self, _: Message) -> Message:
        return wire.ServerReadyResponse(ready=self._gateway.manager.is_ready())

    async def _server_metadata(self, _: Message) -> Message:
        return server_metadata()

    async def _model_ready(self, request: wire.ModelReadyRequest) -> Message:
        return wire.ModelReadyResponse(ready=is_model_ready(self._gateway, request.name, request.version))

    async def _model_metadata(self, request: wire.ModelMetadataRequest) -> Message:
        hosted = self._gateway.hosted(request.name, request.version)
        return model_metadata(hosted, loaded_versions(self._gateway, hosted.name))

    async def _model_config(self, request: wire.ModelConfigRequest) -> Message:
        hosted = self._gateway.hosted(request.name, request.version)
        return wire.ModelConfigResponse(config=model_config(hosted))

    async def _model_statistics(self, request: wire.ModelStatisticsRequest) -> Message:
        return model_statistics(self._gateway, request.name, request.version)

    async def _repository_index(self, request: wire.RepositoryIndexRequest) -> Message:
        return repository_index(self._gateway.manager.statuses(), request.ready)

    async def _load(self, request: wire.RepositoryModelLoadRequest) -> Message:
        self._check_admin()
        unknown = sorted(set(request.parameters) - {_VERSION})
        if unknown:
            raise RequestError(
                f"parameters: got {unknown[0][:64]!r}, expected at most {_VERSION!r}: "
                "models come from the server's own repository, with its own settings"
            )
        await self._gateway.manager.load(request.model_name, _version(request))
        return wire.RepositoryModelLoadResponse()

    async def _unload(self, request: wire.RepositoryModelUnloadRequest) -> Message:
        self._check_admin()
        await self._gateway.manager.unload(request.model_name, _version(request))
        return wire.RepositoryModelUnloadResponse()

    def _check_admin(self) -> None:
        if not self._admin:
            raise NotAllowedError(_ADMIN_ONLY)


class _Inference:
    """ModelInfer and ModelStreamInfer: bytes to bytes.

    Args:
        gateway: answers.
        max_stream_requests: unanswered requests of one stream.
    """

    def __init__(self, gateway: Gateway, max_stream_requests: int) -> None:
        self._gateway = gateway
        self._max_stream_requests = max_stream_requests

    async def model_infer(self, data: bytes, context: Any) -> bytes:
        """One request."""
        try:
            return await self._gateway.predict(self._incoming(self._read(data), data, context, _encode))
        except Exception as error:
            await abort(context, error)
            raise AssertionError("abort returned") from None

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Many requests on one stream, answered in their order."""
        room = asyncio.Semaphore(self._max_stream_requests)
        waiting: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        tasks: set[asyncio.Task[Any]] = {asyncio.ensure_future(_write_in_order(waiting, room, context))}
        try:
            async for data in requests:
                await room.acquire()
                task = asyncio.ensure_future(self._answer_on_stream(data, context))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                waiting.put_nowait(task)
            waiting.put_nowait(None)
            await asyncio.wait(tasks)
        finally:
            # Where the client has gone nobody reads what is left.
            for left in tasks:
                left.cancel()

    def _read(self, data: bytes) -> InferRequest:
        try:
            return infer_request(parse(wire.ModelInferRequest, data))
        except RequestError as error:
            self._gateway.refused(error, _PROTOCOL)
            raise

    def _incoming(
        self,
        request: InferRequest,
        data: bytes,
        context: Any,
        encode: Callable[[InferRequest, HostedModel, Rows], bytes],
    ) -> Incoming:
        return Incoming(
            read=request.read,
            encode=functools.partial(encode, request),
            model=request.model,
            version=request.version,
            request_id=request.request_id,
            priority=request.parameters.priority,
            remaining_s=request.parameters.remaining_s(context.time_remaining()),
            num_bytes=len(data),
            protocol=_PROTOCOL,
            trace_parent=trace_parent(self._gateway, context),
        )

    async def _answer_on_stream(self, data: bytes, context: Any) -> bytes:
        """One request of a stream; its errors are answers too."""
        request_id = ""
        try:
            request = self._read(data)
            request_id = request.request_id
            return await self._gateway.predict(self._incoming(request, data, context, _encode_on_stream))
        except Exception as error:
            failed = wire.ModelStreamInferResponse(error_message=status_of(error)[1])
            failed.infer_response.id = request_id
            return _serialized(failed)


async def _write_in_order(
    waiting: asyncio.Queue[asyncio.Task[bytes] | None], room: asyncio.Semaphore, context: Any
) -> None:
    with contextlib.suppress(grpc.aio.BaseError):  # the client has gone
        while (task := await waiting.get()) is not None:
            await context.write(await task)
            room.release()


def _encode(request: InferRequest, _: HostedModel, rows: Rows) -> bytes:
    return _serialized(infer_response(request, rows))


def _encode_on_stream(request: InferRequest, _: HostedModel, rows: Rows) -> bytes:
    response = infer_response(request, rows)
    response.parameters[_FINAL].bool_param = True
    return _serialized(wire.ModelStreamInferResponse(infer_response=response))


def _serialized(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _version(request: wire.RepositoryModelLoadRequest | wire.RepositoryModelUnloadRequest) -> str:
    return request.parameters[_VERSION].string_param if _VERSION in request.parameters else ""
