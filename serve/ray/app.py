"""Artifacts behind Ray Serve: ``serve run serve.ray_app:app artifact=/models/ranker``.

Ray places, restarts, scales and updates the replicas and forwards calls. Within a replica the server's own
code does everything else: loading, checks, queue, batches. Calls arrive as bytes through Ray's gRPC proxy, in
which ``add_services`` registers ``recsys.v1``. (Ray's command is ``serve``, its package ``ray.serve``; this
package is ``serve``.)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import replace
from typing import Any

import grpc
from ray import serve as ray_serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from recsys.base.cli import near_misses
from recsys.options.kinds import ConfigError
from serve.app.cli import source_of
from serve.app.start import set_process
from serve.config.options import all_options, sections
from serve.config.settings import CaptureConfig, Settings
from serve.config.sources import Effective, effective, parse_flags
from serve.engine.choose import choose_engine
from serve.engine.interface import Submitted
from serve.errors import PUSHBACK, QueueFullError, status_of
from serve.metrics.registry import Metrics
from serve.models.manager import ModelManager
from serve.observe.observers import Observers
from serve.protocols.calls import headers_of
from serve.protocols.streams import predict_stream
from serve.ray.autoscaling import PENDING_ROWS, PendingRowsPolicy
from serve.rpc.backend import Backend
from serve.rpc.calls import PREDICTION_SERVICE, metadata_method
from serve.rpc.open_inference import ready_versions

#: Import path of ``add_services``, for Ray's ``grpc_servicer_functions``.
ADD_SERVICES = "serve.ray_app:add_services"
#: What HTTP says of requests; Ray opens a gRPC port only if its configuration names one.
WHERE = (
    f"gRPC calls of {PREDICTION_SERVICE} (Predict, PredictStream, GetModelMetadata) at the port of grpc_options in the "
    "file for serve deploy; serve run opens none"
)
_SHORT_KEYS = {"artifact": "source.artifact", "repository": "source.repository"}
# Ray handles ports and certificates; there is no admin service.
_KEYS = ("source.", "process.", "defaults.", "log.", "trace.", "capture.", "answer_log.")
_MORE_KEYS = ("connections.max_message_bytes", "connections.max_stream_requests", "drain_timeout_s")
# Batches are made of the calls that wait in a replica; Ray's default of 5 would limit them to 5 requests.
_MAX_ONGOING_REQUESTS = 1024


def add_services(servicer: Any, server: Any) -> None:
    """Register ``recsys.v1.PredictionService`` with a gRPC server of Ray, which forwards its calls.

    Messages are not parsed on the way, and bytes that are not a message are refused like any invalid request.
    """
    handlers = {
        "Predict": grpc.unary_unary_rpc_method_handler(servicer.Predict),
        "PredictStream": grpc.stream_stream_rpc_method_handler(servicer.PredictStream),
        "GetModelMetadata": grpc.unary_unary_rpc_method_handler(servicer.GetModelMetadata),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(PREDICTION_SERVICE, handlers),))


class Message:
    """A serialized message; Ray calls ``SerializeToString`` on answers."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        """Return the bytes."""
        return self._data


class Serving:
    """Loaded models and their engine, as in ``serve.app.server`` but without ports. Belongs to its event loop.

    Args:
        found: the effective settings.
    """

    def __init__(self, found: Effective) -> None:
        self._config = found.settings.server
        self.metrics = Metrics()
        capture = None if self._config.capture is None else _own_capture(self._config.capture)
        self._observers = Observers(replace(self._config, capture=capture), self.metrics)
        self.engine = choose_engine(found.settings.process.engine)(self._observers)
        self.metrics.watch_engine(self.engine.counts)
        self.manager = ModelManager(source_of(found), self.engine, self._config.settings_of, self.metrics)
        self.backend = Backend(
            engine=self.engine, manager=self.manager, metrics=self.metrics, observer=self._observers
        )
        connections = self._config.connections
        self.max_stream_requests = connections.max_stream_requests
        self.get_model_metadata = metadata_method(self.backend, connections.max_message_bytes)

    async def predict(self, data: bytes, context: Any) -> bytes:
        """``recsys.v1.PredictionService.Predict``. Ray does not pass on deadlines."""
        submitted = Submitted(
            message=data, protocol="recsys", headers=headers_of(context), client=context.peer()
        )
        return await self.engine.submit(submitted)

    async def start(self) -> None:
        """Load and warm up.

        Raises:
            RuntimeError: a model could not be made ready; the message says why.
        """
        await self.manager.rescan()
        try:
            self.check()
        except RuntimeError:
            await self.stop()
            raise

    def check(self) -> None:
        """Check that every model answers.

        Raises:
            RuntimeError: there is no model, or one has no ready version.
        """
        self.manager.check_serving(every=True)

    async def stop(self) -> None:
        """Answer accepted requests within the drain time, and unload the models."""
        await self.manager.close(self._config.drain_timeout_s)
        await self.engine.close()
        await asyncio.to_thread(self._observers.close)

    def models(self) -> list[dict[str, Any]]:
        """Return the name of each model, and its versions that answer."""
        return [
            {"name": status.model, "versions": ready_versions(status)} for status in self.manager.statuses()
        ]

    def pending_rows(self) -> int:
        """Return the number of waiting rows of all models."""
        models, _ = self.metrics.read()
        return sum(model.pending.rows for model in models)


def _own_capture(capture: CaptureConfig) -> CaptureConfig:
    """Return settings with a unique file: a capture replaces an existing one, and nodes may share a disk."""
    path = capture.path
    return replace(capture, path=path.with_name(f"{path.stem}-{uuid.uuid4().hex}{path.suffix}"))


class Replica:
    """One replica: a process with models and their executors. Ray calls its methods in one event loop."""

    def __init__(self) -> None:
        self._serving: Serving | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def reconfigure(self, settings: Mapping[str, str]) -> None:
        """Load and warm up the models of new settings, switch to them, and drain the previous ones.

        Raises:
            ArtifactError: the artifact is damaged, foreign or newer; the previous models go on.
            ValueError: the settings cannot be used.
            RuntimeError: no model could be made ready.
        """
        found = effective(parse_flags(settings), {}, None)
        set_process(found.settings.process)
        serving = Serving(found)
        await serving.start()
        before, self._serving = self._serving, serving
        if before is not None:
            task = asyncio.ensure_future(before.stop())
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def check_health(self) -> None:
        """Check the replica; Ray restarts it if this raises.

        Raises:
            RuntimeError: a model has no version that answers.
        """
        self._now().check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the statistics for the autoscaler's policy; none while the models are loaded."""
        return {} if self._serving is None else {PENDING_ROWS: float(self._serving.pending_rows())}

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer Ray's HTTP port: which models are here, and where requests go."""
        path, prefix = request.scope["path"], request.scope.get("root_path", "")
        if request.method not in ("GET", "HEAD") or path.removeprefix(prefix) not in ("", "/"):
            text = f"{request.method} {path}: not found; requests are {WHERE}"
            return JSONResponse({"error": text}, status_code=404)
        models = [] if self._serving is None else self._serving.models()
        return JSONResponse({"models": models, "requests": WHERE})

    async def Predict(self, data: bytes, grpc_context: Any) -> Message:
        """``recsys.v1.PredictionService.Predict``."""
        return await _answer(self._now().predict(data, grpc_context), grpc_context)

    async def GetModelMetadata(self, data: bytes, grpc_context: Any) -> Message:
        """``recsys.v1.PredictionService.GetModelMetadata``."""
        return await _answer(self._now().get_model_metadata(data), grpc_context)

    async def PredictStream(
        self, requests: AsyncIterator[bytes], grpc_context: Any
    ) -> AsyncIterator[Message]:
        """``recsys.v1.PredictionService.PredictStream``."""
        serving = self._now()
        # Size 1: an answer that is not taken stops the reading of requests.
        answers: asyncio.Queue[bytes | None] = asyncio.Queue(1)

        async def answer(request: bytes) -> bytes:
            return await serving.predict(request, grpc_context)

        async def feed() -> None:
            await predict_stream(answer, requests, answers.put, serving.max_stream_requests)
            await answers.put(None)

        feeding = asyncio.ensure_future(feed())
        try:
            while (data := await answers.get()) is not None:
                yield Message(data)
            await feeding
        finally:
            feeding.cancel()

    async def close(self) -> None:
        """Drain and unload everything. Ray ends a replica's process once its calls are answered."""
        stopping = [*self._stopping]
        if self._serving is not None:
            stopping.append(asyncio.ensure_future(self._serving.stop()))
            self._serving = None
        await asyncio.gather(*stopping)

    def _now(self) -> Serving:
        if self._serving is None:
            raise RuntimeError("the replica has no models yet")
        return self._serving


