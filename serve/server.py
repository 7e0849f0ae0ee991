"""The gRPC server: Predict and GetModelMetadata, health, reflection and metrics around one executor.

Why asyncio: one event loop that only checks and forwards, beside executors that run the model without the
interpreter's lock, answers more single-row requests than a pool of threads that each wait for their own
answer (docs/serving.md has the measurement).

Requests reach the handlers as bytes: what cannot be parsed is then refused like any other wrong request,
where gRPC itself would report an internal error.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serve.batching import Pending
from serve.config import ServerConfig
from serve.errors import ExecutionError, ModelNotFoundError, RequestError, status_of
from serve.executor import Answer, Answered, Executor, ExecutorSettings, Work
from serve.metadata import model_metadata
from serve.metrics import Metrics, MetricsServer
from serve.model import ModelInfo, ServedModel
from serve.request_check import RequestChecker
from serve.wire import predict_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name
_log = logging.getLogger("serve")
# How long a draining server that has answered every request waits for its last answers to reach the wire, and for
# streams to end by themselves.
_LAST_WORDS_S = 1.0
_MessageT = TypeVar("_MessageT", bound=Message)

_OUTCOMES = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "rejected",
    grpc.StatusCode.DEADLINE_EXCEEDED: "expired",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.INTERNAL: "failed",
}


class Server:
    """One model behind one gRPC port. All methods belong to the event loop that called ``start``.

    Args:
        model: what to serve.
        info: the model's name, version and origin.
        config: how to serve it.
    """

    def __init__(self, model: ServedModel, info: ModelInfo, config: ServerConfig) -> None:
        self.metrics = Metrics()
        self.port = 0
        self.metrics_port: int | None = None
        self._model = model
        self._info = info
        self._config = config
        self._checker = RequestChecker(
            model.signature, config.limits, allow_non_finite=config.allow_non_finite
        )
        self._metadata: bytes = model_metadata(
            model.signature,
            info,
            target=model.target_name,
            limits=config.limits,
            max_message_bytes=config.max_message_bytes,
        ).SerializeToString()
        self._health = health.aio.HealthServicer()
        self._metrics_server: MetricsServer | None = None
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Listen, and begin to warm up; health says NOT_SERVING until ``wait_until_ready`` returns.

        Raises:
            OSError: a port is taken or the address is not this machine's.
        """
        config = self._config
        self._loop = asyncio.get_running_loop()
        self._executor = Executor(
            ExecutorSettings(
                model=self._model,
                info=self._info,
                limits=config.limits,
                metrics=self.metrics,
                num_threads=config.num_executors,
            ),
            self._deliver,
        )
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            )
        )
        self._add_services()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        address = f"[{config.host}]:{config.port}" if ":" in config.host else f"{config.host}:{config.port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {address}: the port is taken or the address is not ours"
            ) from error
        if config.metrics_port is not None:
            try:
                self._metrics_server = MetricsServer(self.metrics, config.host, config.metrics_port)
            except OSError as error:
                raise OSError(
                    f"cannot serve metrics on port {config.metrics_port}: {error.strerror}"
                ) from error
            self.metrics_port = self._metrics_server.port
        self._describe_model()
        await self._server.start()
        self._executor.start()

    async def wait_until_ready(self) -> None:
        """Wait for the warm-up; then health says SERVING.

        Raises:
            RuntimeError: the model failed on a warm-up batch.
        """
        await self._loop.run_in_executor(None, self._executor.wait_until_warm)
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> bool:
        """Drain: take no further requests, answer every accepted one, close all ports.

        Returns:
            Whether every accepted request was answered within the drain time.
        """
        await self._health.enter_graceful_shutdown()
        timeout_s = self._config.drain_timeout_s
        # The time limit is kept here; gRPC's own is later. It ends early once no call is left.
        stopping = asyncio.ensure_future(self._server.stop(timeout_s + 2 * _LAST_WORDS_S))
        try:
            await asyncio.wait_for(self._wait_until_idle(stopping), timeout_s)
            in_time = True
        except TimeoutError:
            in_time = self._num_active == 0
        # What is left are streams that would never end by themselves (health watches, reflection), or requests
        # that have used up their time.
        await self._server.stop(None)
        await stopping
        await self._loop.run_in_executor(None, self._executor.close)
        if self._metrics_server is not None:
            await self._loop.run_in_executor(None, self._metrics_server.close)
        return in_time

    async def _wait_until_idle(self, stopping: asyncio.Future[None]) -> None:
        """Until no request is being handled, and none that was on its way has turned up either."""
        while not stopping.done():
            await self._idle.wait()
            await asyncio.wait({stopping}, timeout=_LAST_WORDS_S)
            if self._num_active == 0:
                return

    def _add_services(self) -> None:
        # Without (de)serializers: the handlers take and give bytes.
        handlers = {
            "Predict": grpc.unary_unary_rpc_method_handler(self._predict),
            "GetModelMetadata": grpc.unary_unary_rpc_method_handler(self._get_model_metadata),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def _describe_model(self) -> None:
        info = self._info
        self.metrics.model.labels(info.name, info.version, self._model.target_name).set(1)
        for table, num_bytes in info.table_bytes.items():
            self.metrics.table_bytes.labels(table).set(num_bytes)

    async def _set_health(self, status: int) -> None:
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def _predict(self, data: bytes, context: Any) -> bytes:
        self._num_active += 1
        self._idle.clear()
        try:
            return await self._answer(data, context)
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    async def _answer(self, data: bytes, context: Any) -> bytes:
        try:
            pending, answer = self._accept(data, context)
        except Exception as error:
            return await self._refuse(context, error)
        try:
            result = await answer
        except asyncio.CancelledError:
            self._executor.cancel(pending)
            passed = pending.deadline_s is not None and pending.deadline_s <= time.monotonic()
            self.metrics.count("expired" if passed else "cancelled")
            raise
        if isinstance(result, Exception):
            return await self._refuse(context, result)
        self.metrics.count("ok")
        return result

    def _accept(self, data: bytes, context: Any) -> tuple[Pending[Work], asyncio.Future[Answer]]:
        """Check a request and let it join the queue."""
        request = _parse(wire.PredictRequest, data)
        self._check_model(request.model)
        checked = self._checker.check(request)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        remaining_s = context.time_remaining()
        pending = Pending(
            payload=Work(
                checked=checked, request_id=request.request_id, answer=functools.partial(_settle, answer)
            ),
            num_rows=checked.num_rows,
            num_ids=len(checked.values),
            deadline_s=None if remaining_s is None else time.monotonic() + remaining_s,
        )
        self._executor.submit(pending)
        return pending, answer

    async def _get_model_metadata(self, data: bytes, context: Any) -> bytes:
        try:
            self._check_model(_parse(wire.GetModelMetadataRequest, data).model)
        except RequestError as error:
            await context.abort(*status_of(error))
        return self._metadata

    def _check_model(self, name: str) -> None:
        if name and name != self._info.name:
            raise ModelNotFoundError(
                f"model: got {name[:64]!r}, expected {self._info.name!r} (or nothing: there is only one)"
            )

    async def _refuse(self, context: Any, error: Exception) -> bytes:
        code, text = status_of(error)
        self.metrics.count(_OUTCOMES[code])
        if code is grpc.StatusCode.INTERNAL and not isinstance(error, ExecutionError):
            _log.error("a request failed outside the model", exc_info=error)
        await context.abort(code, text)
        raise AssertionError("abort returned")

    def _deliver(self, answered: Answered) -> None:
        """Called in an executor's thread: one hop for the whole batch."""
        # The loop is closed only where the drain time ran out; nobody waits then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_answer_all, answered)


def _parse(kind: type[_MessageT], data: bytes) -> _MessageT:
    try:
        message: _MessageT = kind.FromString(data)
    except DecodeError:
        raise RequestError(f"message: got {len(data)} bytes that are not a {kind.__name__}") from None
    return message


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _answer_all(answered: Answered) -> None:
    for pending, answer in answered:
        pending.payload.answer(answer)
