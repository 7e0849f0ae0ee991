"""A server's life: start, ready, serve until a signal, drain, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Callable

from recsys.options.kinds import ConfigError
from serve.app.check_start import StartError
from serve.app.server import MakeEngine, Server
from serve.config.settings import ServerConfig
from serve.errors import NotReadyError, UnusableModelsError
from serve.models.repository import ModelSource
from serve.models.routing_file import RoutingFileError
from serve.net.files import SecurityError
from serve.threads import in_thread

_log = logging.getLogger("serve")


async def serve(
    repository: ModelSource,
    config: ServerConfig,
    make_engine: MakeEngine,
    *,
    as_json: bool,
    read_config: Callable[[], ServerConfig] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain.

    SIGHUP reads the routings of the settings again, and scans the repository for new models and versions.

    Args:
        repository: the source of the models.
        config: how to serve them.
        make_engine: makes the engine.
        as_json: whether the ready and stopped lines are JSON.
        read_config: reads the settings again; None where they cannot have changed.

    Returns:
        The exit code.

    Raises:
        StartError: a port or its address cannot be used, a file of the settings cannot, or no model could be made
            ready.
    """
    stopping = asyncio.Event()
    reloads: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, reloads.put_nowait, None)
    server = Server(repository, config, make_engine)
    try:
        await server.start()
    except OSError as error:
        raise StartError(str(error), 1) from error
    except (ConfigError, RoutingFileError, SecurityError) as error:
        raise StartError(str(error), 2) from error
    starting = asyncio.ensure_future(server.wait_until_ready())
    ended = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
    reloading: asyncio.Task[None] | None = None
    try:
        if starting.done():
            _check_ready(starting, repository)
            _print_ready(server, config, as_json)
            reloading = asyncio.ensure_future(_reload(server, reloads, config.poll_repository_s, read_config))
        await ended
    finally:
        ended.cancel()
        if reloading is not None:
            reloading.cancel()
        in_time = await server.stop()
    _print(as_json, event="stopped", in_time=in_time, **server.metrics.outcomes())
    return 0 if in_time else 1


def _check_ready(starting: asyncio.Future[None], repository: ModelSource) -> None:
    """Check that a model was made ready."""
    try:
        starting.result()
    except UnusableModelsError as error:
        # A repository's contents may differ at the next start.
        raise StartError(str(error), 2 if repository.is_single else 1) from error
    except (NotReadyError, OSError) as error:
        raise StartError(str(error), 1) from error


async def _reload(
    server: Server,
    asked: asyncio.Queue[None],
    every_s: float,
    read_config: Callable[[], ServerConfig] | None,
) -> None:
    """Scan the repository on request, and every ``every_s`` seconds; a request reads the settings again too."""
    while True:
        is_asked = False
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.get(), every_s or None)
            is_asked = True
        try:
            before = _seen(server) if is_asked else None
            if is_asked and read_config is not None:
                await _reroute(server, read_config)
            await server.reload()
            if before is not None and _seen(server) == before:
                _log.info("SIGHUP: nothing new: routings, models and versions are as before")
        except Exception:
            _log.exception("the repository could not be looked through; what is served stays")


def _seen(server: Server) -> list[object]:
    """Return what a scan may change."""
    return [
        (
            status.model,
            status.routing,
            status.serving,
            [(each.version, each.state) for each in status.versions],
        )
        for status in server.manager.statuses()
    ]


async def _reroute(server: Server, read_config: Callable[[], ServerConfig]) -> None:
    try:
        config = await in_thread(read_config, "settings")
    except ConfigError as error:
        _log.error("the settings cannot be read again; what is served stays: %s", error)
        return
    await server.reroute(config)


def _print_ready(server: Server, config: ServerConfig, as_json: bool) -> None:
    serving = [status for status in server.manager.statuses() if status.serving]
    first = server.backend.servable(serving[0].model, serving[0].serving).info
    _print(
        as_json,
        event="ready",
        model=first.name,
        version=first.version,
        target=first.target,
        digest=first.digest,
        models=len(serving),
        engine=server.engine.kind,
        host=config.host,
        port=server.port,
        metrics_port=server.metrics_port,
        http_port=server.http_port,
        admin_port=server.admin_port,
    )


def _print(as_json: bool, **values: object) -> None:
    """Print one line, as JSON or as text. It is flushed because a script may wait for it on a pipe.

    Standard output may be closed, or its disk full: that is worth a warning, not the service.
    """
    if as_json:
        line = json.dumps(values)
    else:
        event, *rest = ((name, value) for name, value in values.items() if value is not None)
        line = f"{event[1]}: " + " ".join(f"{name}={value}" for name, value in rest)
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        print(line, flush=True)
    except (OSError, ValueError) as error:
        _log.warning("cannot write to standard output (%s): %s", error, line)
