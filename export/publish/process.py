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
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from export.publish.publication import Publication
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.loaded_rows import LoadedRows
from recsys.base.files import naming_full_disk
from recsys.errors import ExportError
from recsys.streams.interface import SUFFIX, DeltaSource, StreamedDelta, StreamError, next_delta
from recsys.streams.opening import open_sink, open_source
from recsys.training.messages import receive, send

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
# While the process of a training that was killed ends.
_WAITS_FOR_LOCK_S = (0.5, 1.0, 2.0)
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
            with ExitStack() as held:
                self._retrying("starting", lambda: self._enter(held, start))
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

    def _enter(self, held: ExitStack, start: Mapping[str, Any]) -> None:
        """Lock the destination, and make a folder for deltas that are not sent yet.

        Raises:
            OSError: This is not possible now.
        """
        name = hashlib.sha256(f"{start['destination']}\n{start['artifact']}".encode()).hexdigest()[:16]
        work = Path(tempfile.gettempdir()) / f"recsys-publish-{os.getuid()}-{name}"
        with ExitStack() as entered:
            entered.enter_context(_alone(work.with_suffix(".lock")))
            for left in work.parent.glob(f"{work.name}-*"):  # of processes that were killed
                shutil.rmtree(left, ignore_errors=True)
            with naming_full_disk(f"a folder for deltas in {str(work.parent)!r}"):
                folder = tempfile.TemporaryDirectory(prefix=f"{work.name}-", ignore_cleanup_errors=True)
            self._folder = Path(entered.enter_context(folder))
            # What traces write, too, is removed with it.
            tempfile.tempdir = str(self._folder)
            held.enter_context(entered.pop_all())

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
            with naming_full_disk(f"a delta in {str(self._folder.parent)!r}"):
                header = self._publication.write(path, state)
        except (ValueError, OSError, RuntimeError) as error:  # layers of users can raise anything
            path.unlink(missing_ok=True)
            return _text(error)
        held = self._publication.held
        if header is None:
            self._publication.clear()
            self._tell("ready", digest=held.state)
            return ""
        self._retrying("retrying", lambda: self._send(path, held))
        self._publication.sent(path)
        path.unlink()
        num_rows = sum(table.num_rows for table in header.tables)
        about = {"digest": held.state, "num_rows": num_rows, "num_dense": len(header.dense)}
        self._tell("ready", is_published=True, **about)
        return ""

    def _send(self, path: Path, held: LoadedRows) -> None:
        """Publish a delta after the rows that servers hold.

        Raises:
            ExportError: Somebody else publishes to the destination.
            OSError: It cannot be used now.
        """
        if _has_moved(self._source, held):
            self._check_ours(path, held)
        self._sink.publish(path)
        # Of two that publish at the same time, one at least finds the other's.
        self._check_ours(path, held)

    def _check_ours(self, path: Path, held: LoadedRows) -> None:
        """Check that the destination has no other delta after the rows that servers hold.

        Raises:
            ExportError: It has.
        """
        with DeltaFile(path) as file:
            digest = file.digest
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
            self._check_parent()
            try:
                call()
                return
            except OSError as error:
                self._tell(state, reason=_text(error))
            until_s = time.monotonic() + wait_s
            while (left_s := until_s - time.monotonic()) > 0:
                time.sleep(min(left_s, _FIRST_WAIT_S))
                self._check_parent()
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _check_parent(self) -> None:
        """Check that the training still runs: the next one waits until this process has ended.

        Raises:
            _LeftError: It does not.
        """
        if os.getppid() != self._parent:
            raise _LeftError

    def _receive(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = receive(self._pipe)
        return found

    def _tell(self, state: str, **about: Any) -> None:
        send(self._pipe, (state, about))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock of this host.

    Args:
        path: Its file, which is made if it does not exist.

    Raises:
        StreamError: Another process holds it, or the file cannot be opened.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StreamError(f"the lock {str(path)!r} cannot be opened ({error.strerror}): remove it") from None
    try:
        for wait_s in _WAITS_FOR_LOCK_S:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(wait_s)
        else:
            raise StreamError(
                "another training on this machine publishes deltas of this artifact to this destination; expected "
                "none: end one of them"
            )
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
