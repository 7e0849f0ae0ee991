"""A server's life: start, ready, serve until a signal, drain, stopped."""

from __future__ import annotations

import asyncio
import json
import signal

from serve.config import ServerConfig
from serve.model import ModelInfo, ServedModel
from serve.server import Server


async def serve(model: ServedModel, info: ModelInfo, config: ServerConfig, *, as_json: bool) -> int:
    """Serve until SIGTERM or SIGINT, then drain.

    Returns:
        The exit code.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(model, info, config)
    await server.start()
    try:
        await server.wait_until_ready()
    except RuntimeError:
        await server.stop()
        raise
    _say(
        as_json,
        event="ready",
        model=info.name,
        version=info.version,
        target=model.target_name,
        host=config.host,
        port=server.port,
        metrics_port=server.metrics_port,
    )
    await stopping.wait()
    in_time = await server.stop()
    _say(as_json, event="stopped", in_time=in_time, **server.metrics.outcomes())
    return 0 if in_time else 1


def _say(as_json: bool, **values: object) -> None:
    """One line for scripts or for people; flushed, because whoever waits for it reads a pipe."""
    if as_json:
        print(json.dumps(values), flush=True)
    else:
        event, *rest = values.items()
        print(f"{event[1]}: " + " ".join(f"{name}={value}" for name, value in rest), flush=True)
