"""Publishing: deltas of what a training changes, made and sent by a process beside it.

The training's thread copies the rows that were touched since the last snapshot, and the dense weights. All the rest
(quantizing, comparing with what servers hold, tracing, writing, sending) happens in a process of its own, because the
interpreter's lock would stop the steps. That process is the exporter's (``export.publish``), reached by
``recsys.export``, as this package imports no other.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from recsys.artifact.parts import read_manifest
from recsys.base.collectives import group_device
from recsys.base.remote import is_address
from recsys.training.messages import receive, send
from recsys.training.skeletons import pickled, skeleton_of
from recsys.training.slices import MOST_SLICES, Pace, RowSlices, Slice
from recsys.training.snapshot import Snapshots
from recsys.training.touched import DEFAULT_CONSUMER, TouchedRows
from recsys.training.touched_ids import TouchedIds

_LOGGER = logging.getLogger(__name__)
_CONSUMER = "publisher"
# What ranks do in one call of publish: nothing, a snapshot of what has changed, begin one of all rows, go on with it.
_NOTHING, _CHANGED, _EVERYTHING, _MORE = range(4)
_RESTART_S = 10.0
_POLL_S = 0.1
# What launchers of ranks set; the process has no ranks.
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_START = "import sys; from recsys.export import run_publisher; sys.exit(run_publisher(int(sys.argv[1])))"


@dataclass(frozen=True, kw_only=True)
class PublishStatus:
    """What became of the deltas so far; on rank 0.

    Attributes:
        state: "starting"; "ready" for the next snapshot; "copying": all rows are copied, slice by slice; "busy" with
            a snapshot; "retrying": the destination cannot be used now; "failed": the last snapshot could not be
            published, the next one will hold it; "refused": nothing will be published, ``reason`` says why.
        reason: Why nothing is published now; empty if all is well.
        num_published: The number of deltas.
        digest: The state that the last delta left, or that the destination held.
        num_rows: The rows in the last delta.
        num_dense: The dense weights in the last delta.
        snapshot_s: Seconds that the training's thread took for the last snapshot; of one of all rows, the longest
            time between two steps.
    """

    state: str = "starting"
    reason: str = ""
    num_published: int = 0
    digest: str = ""
    num_rows: int = 0
    num_dense: int = 0
    snapshot_s: float = 0.0


class Publisher:
    """Publishes deltas of a model that is being trained; a context manager.

    The first snapshot holds all rows: they are compared with what the destination's servers hold, so that a training
    that was ended in any way continues the chain of deltas. They are copied in slices between steps; those that are
    touched meanwhile are copied again. Later snapshots hold the rows, and the owners of rows, that changed in between.

    Every rank makes one with the same arguments, and calls ``publish`` and ``finish`` after the same steps.

    Args:
        model: The model; on several ranks, a ``DistributedModelParallel``.
        artifact: The artifact that servers have loaded, made of this model after any amount of training.
        destination: Where deltas go: an address of ``recsys.streams``, such as a folder.
        optimizer: The optimizer of tables that no lookup trains in its backward pass (``TouchedRows``).
        exported: The model as ``recsys-export`` takes it, if that is another than ``model``; it may lie on the meta
            device. Its names are those of ``model``.
        log: Called with a line for what an operator should know; the default is a logger.

    Attributes:
        touched: The rows that were touched; the consumer "default" is free.

    Raises:
        ArtifactError: The artifact cannot be read.
        ValueError: The model has no tables, or cannot be sent to another process.
    """

    def __init__(
        self,
        model: nn.Module,
        artifact: str | os.PathLike[str],
        destination: str | os.PathLike[str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        exported: nn.Module | None = None,
        log: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        self._snapshots = Snapshots(model)
        self._child: _Child | None = None
        if self._snapshots.rank == 0:
            read_manifest(Path(artifact))
            start = {
                "model": pickled(skeleton_of(model) if exported is None else exported),
                "artifact": str(Path(artifact).absolute()),
                "destination": _absolute(destination),
            }
            self._child = _Child(start, log)
        self.touched = TouchedRows(model, [_CONSUMER, DEFAULT_CONSUMER], optimizer)
        self._ids = TouchedIds(model)
        self._slices: RowSlices | None = None
        self._pace = Pace()
        self._longest_s = 0.0

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> PublishStatus:
        """What became of the deltas so far; on other ranks than 0 always the first status."""
        return PublishStatus() if self._child is None else self._child.status

    def publish(self, *, is_due: bool = True) -> bool:
        """Take a snapshot, if the last one is published; call it between two steps, on every rank.

        It never waits for the destination. While that cannot be used, nothing is copied: the next snapshot holds
        what has changed by then. A snapshot of all rows is taken by several calls, each of which copies so much that
        the training is slowed down by a few percent.

        Args:
            is_due: Whether to take one, for ranks that call it after the same steps but have clocks of their own;
                rank 0 decides.

        Returns:
            Whether a snapshot was taken, wholly.
        """
        if self._child is None:
            return self._do(*self._agreed(_NOTHING, 0))
        action = self._child.wanted(is_due=is_due)
        num_slices = 1
        if action == _MORE:
            num_slices = 0 if self._child.is_behind else self._pace.num_slices()
        return self._do(*self._agreed(action if num_slices else _NOTHING, num_slices))

    def _do(self, action: int, num_slices: int) -> bool:
        """Do what rank 0 says; return whether a snapshot was taken, wholly."""
        if action == _NOTHING:
            return False
        started = time.perf_counter()
        self._snapshots.flush()
        if action == _EVERYTHING:
            self._longest_s = 0.0
            self._slices = RowSlices(self._snapshots, self.touched, _CONSUMER)
        messages: list[Any] = []
        if self._slices is not None:
            slices = list(self._slices.take(num_slices))
            messages += [message for one in slices for message in self._rows(one)]
            if not self._slices.is_done:
                self._send(messages, "copying")
                seconds = time.perf_counter() - started
                self._pace.copied(slices, seconds)
                self._longest_s = max(self._longest_s, seconds)
                return False
        messages += self._rows([*self.touched.rows(_CONSUMER).items()])
        owned = self._ids.owned(whole=self._slices is not None)
        messages += [("mapping", table, one.ids, one.rows, one.is_whole) for table, one in owned.items()]
        self._send([*messages, ("publish", self._snapshots.dense(without=self._ids.names))], "busy")
        seconds = time.perf_counter() - started
        if self._child is not None:
            self._child.taken(seconds if self._slices is None else max(self._longest_s, seconds))
        self._slices = None
        return True

    def _rows(self, of: Slice) -> list[tuple[Any, ...]]:
        """Return messages with rows; every rank must call it."""
        return [
            ("rows", table, numbers, found)
            for table, numbers in of
            if numbers.numel()
            for found in [self._snapshots.rows(table, numbers)]
        ]

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Publish what has changed up to now, and wait for it; call it on every rank after the last step.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether it is published.
        """
        deadline = time.monotonic() + timeout_s
        self._wait(deadline)
        is_taken = False
        while not is_taken:
            wanted = _NOTHING
            if self._child is not None and time.monotonic() < deadline:
                wanted = self._child.wanted()
            action, num_slices = self._agreed(wanted, MOST_SLICES)
            if action == _NOTHING:
                return False
            is_taken = self._do(action, num_slices)
        return self._wait(deadline)

    def _wait(self, deadline: float) -> bool:
        """Wait until the last snapshot is published; return whether it is. All ranks wait."""
        done = self._child is not None and self._child.wait(deadline)
        return bool(*self._agreed(int(done)))

    def close(self) -> None:
        """End the process; a delta that it is sending is still sent, for a few seconds. Call ``finish`` before."""
        self.touched.close()
        self._ids.close()
        if self._child is not None:
            self._child.close()

    def _send(self, messages: list[Any], state: str) -> None:
        if self._child is not None:
            self._child.send(messages, state)

    def _agreed(self, *numbers: int) -> list[int]:
        """Return rank 0's numbers."""
        group = self._snapshots.group
        if group is None or self._snapshots.world_size == 1:
            return list(numbers)
        told = torch.tensor(numbers, device=group_device(group))
        dist.broadcast(told, group=group, group_src=0)
        return [int(number) for number in told.tolist()]


