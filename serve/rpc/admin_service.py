"""``recsys.v1.AdminService``: gRPC methods over the model manager."""

from __future__ import annotations

from google.protobuf.message import Message

from serve.config.models import Routing
from serve.errors import RequestError
from serve.metrics.streams import StreamStatus
from serve.models.manager import ModelManager
from serve.models.status import ModelState, ModelStatus, ModelVersionStatus
from serve.protocols.calls import BytesMethod, Method, bytes_method
from serve.wire import admin_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["AdminService"].full_name

_STATES = {
    ModelState.AVAILABLE: wire.MODEL_STATE_AVAILABLE,
    ModelState.LOADING: wire.MODEL_STATE_LOADING,
    ModelState.READY: wire.MODEL_STATE_READY,
    ModelState.DRAINING: wire.MODEL_STATE_DRAINING,
    ModelState.FAILED: wire.MODEL_STATE_FAILED,
}


class AdminService:
    """The service's methods, from message to message.

    Args:
        manager: makes the changes.
    """

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager

    def methods(self) -> dict[str, BytesMethod]:
        """Return the methods by name, from bytes to bytes."""
        methods: dict[str, tuple[type[Message], Method]] = {
            "ListModels": (wire.ListModelsRequest, self._list_models),
            "LoadModel": (wire.LoadModelRequest, self._load_model),
            "UnloadModel": (wire.UnloadModelRequest, self._unload_model),
            "SetRouting": (wire.SetRoutingRequest, self._set_routing),
            "Rollback": (wire.RollbackRequest, self._rollback),
            "ApplyDelta": (wire.ApplyDeltaRequest, self._apply_delta),
        }
        return {name: bytes_method(kind, method, SERVICE) for name, (kind, method) in methods.items()}

    async def _list_models(self, _: wire.ListModelsRequest) -> Message:
        return wire.ListModelsResponse(
            models=[_status_message(status) for status in self._manager.statuses()]
        )

    async def _load_model(self, request: wire.LoadModelRequest) -> Message:
        _check_model(request.model)
        return _version_message(await self._manager.load(request.model, request.version))

    async def _unload_model(self, request: wire.UnloadModelRequest) -> Message:
        _check_model(request.model)
        await self._manager.unload(request.model, request.version)
        return wire.UnloadModelResponse()

    async def _set_routing(self, request: wire.SetRoutingRequest) -> Message:
        _check_model(request.model)
        if not request.HasField("routing"):
            raise RequestError("routing: missing, expected which version is to answer")
        return _status_message(await self._manager.set_routing(request.model, _routing(request.routing)))

    async def _rollback(self, request: wire.RollbackRequest) -> Message:
        _check_model(request.model)
        return _status_message(await self._manager.rollback(request.model))

    async def _apply_delta(self, request: wire.ApplyDeltaRequest) -> Message:
        _check_model(request.model)
        if not request.delta:
            raise RequestError(
                "delta: got an empty text, expected the name of a file in the model's folder deltas"
            )
        status = await self._manager.apply_delta(request.model, request.version, request.delta)
        return _version_message(status)


def _check_model(model: str) -> None:
    if not model:
        raise RequestError("model: got an empty text, expected the name of a model")


def _routing(message: wire.Routing) -> Routing:
    try:
        return Routing(
            serve=message.serve or Routing().serve,
            canary=message.canary,
            canary_percent=message.canary_percent,
            canary_key=message.canary_key,
            shadow=message.shadow,
            shadow_percent=message.shadow_percent,
        )
    except ValueError as error:
        raise RequestError(f"routing.{error}") from None


def _status_message(status: ModelStatus) -> wire.ModelStatus:
    routing = status.routing
    return wire.ModelStatus(
        model=status.model,
        routing=wire.Routing(
            serve=routing.serve,
            canary=routing.canary,
            canary_percent=routing.canary_percent,
            canary_key=routing.canary_key,
            shadow=routing.shadow,
            shadow_percent=routing.shadow_percent,
        ),
        serving=status.serving,
        versions=[_version_message(version) for version in status.versions],
    )


def _version_message(status: ModelVersionStatus) -> wire.ModelVersion:
    return wire.ModelVersion(
        version=status.version,
        state=_STATES[status.state],
        reason=status.reason,
        digest=status.digest,
        deltas=status.deltas,
        table_bytes=status.table_bytes,
        stream=None if status.stream is None else _stream_message(status.stream),
    )


def _stream_message(status: StreamStatus) -> wire.DeltaStream:
    return wire.DeltaStream(
        state=status.state.value,
        reason=status.reason,
        num_pending=status.num_pending,
        last=status.last,
        last_created_s=status.last_created_s,
    )
