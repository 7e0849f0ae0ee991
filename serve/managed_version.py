"""One version of a model: from the repository into memory and out again.

Its way: ``AVAILABLE`` → ``LOADING`` → ``READY`` → ``DRAINING`` → ``AVAILABLE``; or ``FAILED``. The methods belong to
the event loop; what blocks happens in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from recsys import delta
from recsys.allocator import memory_apart, returning_memory
from recsys.artifact import LoadedArtifact
from recsys.errors import ArtifactError
from serve.capture_file import CaptureError
from serve.config import ModelSettings
from serve.errors import DrainingError, ModelChangeError, ModelNotFoundError, RequestError
from serve.hosted import HostedModel
from serve.repository import Fingerprint, ModelSource, fingerprint
from serve.route_table import RouteTable
from serve.shadow import Comparer
from serve.status import ModelState, ModelVersionStatus
from serve.threads import in_thread

T = TypeVar("T")
_log = logging.getLogger("serve")

# Of the event loop, after which a request that was answered in the first has been forgotten.
_ROUNDS = 4
# What operators have to mend: the text says all, and a traceback would only hide it.
_EXPECTED = (ArtifactError, CaptureError, ModelChangeError, ModelNotFoundError, RequestError)

Host = Callable[[str, str, Path, ModelSettings], HostedModel]
"""Loads and warms up a version (name, version, path, settings); blocks. What it raises is the reason of the failure."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What all models of a server share.

    Attributes:
        source: where versions come from.
        host: loads one.
        set_state: told of every change: model, version, state.
        publish: told of every new route table.
        comparer: compares shadows' answers.
        loading: held while a version is loaded: one at a time, because it takes the processors of those that serve.
    """

    source: ModelSource
    host: Host
    set_state: Callable[[str, str, str], None]
    publish: Callable[[RouteTable], None]
    comparer: Comparer = field(default_factory=Comparer)
    loading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class ManagedVersion:
    """See the module. Its methods must not overlap.

    Args:
        model: the model's name.
        name: the version's.
        settings: how the model is served.
        workshop: what versions share.

    Attributes:
        state: how far it is.
        hosted: the model, while it answers.
        is_kept: an operator has loaded it beside the routing.
        is_held_back: an operator has unloaded it: only an operator loads it again.
        draining: while it leaves the memory.
    """

    def __init__(self, model: str, name: str, settings: ModelSettings, workshop: Workshop) -> None:
        self.model, self.name = model, name
        self.state = ModelState.AVAILABLE
        self.hosted: HostedModel | None = None
        self.is_kept = False
        self.is_held_back = False
        self.draining: asyncio.Task[None] | None = None
        self._settings = settings
        self._shop = workshop
        self._reason, self._is_unusable = "", False
        # Its files when it failed: it is not tried again by itself before they change.
        self._failed_as: Fingerprint | None = None
        self._digest = ""
        # Deltas since an operator loaded it: they are applied again where it comes back for a rollback.
        self._deltas: list[str] = []
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return self.state is ModelState.READY

    def status(self) -> ModelVersionStatus:
        """What operators are told."""
        hosted = self.hosted
        return ModelVersionStatus(
            version=self.name,
            state=self.state,
            reason=self._reason,
            is_unusable=self._is_unusable,
            digest=self._digest if hosted else "",
            deltas=tuple(hosted.deltas) if hosted else (),
            table_bytes=hosted.table_bytes if hosted else 0,
        )

    def may_be_tried(self, files: Fingerprint) -> bool:
        """Whether it is loaded without being asked for: not what an operator unloaded, nor what failed as it is."""
        return not self.is_held_back and self._failed_as != files

    def forget_deltas(self) -> None:
        """Once it has left the memory, it comes back without the deltas that it has had."""
        self._deltas = []

    async def load(self) -> None:
        """Load it, warm it up, and apply the deltas that it had. Nothing happens where it is ready.

        Raises:
            ModelNotFoundError: it does not lie in the repository.
            ModelChangeError: it cannot be loaded.
        """
        await self._left()
        if self.is_ready:
            return
        path, files = await self._in_thread(self._find)
        async with self._shop.loading:
            self._set_state(ModelState.LOADING)
            try:
                hosted = await self._in_thread(partial(self._open, path))
            except Exception as error:
                self._failed_as = files
                self._reason = reason_of(error, f"model {self.model}, version {self.name}, cannot be loaded")
                self._is_unusable = isinstance(error, _EXPECTED)
                self._set_state(ModelState.FAILED)
                raise ModelChangeError(
                    f"version {self.name!r} of model {self.model!r} cannot be loaded: {self._reason}"
                ) from None
        self._failed_as, self._reason, self._is_unusable = None, "", False
        self.hosted = hosted
        self._set_state(ModelState.READY)
        _log.info("model %s, version %s is ready", self.model, self.name)
        if self._is_closed:
            self.drain()
            await self._left()
            raise DrainingError("the server is stopping")

    def leave(self) -> None:
        """It is ready no more; ``drain`` follows, once nothing is routed to it."""
        self._set_state(ModelState.DRAINING)

    def drain(self) -> None:
        """Answer what was accepted, then free its memory, in a task: ``draining``. Nothing may be routed to it."""
        if self.hosted is not None:
            self._set_state(ModelState.DRAINING)
            self.draining = asyncio.create_task(self._drain())

    def close(self) -> None:
        """Drain it now, or as soon as it is loaded."""
        self._is_closed = True
        self.drain()

    async def apply_delta(self, file_name: str) -> None:
        """Exchange rows, between batches.

        Raises:
            ModelNotFoundError: there is no such file.
            ModelChangeError: it is not ready, or the delta does not fit it. Nothing has changed then.
        """
        hosted = self.hosted
        if hosted is None or not self.is_ready:
            raise ModelChangeError(
                f"version {self.name!r} of model {self.model!r} is not ready to take a delta"
            )
        path = await self._in_thread(partial(self._shop.source.delta_path, self.model, file_name))
        try:
            await self._in_thread(partial(_exchange, hosted, path, file_name))
        except Exception as error:
            hosted.metrics.delta_failed()
            what = f"model {self.model}, version {self.name}: delta {file_name} cannot be applied"
            raise ModelChangeError(
                f"delta {file_name!r} cannot be applied: {reason_of(error, what)}"
            ) from None
        self._deltas.append(file_name)
        _log.info("model %s, version %s: delta %s is applied", self.model, self.name, file_name)

    def _find(self) -> tuple[Path, Fingerprint]:
        try:
            path = self._shop.source.path(self.model, self.name)
        except OSError as error:
            raise ModelChangeError(reason_of(error, f"model {self.model}, version {self.name}")) from None
        return path, fingerprint(path)

    async def _left(self) -> None:
        """Wait until it has left the memory, if it is about to."""
        if self.draining is not None:
            await self.draining

    def _open(self, path: Path) -> HostedModel:
        with memory_apart():
            hosted = self._shop.host(self.model, self.name, path, self._settings)
        try:
            digest = hosted.info.digest
            if self._digest != digest:  # other files by the same name
                self._digest, self._deltas = digest, []
            for file_name in self._deltas:
                _exchange(hosted, self._shop.source.delta_path(self.model, file_name), file_name)
        except BaseException:
            hosted.close()
            raise
        with returning_memory():
            return hosted  # What it took to load it, such as a file's bytes, goes back.

    async def _drain(self) -> None:
        assert self.hosted is not None
        leaving, self.hosted = [self.hosted], None
        try:
            await self._in_thread(leaving[0].close)
            # Whoever was answered just now still holds it. Whoever holds it last frees it, which takes a while: that
            # should be the thread below, and not the event loop.
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            await self._in_thread(partial(_free, leaving))
        finally:
            self.draining = None
            self._set_state(ModelState.AVAILABLE)
        _log.info("model %s, version %s has left the memory", self.model, self.name)

    def _set_state(self, state: ModelState) -> None:
        self.state = state
        self._shop.set_state(self.model, self.name, state.value)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await in_thread(function, f"manage-{self.model}")


def reason_of(error: Exception, what: str) -> str:
    """Why something went wrong, in words without paths and addresses; the log gets everything.

    Args:
        error: what was raised; the log gets a traceback unless it is one of those that operators have to mend.
        what: stands before it in the log.
    """
    if isinstance(error, _EXPECTED):
        _log.error("%s: %s", what, error)
        return str(error)
    _log.error("%s", what, exc_info=error)
    if isinstance(error, MemoryError):
        return "there is too little memory"
    if isinstance(error, OSError):
        return f"a file cannot be read ({type(error).__name__}); the log says more"
    return "the model failed while it was loaded or warmed up; the log says why"


def _free(leaving: list[HostedModel]) -> None:
    with returning_memory():
        leaving.clear()


def _exchange(hosted: HostedModel, path: Path, file_name: str) -> None:
    """Apply a delta between batches, and count it; ``file_name`` is what operators are told of it."""
    if not isinstance(hosted.model, LoadedArtifact):
        raise ModelChangeError("only artifacts take deltas")
    prepared = delta.prepare(hosted.model.rows, path)
    hosted.executor.run_between_batches(lambda: _apply(prepared))
    hosted.deltas.append(file_name)
    hosted.metrics.delta_applied()
    if prepared.num_dense_left > 0:
        _log.warning(
            "model %s, version %s: delta %s leaves %d dense weights as they were exported, although they had changed "
            "when it was made; a new version brings them",
            hosted.name,
            hosted.version,
            file_name,
            prepared.num_dense_left,
        )


def _apply(prepared: delta.PreparedDelta) -> None:
    # What would take it back is dropped: it holds each row twice, and a rollback goes to another version.
    delta.apply(prepared)