class _Child:
    """The process that publishes, seen from rank 0.

    Args:
        start: What it begins with.
        log: As in ``Publisher``.
    """

    def __init__(self, start: Mapping[str, Any], log: Callable[[str], None]) -> None:
        self.status = PublishStatus()
        self._start, self._log = start, log
        self._changed = threading.Condition()
        self._needs_all = True
        self._failed_s = 0.0
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: queue.Queue[list[Any] | None] = queue.Queue(2)
        self._launch()

    def _launch(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                # An interrupt is for the training, which ends this process when it is done.
                start_new_session=True,
            )
        self._pipe = Connection(ours.detach())
        outbox: queue.Queue[list[Any] | None] = queue.Queue(2)
        self._outbox = outbox
        self._needs_all = True
        self.status = replace(self.status, state="starting", reason="")
        threads = [
            threading.Thread(target=_write, args=(self._pipe, outbox), name="publish-write", daemon=True),
            threading.Thread(target=self._listen, args=(self._pipe,), name="publish-read", daemon=True),
        ]
        for thread in threads:
            thread.start()
        outbox.put([("start", dict(self._start))])

    def wanted(self, *, is_due: bool = True) -> int:
        """Return what is to be done now; start the process again if it has ended.

        Args:
            is_due: Whether a snapshot may begin.
        """
        with self._changed:
            if self.status.state == "ended" and time.monotonic() - self._failed_s > _RESTART_S:
                self._launch()
            if self.status.state == "copying":
                return _MORE
            if self.status.state not in ("ready", "failed") or not is_due:
                return _NOTHING
            return _EVERYTHING if self._needs_all else _CHANGED

    @property
    def is_behind(self) -> bool:
        """Whether ``send`` would wait."""
        return self._outbox.full()

    def send(self, messages: list[Any], state: str) -> None:
        """Send messages beside the caller's work, which is in a state then; waits if two calls are on their way."""
        with self._changed:
            if self.status.state in ("ready", "failed", "copying"):
                self.status = replace(self.status, state=state, reason="")
        self._outbox.put(messages)

    def taken(self, seconds: float) -> None:
        """Note how long a snapshot took."""
        with self._changed:
            self.status = replace(self.status, snapshot_s=seconds)

    def wait(self, deadline: float) -> bool:
        """Wait until the process is ready; return whether it is."""
        with self._changed:
            while self.status.state in ("starting", "busy", "retrying"):
                if not self._changed.wait(deadline - time.monotonic()):
                    return False
            return self.status.state == "ready"

    def close(self) -> None:
        """End the process."""
        self._is_closed = True
        self._outbox.put(None)
        assert self._process is not None
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listen(self, pipe: Connection) -> None:
        try:
            while True:
                self._hear(*receive(pipe))
        except (EOFError, OSError):
            pass
        line = ""
        with self._changed:
            if self.status.state != "refused":
                self._failed_s = time.monotonic()
                self.status = replace(self.status, state="ended", reason="the process has ended")
                line = "" if self._is_closed else "publish: ended: the process has ended; it is started again"
            self._changed.notify_all()
        if line:
            self._log(line)

    def _hear(self, state: str, about: dict[str, Any]) -> None:
        line = ""
        with self._changed:
            before = self.status
            about = dict(about)
            num_new = int(about.pop("is_published", False))
            self.status = replace(
                before, state=state, **{"reason": "", **about}, num_published=before.num_published + num_new
            )
            if state == "ready" and before.state in ("busy", "retrying"):
                self._needs_all = False
            elif state == "failed":
                self._needs_all = True
            if self.status.reason not in ("", before.reason):
                line = f"publish: {state}: {self.status.reason}"
            elif before.reason and state == "ready":
                line = "publish: deltas are published again"
            self._changed.notify_all()
        if line:
            self._log(line)


def _write(pipe: Connection, outbox: queue.Queue[list[Any] | None]) -> None:
    """Send messages until None comes; where the process has ended, take them and drop them."""
    is_open = True
    while (messages := outbox.get()) is not None:
        for message in messages:
            if is_open:
                try:
                    send(pipe, message)
                except OSError:
                    is_open = False
    # The other thread still listens.
    with suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_WR)


def _absolute(address: str | os.PathLike[str]) -> str:
    return str(address) if is_address(str(address)) else str(Path(address).absolute())


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False
