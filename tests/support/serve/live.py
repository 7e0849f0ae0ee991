"""A real server on loopback, with its event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from serve.app.server import Server
from serve.config.models import ModelSettings
from serve.config.settings import ServerConfig
from serve.engine.choose import choose_engine
from serve.engine.interface import ModelInfo
from serve.engine.reference.engine import ReferenceEngine
from serve.engine.reference.executor import ServedModel
from serve.errors import EngineError, ModelNotFoundError
from serve.models.repository import Fingerprint, Repository

INFO = ModelInfo(name="small", version="7", table_bytes={"users": 1600, "genres": 112})


def built_engines() -> tuple[str, ...]:
    """Return the engines that this checkout can start."""
    try:
        choose_engine("native")
    except EngineError:
        return ("reference",)
    return ("reference", "native")


class OneModel:
    """A repository that holds one version of one model, which is in memory already."""

    is_single = True

    def names(self) -> list[str]:
        return [INFO.name]

    def all_names(self) -> list[str]:
        return [INFO.name]

    def files(self, name: str, version: str) -> Fingerprint:
        del name, version
        return ()

    def manifest_bytes(self, name: str, version: str) -> bytes:
        raise ModelNotFoundError(f"version: got {version!r} of {name!r}, which is in memory alone")

    def is_removed(self, name: str, version: str) -> bool:
        del name, version
        return False

    def release(self, name: str, version: str) -> None:
        del name, version

    def versions(self, name: str) -> list[str]:
        return [INFO.version] if name == INFO.name else []

    def path(self, name: str, version: str) -> Path:
        del name, version
        return Path("in memory")

    def delta_path(self, name: str, file_name: str) -> Path:
        raise ModelNotFoundError(f"delta: got {file_name!r} of {name!r}, there is none")


def server_of(model: ServedModel, config: ServerConfig | None = None) -> Server:
    """A server of a model that is in memory already."""

    def load(_path: Path, _settings: ModelSettings) -> tuple[ServedModel, ModelInfo]:
        return model, replace(INFO, target="cpu")

    config = config or ServerConfig(port=0, metrics_port=0)
    if not config.defaults.num_executors:  # one batch at a time, whatever the machine has
        config = replace(config, defaults=replace(config.defaults, num_executors=1))
    return Server(OneModel(), config, lambda observer: ReferenceEngine(observer, load))


class LiveServer:
    """Starts at the beginning of a ``with`` block, drains at its end.

    Args:
        model: what to serve: a model that is in memory already, or the folder of a repository.
        config: how; port 0 lets the system choose.
        wait: whether to wait until the server is ready.
        engine: which engine answers for a repository.
    """

    def __init__(
        self,
        model: ServedModel | Path,
        config: ServerConfig | None = None,
        *,
        wait: bool = True,
        engine: str = "reference",
    ) -> None:
        if isinstance(model, Path):
            config = config or ServerConfig(port=0, metrics_port=0)
            self.server = Server(Repository(model), config, choose_engine(engine))
        else:
            self.server = server_of(model, config)
        self._wait = wait
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="server-loop")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def wait_until_ready(self) -> None:
        asyncio.run_coroutine_threadsafe(self.server.wait_until_ready(), self._loop).result(60)

    def apply_delta(self, name: str, version: str, file_name: str) -> None:
        """Apply a delta of a model's folder, as the admin service does."""
        applied = self.server.manager.apply_delta(name, version, file_name)
        asyncio.run_coroutine_threadsafe(applied, self._loop).result(60)

    def call_in_loop(self, function: Callable[[], None]) -> None:
        """Run something in the event loop's thread, which does nothing else meanwhile."""
        self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> LiveServer:
        self._thread.start()
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(self._end_loop)
            asyncio.run_coroutine_threadsafe(self.server.start(), self._loop).result(60)
            if_it_fails.push(self.__exit__)
            if self._wait:
                self.wait_until_ready()
            if_it_fails.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(), self._loop).result(60)
        self._end_loop()

    def _end_loop(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
