"""The native engine: a C++ library behind the interface, through the binding ``serve.engine._engine``.

The engine's threads never run Python code. Their events wait inside the engine; its file descriptor becomes
readable, and the event loop takes the events.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any

from recsys import errors
from recsys.artifact.parts import read_manifest
from recsys.artifact.store.address import parse_nodes
from recsys.base.machine import num_processors
from recsys.base.native_module import load_native
from recsys.inputs.signature import Signature
from serve.config.models import ModelSettings
from serve.engine.interface import (
    EngineCounts,
    Handed,
    HostCall,
    PortSettings,
    SubmitOptions,
    Submitted,
)
from serve.engine.native_events import (
    NativeBlock,
    captured_of,
    ended_of,
    error_of_answer,
    pair_of,
)
from serve.engine.native_servable import NativeServable
from serve.engine.native_settings import (
    EngineSettings,
    RouteSpec,
    VersionSettings,
    as_json,
)
from serve.engine.records import TRACE_PARENT, Observer
from serve.engine.routes import Routes, RouteTable
from serve.errors import ERROR_KINDS, QueueFullError, status_of
from serve.net.tls import TlsFiles, TlsMaterial
from serve.threads import in_thread

#: The classes of the native engine's errors, by the names of their kinds (``recsys::KindName``).
ERROR_OF_KIND: Mapping[str, type[Exception]] = {
    **{kind.name: kind.error for kind in ERROR_KINDS},
    "artifact_not_found": errors.ArtifactNotFoundError,
    "foreign_file": errors.ForeignFileError,
    "manifest": errors.ManifestError,
    "newer_format": errors.NewerVersionError,
    "missing_part": errors.MissingPartError,
    "part_size": errors.PartSizeError,
    "checksum": errors.ChecksumError,
    "target": errors.TargetError,
    "rows_memory": errors.RowsMemoryError,
    "delta": errors.DeltaError,
    "library": errors.ArtifactError,
    "listen": OSError,
    "config": ValueError,
    "internal": RuntimeError,
}
_log = logging.getLogger("serve")
_FOLDER = Path(__file__).parent
_BINDING = "serve.engine._engine"
# Maximum number of captured requests in a warm-up; more would delay the first request for too long.
_MAX_CAPTURED = 2000
# Maximum number of events taken at a time; between them, the event loop serves other ports.
_MAX_EVENTS = 64
# How often they are taken where all records are wanted: as many as a full ring has.
_MAX_TAKEN = 256
# Closed versions whose signatures are known, for records that wait.
_MAX_CLOSED = 64
# Interval between checks of the TLS files for changes.
_TLS_POLL_S = 0.1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def load_binding(folder: Path = _FOLDER) -> Any:
    """Import the binding; see ``recsys.base.native_module.load_native``.

    Args:
        folder: the folder of the binding.
    """
    return load_native(_BINDING, folder, "the native engine")


class NativeEngine:
    """See ``serve.engine.interface.Engine``. Belongs to the event loop that it is made in.

    Args:
        observer: takes records of requests.
        binding: the module ``serve.engine._engine``.
    """

    kind = "native"

    def __init__(self, observer: Observer, binding: Any) -> None:
        self.is_draining = False
        self._observer = observer
        self._binding = binding
        self._loop = asyncio.get_running_loop()
        self._routes = Routes()
        self._servables: dict[tuple[str, str], NativeServable] = {}
        self._calls: dict[str, HostCall] = {}
        self._serve_handed: Callable[[Handed], None] | None = None
        self._tickets = itertools.count(1)
        self._submitted: dict[int, asyncio.Future[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # By name and version, of the versions that closed last.
        self._closed: dict[tuple[str, str], Signature] = {}
        # Records of answers of versions that closed before those.
        self._num_unknown = self._num_unknown_inputs = 0
        sampling = observer.sampling
        self._trace_headers = frozenset(() if sampling.trace_share is None else (TRACE_PARENT,))
        settings = EngineSettings(
            ended=sampling.logged,
            trace_share=sampling.trace_share,
            capture_share=sampling.capture_share,
            answered_share=sampling.answered_share,
            inputs_share=sampling.inputs_share,
            num_processors=num_processors(),
        )
        with _signals_blocked():
            self._engine = binding.Engine(as_json(settings))
        self._loop.add_reader(self._engine.fileno(), self._take)
        if sampling.answered_share or sampling.inputs_share:
            # Full blocks alone wake the event loop.
            self._start(self._take_answered(sampling.answers_wait_s))

    @property
    def num_active(self) -> int:
        """See ``Engine``."""
        num_active: int = self._engine.num_active()
        return num_active

    async def listen(self, port: PortSettings, calls: Mapping[str, HostCall]) -> int:
        """See ``Engine``."""
        self._calls = dict(calls)
        tls = None if port.tls is None else TlsFiles(port.tls)
        unary = [name for name, call in calls.items() if not call.is_stream]
        streams = [name for name, call in calls.items() if call.is_stream]
        material = None if tls is None else tls.material()
        with self.own_errors(), _signals_blocked():
            number: int = self._engine.listen(
                as_json(port), unary, streams, None if material is None else _pem_of(material)
            )
        if tls is not None and material is not None:
            self._start(self._watch_tls(tls, material))
        return number

    def listen_http(
        self, listening: socket.socket, max_json_bytes: int, serve: Callable[[Handed], None]
    ) -> bool:
        """See ``Engine``."""
        self._serve_handed = serve
        with self.own_errors():
            self._engine.listen_http(os.dup(listening.fileno()), max_json_bytes)
        return True

    def open(
        self,
        name: str,
        version: str,
        path: Path,
        settings: ModelSettings,
        warm_up: Iterable[bytes] = (),
    ) -> NativeServable:
        """See ``Engine``."""
        if settings.cuda_graph_rows:
            _log.warning(
                "cuda_graph_rows: got %s, which the native engine does not use; --engine reference does",
                list(settings.cuda_graph_rows),
            )
        memory = settings.rows_memory
        manifest = read_manifest(path)
        is_random = not memory.copy_rows and memory.reads_at_random(manifest.layout.num_bytes)
        own: dict[str, Any] = {
            "name": name,
            "version": version,
            "random_access": is_random,
            "rows": _nodes(settings.rows),
            "rows_replicas": _nodes(settings.rows_replicas),
            "num_executors": settings.max_executors,
        }
        # The others have the same names and values in both.
        same = {f.name: getattr(settings, f.name) for f in fields_of(VersionSettings) if f.name not in own}
        values = VersionSettings(**own, **same)
        captured = list(itertools.islice(warm_up, _MAX_CAPTURED))
        with self.own_errors(), _signals_blocked():
            opened = self._engine.open(str(path), as_json(values), captured)
        servable = NativeServable(opened, settings, self, manifest)
        self._servables[name, version] = servable
        return servable

    def publish(self, table: RouteTable) -> None:
        """See ``Engine``."""
        self._routes.publish(table)
        self._publish_all(table.model)

    def withdraw(self, model: str) -> None:
        """See ``Engine``."""
        if self._routes.table(model) is not None:
            self._routes.withdraw(model)
            self._engine.withdraw(model)
            self._publish_all()

    def _publish_all(self, changed: str = "") -> None:
        """Publish the changed table, and those that start or stop being the default model."""
        tables = self._routes.tables()
        is_only = len(tables) == 1
        for table in tables:
            if table.model == changed or len(tables) <= 2:
                self._publish(table, is_only=is_only)

    def _publish(self, table: RouteTable, *, is_only: bool) -> None:
        plan = table.plan
        spec = RouteSpec(
            model=table.model,
            serving=plan.serving or table.pinned,
            canary=plan.canary,
            canary_share=plan.canary_share,
            key_feature=plan.key_feature,
            key_header=plan.key_header,
            shadow=plan.shadow,
            shadow_share=plan.shadow_share,
            loading=tuple(sorted(table.loading)),
            is_unloaded=table.is_unloaded,
            is_only=is_only,
        )
        versions = [s.version for s in table.servables.values() if isinstance(s, NativeServable)]
        self._engine.publish(as_json(spec), versions)

    async def submit(self, submitted: Submitted) -> bytes:
        """See ``Engine``."""
        ticket = next(self._tickets)
        headers = submitted.headers
        read = {name: headers[name] for name in self._read_headers if name in headers}
        options = as_json(replace(submitted, headers=read), SubmitOptions)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._submitted[ticket] = answer
        try:
            self._engine.submit(ticket, options, submitted.message)
            return await answer
        except asyncio.CancelledError:
            self._engine.cancel(ticket)
            raise
        finally:
            self._submitted.pop(ticket, None)

    @property
    def _read_headers(self) -> frozenset[str]:
        """Return the names of the headers that the engine reads."""
        return self._routes.key_headers | self._trace_headers

    def set_health(self, service: str, is_serving: bool) -> None:
        """See ``Engine``."""
        self._engine.set_health(service, is_serving)

    def counts(self) -> EngineCounts:
        """See ``Engine``."""
        counts = json.loads(self._engine.counts())
        dropped = counts["dropped"]
        return EngineCounts(
            unrouted=counts["unrouted"],
            # Records of ended requests serve the log and the traces; they are counted under log.
            dropped={
                "log": dropped["log"] + dropped["ended"],
                "capture": dropped["captured"],
                "answered": dropped["answered"] + self._num_unknown,
                "inputs": dropped["inputs"] + self._num_unknown_inputs,
            },
            port=counts.get("port", {}),
        )

    def take_records(self) -> None:
        """See ``Engine``."""
        num_taken = self._take(all_answers=True)
        # Under load others come meanwhile, which nobody asked for.
        for _ in range(_MAX_TAKEN):
            if num_taken < _MAX_EVENTS:
                break
            num_taken = self._take()

    def drain(self) -> None:
        """See ``Engine``."""
        self.is_draining = True
        self._engine.drain()

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """See ``Engine``."""
        return await in_thread(lambda: bool(self._engine.wait_until_idle(timeout_s)), "engine-idle")

    async def close(self) -> None:
        """See ``Engine``."""
        await in_thread(lambda: self._engine.close(0.0), "engine-close")
        for task in [*self._tasks]:
            task.cancel()
        while self._take(all_answers=True):
            pass
        self._loop.remove_reader(self._engine.fileno())

    def forget(self, servable: NativeServable) -> None:
        """Remove a closed version."""
        key = (servable.info.name, servable.info.version)
        if self._servables.get(key) is servable:
            self._closed[key] = servable.signature
            if len(self._closed) > _MAX_CLOSED:
                self._closed.pop(next(iter(self._closed)), None)
            del self._servables[key]

    @contextlib.contextmanager
    def own_errors(self) -> Iterator[None]:
        """Translate the engine's errors to Python's.

        Raises:
            ArtifactError: or ValueError, OSError or RuntimeError, by the kind of the engine's error.
        """
        try:
            yield
        except self._binding.Error as error:
            raise ERROR_OF_KIND[error.kind](str(error)) from None

    def _take(self, all_answers: bool = False) -> int:
        """Take waiting events and return their number; with ``all_answers`` also those of blocks that are not full."""
        events = self._engine.take(_MAX_EVENTS, all_answers)
        for kind, *fields in events:
            if kind == "call":
                self._start(self._answer_call(*fields))
            elif kind == "answer":
                self._settle(*fields)
            elif kind == "ended":
                self._observer.ended(ended_of(fields[0]))
            elif kind == "captured":
                self._observer.captured(captured_of(*fields))
            elif kind == "answered":
                model, version, block = fields
                signature = self._signature_of(model, version)
                if signature is not None:
                    self._observer.answered(NativeBlock(model, version, signature, block))
                else:
                    self._num_unknown += len(block)
                    self._num_unknown_inputs += len(block) if block.has_inputs else 0
            elif kind == "shadow":
                self._report_pair(*fields)
            elif kind == "connection":
                self._take_connection(*fields)
            elif kind == "log":
                level, logger, text = fields
                logging.getLogger(logger).log(logging.getLevelNamesMapping()[level], "%s", text)
        return len(events)

    async def _answer_call(self, call: int, method: str, message: bytes, *_: object) -> None:
        """Answer one message of a Python method. Messages of a stream do not wait for each other."""
        try:
            answer = await self._calls[method].answer(message)
        except Exception as error:
            code, text = status_of(error)
            retry_after_ms = error.retry_after_ms if isinstance(error, QueueFullError) else 0
            self._engine.fail(call, code.value[0], text, retry_after_ms)
        else:
            self._engine.answer(call, answer)

    def _settle(self, ticket: int, code: int, text: str, retry_after_ms: int, message: bytes) -> None:
        answer = self._submitted.get(ticket)
        if answer is None or answer.done():
            return
        error = error_of_answer(code, text, retry_after_ms)
        if error is None:
            answer.set_result(message)
        else:
            answer.set_exception(error)

    def _take_connection(self, file: int, received: bytes) -> None:
        handed = Handed(_HandedSocket(file, self._engine.release_connection), received)
        if self._serve_handed is None:
            handed.socket.close()
        else:
            self._serve_handed(handed)

    def _report_pair(self, model: str, version: str, shadow: str, *outputs: Any) -> None:
        primary, second = self._servables.get((model, version)), self._servables.get((model, shadow))
        if primary is not None and second is not None:  # else one of them was unloaded in between
            self._observer.shadowed(pair_of(primary, second, *outputs))

    def _signature_of(self, model: str, version: str) -> Signature | None:
        servable = self._servables.get((model, version))
        return self._closed.get((model, version)) if servable is None else servable.signature

    async def _take_answered(self, interval_s: float) -> None:
        """Take records of answers that are too few to fill a block, which wakes the event loop."""
        while True:
            await asyncio.sleep(interval_s)
            self._take(all_answers=True)

    async def _watch_tls(self, files: TlsFiles, known: TlsMaterial) -> None:
        """Pass changed TLS files to the engine, for new connections."""
        while True:
            await asyncio.sleep(_TLS_POLL_S)
            material = files.material()  # checks three files; reads them if they have changed
            if material is not known:
                known = material
                try:
                    self._engine.set_tls(*_pem_of(material))
                except self._binding.Error as error:
                    _log.error("the new TLS files cannot be used, connections get the old ones: %s", error)

    def _start(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _HandedSocket(socket.socket):
    """A connection that tells when it is closed."""

    def __init__(self, file: int, released: Callable[[], None]) -> None:
        super().__init__(fileno=file)
        self._released = released

    def close(self) -> None:
        """See ``socket.close``."""
        if self.fileno() >= 0:
            super().close()
            self._released()


def _pem_of(material: TlsMaterial) -> tuple[bytes, bytes, bytes | None]:
    return material.certificate, material.key, material.client_ca


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals in threads that start within the block; Python's main thread handles them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nodes(address: str) -> str:
    """Return the nodes of an address as the engine takes them."""
    if not address:
        return ""
    return ",".join(f"{host}:{port}" for host, port in parse_nodes(address))
