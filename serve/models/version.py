"""One version of a model: loading, serving, unloading.

Its states: ``AVAILABLE`` → ``LOADING`` → ``READY`` → ``DRAINING`` → ``AVAILABLE``; or ``FAILED``. The methods
belong to the event loop; blocking work runs in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from recsys.artifact.parts import read_manifest, rows_file
from recsys.artifact.remote.cache import CacheError
from recsys.base.allocator import memory_apart, returning_memory
from recsys.base.remote import RemoteError
from recsys.errors import ArtifactError
from recsys.rows.file import RowsFile
from recsys.streams.interface import StreamedDelta, StreamError
from serve.config.models import ModelSettings
from serve.engine.interface import Engine, Servable
from serve.engine.routes import RouteTable
from serve.errors import DrainingError, ModelChangeError, ModelNotFoundError, RequestError
from serve.metrics.counters import NO_CONTEXT_CACHE
from serve.metrics.registry import Metrics
from serve.metrics.streams import StreamState
from serve.models.delta_stream import DeltaStream
from serve.models.following import Following
from serve.models.repository import Fingerprint, ModelSource
from serve.models.status import ModelState, ModelVersionStatus
from serve.observe.capture_file import CaptureError, captured_requests
from serve.threads import in_thread

T = TypeVar("T")
_log = logging.getLogger("serve")

# Names of deltas that are kept of a stream.
_MAX_LISTED_DELTAS = 100
# Errors of streams whose text says all.
_NAMED = (StreamError, RemoteError)
# Errors that operators have to fix: the message suffices, so no traceback is logged.
_EXPECTED = (ArtifactError, CaptureError, ModelChangeError, ModelNotFoundError, RequestError)


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """Objects shared by all models of a server.

    Attributes:
        source: the source of versions.
        engine: opens them.
        metrics: exposes them and their states.
        publish: receives every new route table.
        loading: held while a version is loaded. One at a time, because loading competes for processors with
            serving.
    """

    source: ModelSource
    engine: Engine
    metrics: Metrics
    publish: Callable[[RouteTable], None]
    loading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))


class ManagedVersion:
    """See the module. Its methods must not overlap.

    Args:
        model: the model's name.
        name: the version's name.
        settings: the model's settings.
        context: shared objects.
        following: the model's stream of deltas; None if it follows none.

    Attributes:
        state: its state.
        servable: the servable, while loaded.
        is_kept: whether an operator loaded it, so that it stays without the routing.
        is_held_back: whether an operator unloaded it; then only an operator loads it again.
        draining: the task that drains it, while it runs.
    """

    def __init__(
        self,
        model: str,
        name: str,
        settings: ModelSettings,
        context: ServerContext,
        following: Following | None = None,
    ) -> None:
        self.model, self.name = model, name
        self.state = ModelState.AVAILABLE
        self.servable: Servable | None = None
        self.is_kept = False
        self.is_held_back = False
        self.draining: asyncio.Task[None] | None = None
        self._settings = settings
        self._context = context
        self._reason, self._is_unusable = "", False
        # Its files when it failed; it is not retried automatically until they change.
        self._failed_as: Fingerprint | None = None
        self._digest = ""
        # Opened beside the engine's, to notice changes also while no request comes.
        self._rows: RowsFile | None = None
        # Deltas since an operator loaded it; they are applied again if it is reloaded for a rollback.
        self._deltas: list[str] = []
        self._following = following
        self._stream: DeltaStream | None = None  # of the servable
        self._is_closed = False

    @property
    def is_ready(self) -> bool:
        """Whether it answers."""
        return self.state is ModelState.READY

    def status(self) -> ModelVersionStatus:
        """Return the status for operators."""
        servable = self.servable
        return ModelVersionStatus(
            version=self.name,
            state=self.state,
            reason=self._reason,
            is_unusable=self._is_unusable,
            digest=self._digest if servable else "",
            deltas=tuple(servable.deltas) if servable else (),
            table_bytes=sum(servable.info.table_bytes.values()) if servable else 0,
            stream=self._stream.status if servable and self._stream else None,
            context_cache=servable.totals().context_cache if servable else NO_CONTEXT_CACHE,
        )

    def may_be_tried(self, files: Fingerprint) -> bool:
        """Return whether to load it automatically: not if an operator unloaded it or it failed unchanged."""
        return not self.is_held_back and self._failed_as != files

    def forget_deltas(self) -> None:
        """Forget its deltas, so that they are not applied when it is loaded again."""
        self._deltas = []

    async def load(self) -> None:
        """Load it, warm it up, and apply the deltas that it had or that its stream holds.

        Does nothing if it is ready.

        Raises:
            ModelNotFoundError: it is not in the repository.
            ModelChangeError: it cannot be loaded.
        """
        await self._left()
        if self.is_ready:
            return
        before = self.state
        self._set_state(ModelState.LOADING)
        try:
            path, files = await self._in_thread(self._find)
        except ModelNotFoundError:
            self._set_state(before)
            raise
        except Exception as error:
            # What a store or a disk cannot give now is asked for again at the next scan.
            is_damaged = isinstance(error, ArtifactError)
            raise self._failed(error, await self._in_thread(self._files) if is_damaged else None) from None
        async with self._context.loading:
            try:
                servable = await self._in_thread(partial(self._open, path, files))
            except Exception as error:
                self._context.source.release(self.model, self.name)
                raise self._failed(error, files) from None
        self._failed_as, self._reason, self._is_unusable = None, "", False
        self.servable = servable
        self._set_state(ModelState.READY)
        pages = servable.info.rows_pages
        _log.info(
            "model %s, version %s is ready; rows in memory: %s bytes, on huge pages: %s, locked: %s",
            self.model,
            self.name,
            *(f"{number:,}" for number in (pages.resident_bytes, pages.huge_bytes, pages.locked_bytes)),
        )
        if self._is_closed:
            self.drain()
            await self._left()
            raise DrainingError("the server is stopping")

    def _failed(self, error: Exception, files: Fingerprint | None) -> ModelChangeError:
        """Mark it as failed, and return what to raise.

        Args:
            error: why.
            files: it is not loaded automatically until they change; None if the next scan may try again.
        """
        self._failed_as = files
        self._reason = reason_of(error, f"model {self.model}, version {self.name}, cannot be loaded")
        self._is_unusable = isinstance(error, _EXPECTED)
        self._set_state(ModelState.FAILED)
        return ModelChangeError(
            f"version {self.name!r} of model {self.model!r} cannot be loaded: {self._reason}"
        )

    async def is_spoiled(self) -> bool:
        """Return whether the rows that it reads from its file are not those that it was loaded with.

        A file that is being written may yet get the same bytes: it counts once two calls have found it alike.
        """
        rows = self._rows
        if rows is None or not self.is_ready:
            return False
        before = rows.spoiled
        try:
            await self._in_thread(rows.check)
        except ArtifactError as error:
            self._reason, self._is_unusable = str(error), True
            return rows.spoiled == before
        return False

    def spoil(self, files: Fingerprint) -> None:
        """Mark it as failed; call ``drain`` once nothing is routed to it. It is loaded again if its files change."""
        _log.error("model %s, version %s answers no more: %s", self.model, self.name, self._reason)
        self._failed_as = files
        self._set_state(ModelState.FAILED)

    def leave(self) -> None:
        """Mark it as not ready; call ``drain`` once nothing is routed to it."""
        self._set_state(ModelState.DRAINING)

    def drain(self) -> None:
        """Start ``draining``: answer accepted requests, free the memory. Nothing may be routed to it."""
        if self.servable is not None:
            if self.state is not ModelState.FAILED:
                self._set_state(ModelState.DRAINING)
            self.draining = asyncio.create_task(self._drain())

    def close(self) -> None:
        """Drain it now, or as soon as it is loaded."""
        self._is_closed = True
        self.drain()

    async def apply_delta(self, file_name: str) -> None:
        """Replace rows between batches.

        Raises:
            ModelNotFoundError: The file does not exist.
            ModelChangeError: it is not ready, it follows a stream, or the delta does not fit it. Nothing is
                changed.
        """
        if self._following is not None:
            raise ModelChangeError(
                f"model {self.model!r} takes its deltas from a stream of its own (setting deltas): publish it there"
            )
        servable = self.servable
        if servable is None or not self.is_ready:
            raise ModelChangeError(
                f"version {self.name!r} of model {self.model!r} is not ready to take a delta"
            )
        path = await self._in_thread(partial(self._context.source.delta_path, self.model, file_name))
        try:
            await self._in_thread(partial(self._replace_rows, servable, path, file_name))
        except Exception as error:
            self._context.metrics.delta(self.model, self.name, "failed")
            what = f"model {self.model}, version {self.name}: delta {file_name} cannot be applied"
            raise ModelChangeError(
                f"delta {file_name!r} cannot be applied: {reason_of(error, what)}"
            ) from None
        self._deltas.append(file_name)
        _log.info("model %s, version %s: delta %s is applied", self.model, self.name, file_name)

    def has_delta(self, found: Sequence[StreamedDelta]) -> bool:
        """Return whether one of these files is the next delta of its stream."""
        stream = self._stream
        return self.is_ready and stream is not None and stream.next(found) is not None

    async def take_delta(self, found: Sequence[StreamedDelta]) -> None:
        """Apply the next delta of its stream, if there is one; ``settle_deltas`` reports a failure."""
        servable, stream, following = self.servable, self._stream, self._following
        if self.is_ready and servable is not None and stream is not None and following is not None:
            await self._in_thread(partial(self._take_next, servable, stream, following, found))

    def settle_deltas(self, found: Sequence[StreamedDelta] | OSError, *, is_due: bool) -> None:
        """Set and report the state of its stream at the end of a poll.

        Args:
            found: the deltas of the stream, or why it cannot be read.
            is_due: see ``DeltaStream.settle``.
        """
        if self._stream is not None and self._following is not None and self.servable is not None:
            self._settle(self._stream, found, is_due=is_due)

    def _find(self) -> tuple[Path, Fingerprint]:
        source = self._context.source
        return source.path(self.model, self.name), source.files(self.model, self.name)

    def _files(self) -> Fingerprint:
        try:
            return self._context.source.files(self.model, self.name)
        except (ModelNotFoundError, OSError):
            return ()

    async def _left(self) -> None:
        """Wait until it is unloaded, if it is draining."""
        if self.draining is not None:
            await self.draining

    def _open(self, path: Path, files: Fingerprint) -> Servable:
        with memory_apart():
            servable = self._context.engine.open(
                self.model, self.name, path, self._settings, self._captured_requests()
            )
        self._context.metrics.add(servable)
        try:
            self._rows = None if self._settings.copy_rows else _rows_of(path)
            digest = servable.info.digest
            if self._digest != digest:  # different files under the same name
                self._digest, self._deltas = digest, []
            for file_name in self._deltas:
                self._replace_rows(
                    servable, self._context.source.delta_path(self.model, file_name), file_name
                )
            self._stream = (
                None if self._following is None else self._caught_up(servable, self._following, files)
            )
        except BaseException:
            self._close(servable)
            raise
        with returning_memory():
            return servable  # Return the memory used for loading, such as a file's bytes, to the system.

    def _captured_requests(self) -> Iterator[bytes]:
        """Yield captured requests to warm up with, up to the first damage in their file.

        Raises:
            CaptureError: the file is missing, or not a capture.
        """
        if self._settings.warm_up is not None:
            try:
                yield from captured_requests(self._settings.warm_up)
            except CaptureError as error:
                raise CaptureError(f"warm_up: {error}") from None

    def _caught_up(self, servable: Servable, following: Following, files: Fingerprint) -> DeltaStream:
        """Apply the deltas that the stream holds. Problems stop the stream; the version serves with the rest."""
        digest = servable.info.digest
        following.expect(digest)
        written_ns = max((time_ns for _, _, time_ns, _ in files), default=0)
        stream = DeltaStream(digest, written_ns / 1e9)
        found: Sequence[StreamedDelta] | OSError
        try:
            found = deltas = following.scan()
            while self._take_next(servable, stream, following, deltas):
                pass
        except OSError as error:
            found = error
        self._settle(stream, found, is_due=True)
        return stream

    def _take_next(
        self, servable: Servable, stream: DeltaStream, following: Following, found: Sequence[StreamedDelta]
    ) -> bool:
        """Apply the next delta of a stream; return whether there was one."""
        delta = stream.next(found)
        if delta is None:
            return False
        what = f"model {self.model}, version {self.name}: delta {delta.name}"
        try:
            following.use(delta, partial(self._replace_rows, servable, file_name=delta.name))
        except ArtifactError as error:
            self._context.metrics.delta(self.model, self.name, "failed")
            stream.failed(delta, StreamState.DAMAGED, str(error))
        except _NAMED as error:
            stream.failed(delta, StreamState.FAILED, str(error))
        except Exception as error:
            self._context.metrics.delta(self.model, self.name, "failed")
            stream.failed(delta, StreamState.FAILED, reason_of(error, f"{what} cannot be applied"))
        else:
            stream.applied(delta, time.time())
            del servable.deltas[:-_MAX_LISTED_DELTAS]
            self._context.metrics.set_stream(self.model, self.name, stream.status)
            _log.info("%s is applied", what)
        return True

    def _settle(self, stream: DeltaStream, found: Sequence[StreamedDelta] | OSError, *, is_due: bool) -> None:
        before = stream.status
        if isinstance(found, OSError):
            why = str(found) if isinstance(found, _NAMED) else f"it cannot be read ({type(found).__name__})"
            stream.unreadable(f"the stream of deltas: {why}")
        else:
            artifacts = self._following.artifacts if self._following is not None else ()
            stream.settle(found, artifacts, is_due=is_due)
        self._context.metrics.set_stream(self.model, self.name, stream.status)
        after = stream.status
        if (after.state, after.reason) == (before.state, before.reason):
            return
        what = f"model {self.model}, version {self.name}"
        if after.state is StreamState.FOLLOWING:
            _log.info("%s: its deltas are followed again", what)
        else:
            _log.error("%s: its deltas are no longer followed: %s; it serves as it is", what, after.reason)

    def _replace_rows(self, servable: Servable, path: Path, file_name: str) -> None:
        """Apply a delta between batches and count it; operators see ``file_name``."""
        num_dense_left = servable.apply_delta(path)
        servable.deltas.append(file_name)
        self._context.metrics.delta(self.model, self.name, "applied")
        if num_dense_left > 0:
            _log.warning(
                "model %s, version %s: delta %s leaves %d dense weights as they were exported, although they had "
                "changed when it was made; a delta with dense weights, or a new version, brings them",
                self.model,
                self.name,
                file_name,
                num_dense_left,
            )

    async def _drain(self) -> None:
        assert self.servable is not None
        servable, self.servable, self._rows = self.servable, None, None
        try:
            await self._in_thread(partial(self._leave_memory, servable))
        finally:
            self.draining = None
            if self.state is ModelState.DRAINING:
                self._set_state(ModelState.AVAILABLE)
        _log.info("model %s, version %s has left the memory", self.model, self.name)

    def _leave_memory(self, servable: Servable) -> None:
        self._close(servable)
        self._context.source.release(self.model, self.name)

    def _close(self, servable: Servable) -> None:
        with returning_memory():
            servable.close()
        self._context.metrics.drop(servable)

    def _set_state(self, state: ModelState) -> None:
        self.state = state
        self._context.metrics.set_state(self.model, self.name, state.value)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await in_thread(function, f"manage-{self.model}")


def _rows_of(path: Path) -> RowsFile | None:
    """Open the rows file of an artifact; None for a single file, whose rows are copied when it is loaded."""
    return rows_file(path, read_manifest(path)) if path.is_dir() else None


def reason_of(error: Exception, what: str) -> str:
    """Return an error's reason without paths and addresses; the log gets everything.

    Args:
        error: the exception; logged with a traceback unless operators have to fix it.
        what: prefix of the log message.
    """
    if isinstance(error, (*_EXPECTED, RemoteError, CacheError)):
        _log.error("%s: %s", what, error)
        return str(error)
    _log.error("%s", what, exc_info=error)
    if isinstance(error, MemoryError):
        return "there is too little memory"
    if isinstance(error, OSError):
        return f"a file cannot be read ({type(error).__name__}); the log says more"
    return "the model failed while it was loaded or warmed up; the log says why"