async def _answer(answer: Awaitable[bytes], context: Any) -> Message:
    try:
        return Message(await answer)
    except Exception as error:
        code, text = status_of(error)
        if isinstance(error, QueueFullError):
            context.set_trailing_metadata([(PUSHBACK, str(error.retry_after_ms))])
        context.set_code(code)
        context.set_details(text)
        return Message(b"")


def app(args: Mapping[str, Any]) -> ray_serve.Application:
    """Build the application, for ``serve run`` and for Ray's configuration files.

    Args:
        args: ``artifact`` or ``repository``, a path on every node; keys of the settings' file, such as
            ``defaults.limits.max_batch_rows``; and of Ray's deployment ``num_replicas``, or ``min_replicas`` and
            ``max_replicas`` with ``target_pending_rows`` (256) and ``target_requests`` (64), and ``num_cpus`` (1).

    Raises:
        ConfigError: an argument is unknown or has no such value.
    """
    given = {key: str(value) for key, value in args.items()}
    options: dict[str, Any] = {
        "name": "recsys",
        "max_ongoing_requests": _MAX_ONGOING_REQUESTS,
        "ray_actor_options": {"num_cpus": _number(given, "num_cpus", 1.0)},
        **_scale(given),
    }
    texts = {_SHORT_KEYS.get(key, key): text for key, text in given.items()}
    settings = _check(texts)
    options["graceful_shutdown_timeout_s"] = settings.server.drain_timeout_s
    return ray_serve.deployment(user_config=texts, **options)(Replica).bind()


