"""The calls of the inference port that Python answers: metadata, repository, reflection. Common to all engines."""

from __future__ import annotations

from google.protobuf.message import Message
from grpc_health.v1 import health

from serve.engine.interface import HostCall
from serve.errors import ModelNotFoundError, NotAllowedError, NotReadyError, RequestError
from serve.protocols import open_inference
from serve.protocols.calls import BytesMethod, Method, bytes_method
from serve.rpc.backend import Backend
from serve.rpc.feedback import SERVICE as FEEDBACK_SERVICE
from serve.rpc.feedback import feedback_method
from serve.rpc.metadata import PerServable, servable_metadata
from serve.rpc.open_inference import (
    loaded_versions,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from serve.rpc.reflection import reflection_methods
from serve.wire import open_inference_pb2 as wire
from serve.wire import predict_pb2, predictor_pb2

PREDICTION_SERVICE = predict_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name
_TORCHREC_SERVICE = predictor_pb2.DESCRIPTOR.services_by_name["Predictor"].full_name
# The only supported parameter of a load.
_VERSION = "version"
_ADMIN_ONLY = (
    "loading and unloading are not allowed on this port; call the server's admin port, with its token"
)


def host_calls(backend: Backend, max_message_bytes: int) -> dict[str, HostCall]:
    """Return the inference port's methods that are implemented in Python, by full name.

    Args:
        backend: the server.
        max_message_bytes: reported in the metadata.
    """
    calls = {
        f"/{open_inference.SERVICE}/{name}": HostCall(answer=method)
        for name, method in repository_methods(backend).items()
    }
    calls[f"/{PREDICTION_SERVICE}/GetModelMetadata"] = HostCall(
        answer=metadata_method(backend, max_message_bytes)
    )
    calls[f"/{FEEDBACK_SERVICE}/Feedback"] = HostCall(answer=feedback_method(backend))
    services = (
        PREDICTION_SERVICE,
        FEEDBACK_SERVICE,
        open_inference.SERVICE,
        _TORCHREC_SERVICE,
        health.SERVICE_NAME,
    )
    for name, method in reflection_methods(services).items():
        calls[name] = HostCall(answer=method, is_stream=True)
    return calls


def metadata_method(backend: Backend, max_message_bytes: int) -> BytesMethod:
    """Return ``recsys.v1.PredictionService.GetModelMetadata``."""
    messages: PerServable[predict_pb2.ModelMetadata] = PerServable()

    async def get_model_metadata(request: predict_pb2.GetModelMetadataRequest) -> Message:
        servable = backend.servable(request.model, request.version)
        num_examples = request.num_examples
        key = (tuple(servable.deltas), num_examples)
        return messages.get(
            servable, key, lambda: servable_metadata(servable, max_message_bytes, num_examples)
        )

    return bytes_method(predict_pb2.GetModelMetadataRequest, get_model_metadata, PREDICTION_SERVICE)


def repository_methods(backend: Backend, *, is_admin: bool = False) -> dict[str, BytesMethod]:
    """Return all methods of Open Inference except inference, by name.

    Args:
        backend: the server.
        is_admin: whether callers may load and unload models.
    """
    methods = _Models(backend, is_admin).methods()
    return {
        name: bytes_method(kind, method, open_inference.SERVICE) for name, (kind, method) in methods.items()
    }


def is_model_ready(backend: Backend, name: str, version: str) -> bool:
    """Return whether a model, or a version of it, answers; False if it does not exist."""
    try:
        backend.servable(name, version)
    except (ModelNotFoundError, NotReadyError):
        return False
    return True


class _Models:
    """Methods from message to message.

    Args:
        backend: the server.
        is_admin: whether callers may load and unload models.
    """

    def __init__(self, backend: Backend, is_admin: bool) -> None:
        self._backend = backend
        self._manager = backend.manager
        self._is_admin = is_admin
        self._metadata: PerServable[wire.ModelMetadataResponse] = PerServable()
        self._configs: PerServable[wire.ModelConfigResponse] = PerServable()

    def methods(self) -> dict[str, tuple[type[Message], Method]]:
        """Return each method with its request type, by name."""
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
        return wire.ServerReadyResponse(ready=self._manager.is_ready())

    async def _server_metadata(self, _: Message) -> Message:
        return server_metadata()

    async def _model_ready(self, request: wire.ModelReadyRequest) -> Message:
        return wire.ModelReadyResponse(ready=is_model_ready(self._backend, request.name, request.version))

    async def _model_metadata(self, request: wire.ModelMetadataRequest) -> Message:
        servable = self._backend.servable(request.name, request.version)
        versions = loaded_versions(self._backend, servable.info.name)
        return self._metadata.get(servable, tuple(versions), lambda: model_metadata(servable, versions))

    async def _model_config(self, request: wire.ModelConfigRequest) -> Message:
        servable = self._backend.servable(request.name, request.version)
        return self._configs.get(
            servable, None, lambda: wire.ModelConfigResponse(config=model_config(servable))
        )

    async def _model_statistics(self, request: wire.ModelStatisticsRequest) -> Message:
        return model_statistics(self._backend, request.name, request.version)

    async def _repository_index(self, request: wire.RepositoryIndexRequest) -> Message:
        return repository_index(self._manager.statuses(), request.ready)

    async def _load(self, request: wire.RepositoryModelLoadRequest) -> Message:
        self._check_admin()
        unknown = sorted(set(request.parameters) - {_VERSION})
        if unknown:
            raise RequestError(
                f"parameters: got {unknown[0][:64]!r}, expected at most {_VERSION!r}: "
                "models come from the server's own repository, with its own settings"
            )
        await self._manager.load(request.model_name, _version(request))
        return wire.RepositoryModelLoadResponse()

    async def _unload(self, request: wire.RepositoryModelUnloadRequest) -> Message:
        self._check_admin()
        await self._manager.unload(request.model_name, _version(request))
        return wire.RepositoryModelUnloadResponse()

    def _check_admin(self) -> None:
        if not self._is_admin:
            raise NotAllowedError(_ADMIN_ONLY)


def _version(request: wire.RepositoryModelLoadRequest | wire.RepositoryModelUnloadRequest) -> str:
    return request.parameters[_VERSION].string_param if _VERSION in request.parameters else ""
