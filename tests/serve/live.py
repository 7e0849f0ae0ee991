"""A real server on loopback, with its event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from serve.config import ServerConfig
from serve.model import ModelInfo, ServedModel
from serve.server import Server

INFO = ModelInfo(name="small", version="7", table_bytes={"users": 1600, "genres": 112})


class LiveServer:
    """Starts at the beginning of a ``with`` block, drains at its end.

    Args:
        model: what to serve.
        config: how; port 0 lets the system choose.
        wait: whether to wait until the server is ready.
    """

    def __init__(self, model: ServedModel, config: ServerConfig | None = None, *, wait: bool = True) -> None:
        self._config = config or ServerConfig(port=0, metrics_port=0)
        self.server = Server(model, INFO, self._config)
        self._wait = wait
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server-loop")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def wait_until_ready(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.wait_until_ready(), self._loop).result(60)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(60)
        if self._wait:
            self.wait_until_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