def _check(texts: Mapping[str, str]) -> Settings:
    known = [
        option.key
        for option in all_options(sections())
        if option.key.startswith(_KEYS) or option.key in _MORE_KEYS
    ]
    for key in texts:
        if key not in known:
            raise ConfigError(f"{key}: unknown argument{near_misses(key, [*known, *_SHORT_KEYS])}")
    settings = effective(parse_flags(texts), {}, None).settings
    if (settings.source.artifact is None) == (settings.source.repository is None):
        raise ConfigError("source: expected artifact=PATH or repository=PATH, and one of them")
    return settings


def _scale(given: dict[str, str]) -> dict[str, Any]:
    """Return the settings for the number of replicas; removes them from ``given``."""
    if "max_replicas" not in given:
        return {"num_replicas": int(_number(given, "num_replicas", 1))}
    least, most = int(_number(given, "min_replicas", 1)), int(_number(given, "max_replicas", 1))
    targets = {
        "target_pending_rows": _number(given, "target_pending_rows", 256.0),
        "target_requests": _number(given, "target_requests", 64.0),
    }
    # By import path, because Ray's controller creates the policy in another process.
    policy = {
        "policy_function": f"{PendingRowsPolicy.__module__}:{PendingRowsPolicy.__name__}",
        "policy_kwargs": targets,
    }
    return {"autoscaling_config": {"min_replicas": least, "max_replicas": most, "policy": policy}}


def _number(given: dict[str, str], name: str, default: float) -> float:
    text = given.pop(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}: got {text[:80]!r}, expected a number above 0")
    return value
