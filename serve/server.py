"""The server: ports, protocols, models, and the order in which they start and stop.

Why asyncio: one event loop that only checks and forwards, beside executors that run the models without the
interpreter's lock, answers more single-row requests than a pool of threads that each wait for their own
answer (docs/tuning.md has the measurement).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from serve import kserve, torchrec
from serve.config import ModelSettings, ServerConfig
from serve.connections import channel_options
from serve.gateway import Gateway, deliverer
from serve.hosted import HostedModel, open_hosted
from serve.manager import ModelManager
from serve.metrics import Metrics
from serve.metrics_server import MetricsServer
from serve.recsys_v1 import SERVICE, RecsysV1
from serve.repository import ModelSource
from serve.security import server_credentials, ssl_context
from serve.watchers import Watchers
from serve.work import Answered

# How long a draining server that has answered every request waits for its last answers to reach the wire, and for
# streams to end by themselves.
_LAST_WORDS_S = 1.0

# Name, version, path, settings, metrics, and what takes a batch's answers.
Opener = Callable[
    [str, str, Path, ModelSettings, Metrics, Callable[[Answered], None]],
    HostedModel,
]


class Server:
    """Models behind one gRPC port, and what belongs to them. All methods belong to the event loop that started it.

    Args:
        repository: where the models lie.
        config: how to serve them.
        opener: makes a version ready; blocks.
    """

    def __init__(self, repository: ModelSource, config: ServerConfig, opener: Opener = open_hosted) -> None:
        self.metrics = Metrics()
        self.port = 0
        self.metrics_port: int | None = None
        self.http_port: int | None = None
        self.admin_port: int | None = None
        self._repository = repository
        self._config = config
        self._opener = opener
        self._health = health.aio.HealthServicer()
        self._changed = asyncio.Event()
        # What was started, to be stopped in the opposite order.
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen, and begin to load; health says NOT_SERVING until ``wait_until_ready`` returns.

        Raises:
            OSError: a port is taken or the address is not this machine's.
            ValueError: a file that the settings name cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            await self._start(loop)
        except BaseException:
            await self._started.aclose()
            raise

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self._config
        deliver = deliverer(loop)
        self.manager = ModelManager(
            self._repository,
            lambda name, version, path, settings: self._opener(
                name, version, path, settings, self.metrics, deliver
            ),
            config.settings_of,
            set_state=self.metrics.set_state,
            changed=self._changed.set,
        )
        self._watchers = Watchers(config, self.metrics)
        self._started.push_async_callback(asyncio.to_thread, self._watchers.close)
        self.gateway = Gateway(
            self.manager, self.metrics, self._watchers.all, reads_trace=config.trace is not None
        )
        self._server = grpc.aio.server(options=channel_options(config.connections))
        self._add_services(self._server)
        await self._set_health("", False)
        await self._set_health(SERVICE, False)
        watching = asyncio.ensure_future(self._watch_health())
        self._started.callback(watching.cancel)
        self.port = self._listen()
        if config.metrics_port is not None:
            await self._start_metrics(config.metrics_port)
        if config.http_port is not None:
            from serve.rest import RestServer  # aiohttp comes with an extra

            rest = RestServer(
                self.gateway,
                host=config.host,
                port=config.http_port,
                limits=config.connections,
                tls=None if config.tls is None else ssl_context(config.tls),
            )
            await rest.start()
            self._started.push_async_callback(rest.stop)
            self.http_port = rest.port
        if config.admin is not None:
            from serve.admin import AdminServer

            admin = AdminServer(config.admin, self.gateway, config)
            await admin.start()
            self._started.push_async_callback(admin.stop)
            self.admin_port = admin.port
        await self._server.start()
        self._loading = asyncio.ensure_future(self.manager.rescan())

    async def wait_until_ready(self) -> None:
        """Wait until what the repository holds is loaded and warm; then health says SERVING.

        Raises:
            RuntimeError: there is no model, or none could be made ready; the text says which failed and why.
        """
        await asyncio.shield(self._loading)
        await self._update_health()
        self.manager.check_serving(every=False)

    async def reload(self) -> None:
        """Look for new models and versions."""
        await self.manager.rescan()

    async def stop(self) -> bool:
        """Drain: take no further requests, answer every accepted one, close all ports.

        Returns:
            Whether every accepted request was answered within the drain time.
        """
        self.gateway.drain()
        await self._health.enter_graceful_shutdown()
        timeout_s = self._config.drain_timeout_s
        # The time limit is kept here; gRPC's own is later. It ends early once no call is left.
        stopping = asyncio.ensure_future(self._server.stop(timeout_s + 2 * _LAST_WORDS_S))
        try:
            await asyncio.wait_for(self._wait_until_idle(stopping), timeout_s)
            in_time = True
        except TimeoutError:
            in_time = self.gateway.num_active == 0
        # What is left are streams that would never end by themselves (health watches, reflection), or requests
        # that have used up their time.
        await self._server.stop(None)
        await stopping
        closed = await self.manager.close(timeout_s if in_time else _LAST_WORDS_S)
        await self._started.aclose()
        return in_time and closed

    async def _wait_until_idle(self, stopping: asyncio.Future[None]) -> None:
        """Until no request is being handled, and none that was on its way has turned up either."""
        while not stopping.done():
            await self.gateway.wait_until_idle()
            await asyncio.wait({stopping}, timeout=_LAST_WORDS_S)
            if self.gateway.num_active == 0:
                return

    def _listen(self) -> int:
        host, port = self._config.host, self._config.port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._config.tls is None:
                return int(self._server.add_insecure_port(address))
            return int(self._server.add_secure_port(address, server_credentials(self._config.tls)))
        except RuntimeError as error:
            raise OSError(
                f"cannot listen on {address}: the port is taken or the address is not ours"
            ) from error

    async def _start_metrics(self, port: int) -> None:
        try:
            # In a thread: it starts an event loop of its own, which none may do where one runs.
            server = await asyncio.to_thread(MetricsServer, self.metrics, self._config.host, port)
        except OSError as error:
            raise OSError(f"cannot serve metrics on port {port}: {error.strerror}") from error
        self._started.push_async_callback(asyncio.to_thread, server.close)
        self.metrics_port = server.port

    def _add_services(self, server: grpc.aio.Server) -> None:
        connections = self._config.connections
        ours = RecsysV1(
            self.gateway,
            max_message_bytes=connections.max_message_bytes,
            max_stream_requests=connections.max_stream_requests,
        )
        theirs = kserve.handlers(self.gateway, max_stream_requests=connections.max_stream_requests)
        server.add_generic_rpc_handlers((ours.handlers(), theirs, torchrec.handlers(self.gateway)))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, kserve.SERVICE, torchrec.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    async def _watch_health(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._update_health()

    async def _update_health(self) -> None:
        """The server is healthy once it has looked through the repository and while at least one model answers."""
        if self.gateway.is_draining:
            return
        for status in self.manager.statuses():
            await self._set_health(f"{SERVICE}/{status.model}", self.manager.is_ready(status.model))
        for service in ("", SERVICE):
            await self._set_health(service, self.manager.is_ready())

    async def _set_health(self, service: str, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self._health.set(service, status.SERVING if is_ready else status.NOT_SERVING)
