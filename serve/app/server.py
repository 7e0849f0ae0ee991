"""The server: models, their engine, the ports, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable

from serve.config.settings import ServerConfig
from serve.engine.interface import Engine, PortSettings
from serve.engine.records import Observer
from serve.engine.reference.engine import ReferenceEngine
from serve.metrics.registry import Metrics
from serve.metrics.server import MetricsServer
from serve.models.manager import ModelManager
from serve.models.repository import ModelSource
from serve.models.routing_file import RoutingFile
from serve.net.sockets import listening, unix_socket
from serve.observe.observers import Observers
from serve.rpc.backend import Backend
from serve.rpc.calls import PREDICTION_SERVICE, host_calls
from serve.rpc.feedback import labels_of_topic

_log = logging.getLogger("serve")
# How often the files of loaded models are looked at. The engines look before each batch.
_WATCH_FILES_S = 1.0
# Grace period for the remaining calls once the drain time has passed.
_GRACE_S = 1.0

MakeEngine = Callable[[Observer], Engine]


class Server:
    """Models behind one inference port, with the other ports. All methods belong to one event loop.

    Args:
        repository: the source of the models.
        config: how to serve them.
        make_engine: makes the engine; called on the event loop.
    """

    def __init__(
        self, repository: ModelSource, config: ServerConfig, make_engine: MakeEngine = ReferenceEngine
    ) -> None:
        self.metrics = Metrics()
        self.port = 0
        self.metrics_port: int | None = None
        self.http_port: int | None = None
        self.admin_port: int | None = None
        self._repository = repository
        self._config = config
        self._make_engine = make_engine
        self._metrics_server: MetricsServer | None = None
        self._changed = asyncio.Event()
        # Everything that was started; it is stopped in reverse order.
        self._started = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Listen and begin to load. Health is NOT_SERVING until ``wait_until_ready`` returns.

        Raises:
            OSError: a port is taken or the address is not this machine's.
            ConfigError: the settings cannot be used.
            RoutingFileError: the routing file cannot be used.
            SecurityError: a certificate, key or token cannot be used.
        """
        try:
            await self._start()
        except OSError as error:
            await self._started.aclose()
            raise OSError(f"{error}{_taken_ports(self._config)}") from error
        except BaseException:
            await self._started.aclose()
            raise

    async def _start(self) -> None:
        config = self._config
        observers = Observers(config, self.metrics)
        self._started.push_async_callback(asyncio.to_thread, observers.close)
        self.engine = self._make_engine(observers)
        self._started.push_async_callback(self.engine.close)
        self.metrics.watch_engine(self.engine.counts)
        self.manager = ModelManager(
            self._repository, self.engine, config.settings_of, self.metrics, self._changed.set
        )
        self.manager.kept = RoutingFile(None if config.admin is None else config.admin.routing_file)
        self.backend = Backend(
            engine=self.engine,
            manager=self.manager,
            metrics=self.metrics,
            observer=observers,
            quality=None if observers.quality is None else observers.quality.answers,
        )
        if observers.quality is not None:
            answers, inputs = observers.quality
            answers.table = inputs.table = self.manager.routes.table
            answers.num_dropped = lambda: self.engine.counts().dropped.get("answered", 0)
        for watch in (self._watch_health, self._watch_files):
            self._started.callback(asyncio.ensure_future(watch()).cancel)
        if config.socket_path is not None:
            self._started.enter_context(unix_socket(config.socket_path))
        self.port = await self.engine.listen(
            PortSettings(
                host=config.host,
                port=config.port,
                num_threads=config.num_polling_threads,
                connections=config.connections,
                tls=config.tls,
            ),
            host_calls(self.backend, config.connections.max_message_bytes),
        )
        if config.metrics_port is not None:
            await self._start_metrics(config.metrics_port)
        if config.http_port is not None:
            await self._start_rest()
        if config.admin is not None:
            from serve.app.admin_port import AdminServer

            admin = AdminServer(config.admin, self.backend, config)
            await admin.start()
            self._started.push_async_callback(admin.stop)
            self.admin_port = admin.port
        if config.quality is not None and config.quality.topic is not None:
            self._started.push_async_callback(
                asyncio.to_thread, labels_of_topic(self.backend, config.quality.topic).close
            )
        self._loading = asyncio.ensure_future(self.manager.rescan())

    async def wait_until_ready(self) -> None:
        """Wait until the repository's models are loaded and warm; health is then SERVING.

        Raises:
            NotReadyError: there is no model, or none could be made ready; the message says which failed and why.
            UnusableModelsError: the same, each because of its files or settings.
        """
        await asyncio.shield(self._loading)
        self._update_health()
        self.manager.check_serving(every=False)

    async def reload(self) -> None:
        """Scan the repository for new models and versions."""
        await self.manager.rescan()

    async def reroute(self, config: ServerConfig) -> None:
        """Switch to the routings of settings that were read again."""
        await self.manager.reroute(config.settings_of)

    async def stop(self) -> bool:
        """Drain: refuse further requests, answer every accepted one, close all ports.

        Returns:
            Whether every accepted request was answered within the drain time.
        """
        timeout_s = self._config.drain_timeout_s
        self.engine.drain()
        if self._metrics_server is not None:
            self._metrics_server.is_serving = False
        in_time = await self.engine.wait_until_idle(timeout_s)
        closed = await self.manager.close(timeout_s if in_time else _GRACE_S)
        await self.engine.close()
        await self._started.aclose()
        return in_time and closed

    async def _start_metrics(self, port: int) -> None:
        try:
            # In a thread: it starts an event loop, which is not allowed in a thread that runs one.
            server = await asyncio.to_thread(MetricsServer, self.metrics, self._config.tcp_host, port)
        except OSError as error:
            raise OSError(f"cannot serve metrics on port {port}: {error.strerror}") from error
        self._started.push_async_callback(asyncio.to_thread, server.close)
        self.metrics_port, self._metrics_server = server.port, server

    async def _start_rest(self) -> None:
        from serve.rest.server import RestServer  # aiohttp is an optional dependency

        rest = RestServer(self.backend, self._config)
        await rest.start()
        self._started.push_async_callback(rest.stop)
        self.http_port = rest.port

    async def _watch_health(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._update_health()

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_FILES_S)
            try:
                await self.manager.check_files()
            except Exception:
                _log.exception("the files of loaded models could not be checked")

    def _update_health(self) -> None:
        """Update health: SERVING once the repository was scanned and while at least one model answers."""
        if self.engine.is_draining:
            return
        for status in self.manager.statuses():
            self.engine.set_health(
                f"{PREDICTION_SERVICE}/{status.model}", self.manager.is_ready(status.model)
            )
        for service in ("", PREDICTION_SERVICE):
            self.engine.set_health(service, self.manager.is_ready())
        if self._metrics_server is not None:
            self._metrics_server.is_serving = self.manager.is_ready()


def _taken_ports(config: ServerConfig) -> str:
    """Return the end of an error: all ports that are taken, with their flags; empty if none is.

    A second server on a machine finds the ports of the first one taken, and should hear of all at once.

    Args:
        config: settings of a server that does not listen.
    """
    host = config.tcp_host
    ports = [("--metrics-port", host, config.metrics_port), ("--http-port", host, config.http_port)]
    if config.socket_path is None:
        ports.insert(0, ("--port", host, config.port))
    if config.admin is not None:
        ports.append(("--admin-port", config.admin.host, config.admin.port))
    taken = [flag for flag, host, port in ports if port and _is_taken(host, port)]
    if not taken:
        return ""
    numbers = [str(port) for flag, _, port in ports if flag in taken]
    are = "is taken" if len(taken) == 1 else "are taken"
    others = " ".join(f"{flag} 0" for flag in taken)
    none = " or --no-metrics" if "--metrics-port" in taken else ""
    return (
        f"; {' and '.join(numbers)} {are}, perhaps by another recsys-serve: choose other ports with "
        f"{' and '.join(taken)}{none}, or any free ones with {others}"
    )


def _is_taken(host: str, port: int) -> bool:
    try:
        listening(host, port).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
