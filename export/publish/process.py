"""The process that publishes. It ends with the training: when the pipe to it is closed, or its parent is another one.

Messages are tuples. From the training: ``("start", {...})`` once, then for each snapshot ``("rows", table, numbers,
weights)``, where the last of a row counts, ``("mapping", table, ids, rows, is_whole)`` for each managed table, and at
its end ``("publish", state)``. To it: ``(state, {...})``, fields of ``recsys.training.PublishStatus``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.publish.publication import Publication
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.loaded_rows import LoadedRows
from recsys.errors import ExportError
from recsys.streams.interface import SUFFIX, DeltaSource, StreamedDelta, next_delta
from recsys.streams.opening import open_sink, open_source
from recsys.training.messages import receive, send

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_NICENESS = 5


class _LeftError(Exception):
    """The training has ended."""


def run_publisher(descriptor: int) -> int:
    """Publish what a training sends; return the process's exit status.

    Args:
        descriptor: One end of a pair of sockets; the training has the other.
    """
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    # Mappings without raw IDs take no memory (``with_weights``), and are copied where they are searched.
    warnings.filterwarnings("ignore", message=r"torch\.searchsorted\(\): boundary tensor is non-contiguous")
    with Connection(descriptor) as pipe:
        try:
            _Publisher(pipe).run()
        except (EOFError, _LeftError, BrokenPipeError, ConnectionResetError):
            return 0
    return 0


class _Publisher:
    """The loop of the process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._parent = os.getppid()

    def run(self) -> None:
        """Publish snapshots until the training has ended.

        Raises:
            EOFError: It has.
        """
        _, start = self._receive()
        try:
            with _alone(start), tempfile.TemporaryDirectory(prefix="recsys-publish-") as folder:
                self._folder = Path(folder)
                self._begin(start)
                while True:
                    self._handle(*self._receive())
        except (
            ValueError,
            NotImplementedError,
            pickle.UnpicklingError,
            ImportError,
            AttributeError,
        ) as error:
            self._tell("refused", reason=f"{_text(error)}")

    def _begin(self, start: Mapping[str, Any]) -> None:
        self._problem = ""
        self._publication = Publication(pickle.loads(start["model"]), Path(start["artifact"]))
        self._sink, self._source = open_sink(start["destination"]), open_source(start["destination"])
        held = self._publication.held
        self._source.expect(held.digest)
        self._retrying("starting", lambda: follow(self._source, held))
        self._tell("ready", digest=held.state)

    def _handle(self, kind: str, *content: Any) -> None:
        if kind != "publish":
            add = self._publication.add_rows if kind == "rows" else self._publication.add_owners
            if not self._problem:
                try:
                    add(*content)
                except ValueError as error:
                    self._problem = _text(error)
            return
        (state,) = content
        problem, self._problem = self._problem, ""
        if not problem:
            problem = self._publish(state)
        if problem:
            self._publication.clear()
            self._tell("failed", reason=problem)

    def _publish(self, state: Mapping[str, Tensor]) -> str:
        """Publish the snapshot; return why that is not possible, empty if it is done.

        Raises:
            ExportError: Somebody else publishes to the destination.
        """
        path = self._folder / f"{time.time_ns()}{SUFFIX}"
        try:
            header = self._publication.write(path, state)
        except (ValueError, OSError, RuntimeError) as error:  # layers of users can raise anything
            path.unlink(missing_ok=True)
            return _text(error)
        held = self._publication.held
        if header is None:
            self._publication.clear()
            self._tell("ready", digest=held.state)
            return ""
        self._retrying("retrying", lambda: self._send(path))
        self._publication.sent(path)
        path.unlink()
        num_rows = sum(table.num_rows for table in header.tables)
        about = {"digest": held.state, "num_rows": num_rows, "num_dense": len(header.dense)}
        self._tell("ready", is_published=True, **about)
        return ""

    def _send(self, path: Path) -> None:
        if _has_moved(self._source, self._publication.held):
            self._check_ours(path)
        self._sink.publish(path)

    def _check_ours(self, path: Path) -> None:
        """Check that what the destination has got is the delta that is sent again after an error.

        Raises:
            ExportError: It is another one.
        """
        with DeltaFile(path) as file:
            digest = file.digest
        held = self._publication.held
        others = [
            d.name for d in self._source.scan() if d.base == held.state and d.digest not in ("", digest)
        ]
        if others:
            raise ExportError(
                f"the destination has got delta {others[0]!r} after state {held.state!r}, which this training has not "
                "published: another one publishes there; end one of them"
            )

    def _retrying(self, state: str, call: Callable[[], object]) -> None:
        """Call a function until the destination can be used."""
        wait_s = _FIRST_WAIT_S
        while True:
            if os.getppid() != self._parent:
                raise _LeftError
            try:
                call()
                return
            except OSError as error:
                self._tell(state, reason=_text(error))
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _receive(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = receive(self._pipe)
        return found

    def _tell(self, state: str, **about: Any) -> None:
        send(self._pipe, (state, about))


@contextmanager
def _alone(start: Mapping[str, Any]) -> Iterator[None]:
    """Hold a lock of this host for a destination and an artifact.

    Raises:
        ExportError: Another process holds it.
    """
    name = hashlib.sha256(f"{start['destination']}\n{start['artifact']}".encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"recsys-publish-{os.getuid()}-{name}.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        for wait_s in (0.5, 1.0, 2.0, None):  # the process of a training that was killed is ending
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if wait_s is None:
                    raise ExportError(
                        "another training on this machine publishes deltas of this artifact to this destination; "
                        "expected none: end one of them"
                    ) from None
                time.sleep(wait_s)
        yield
    finally:
        os.close(file)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def follow(source: DeltaSource, held: LoadedRows) -> int:
    """Apply the deltas of a destination, so that the rows are those of servers that follow it.

    Args:
        source: The destination.
        held: The artifact's rows, as loaded or after deltas of this chain.

    Returns:
        The number of deltas that were applied.

    Raises:
        ExportError: The chain cannot be continued: a delta is missing or damaged, or leads somewhere else.
        ArtifactError: A delta does not fit the artifact.
        OSError: The destination cannot be read now.
    """
    found = [delta for delta in source.scan() if delta.artifact in ("", held.digest)]
    passed = {held.digest, held.state}
    num_applied = 0
    while (delta := next_delta(found, held.digest, held.state, passed)) is not None:
        apply(prepare(held, source.fetch(delta)))
        passed.add(held.state)
        passed.update(delta.replaces)
        num_applied += 1
    for delta in found:
        _check_passed(delta, held, passed)
    return num_applied


def _has_moved(source: DeltaSource, held: LoadedRows) -> bool:
    """Return whether a destination has a delta after the last one, which somebody else has published.

    Raises:
        OSError: The destination cannot be read now.
    """
    return next_delta(source.scan(), held.digest, held.state, {held.state}) is not None


def _check_passed(delta: StreamedDelta, held: LoadedRows, passed: set[str]) -> None:
    """Check that a delta is part of the chain, or lies beside it where servers pass it over.

    Raises:
        ExportError: It is not.
    """
    if delta.error and delta.base in passed:
        return  # a training was killed while it sent it: not whole, and so nobody's
    if delta.error:
        raise ExportError(f"the destination has delta {delta.name!r}, which cannot be read: {delta.error}")
    if delta.digest not in passed and delta.base not in passed:
        raise ExportError(
            f"the destination has delta {delta.name!r}, which follows state {delta.base!r}, but no delta leads there "
            f"from {held.state!r}: bring the missing deltas back, or publish from a new artifact"
        )
