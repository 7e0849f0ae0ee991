"""Publishing: deltas of what a training changes, made and sent by a process beside it.

The training's thread copies the rows that were touched since the last snapshot, and the dense weights. All the rest
(quantizing, comparing with what servers hold, tracing, writing, sending) happens in a process of its own, because the
interpreter's lock would stop the steps. That process is the exporter's (``export.publish``), reached by
``recsys.export``, as this package imports no other.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from recsys.artifact.parts import read_manifest
from recsys.base.remote import is_address
from recsys.training.skeletons import pickled, skeleton_of
from recsys.training.snapshot import Snapshots
from recsys.training.touched import DEFAULT_CONSUMER, TouchedRows

_LOGGER = logging.getLogger(__name__)
_CONSUMER = "publisher"
# What ranks do in one call of publish.
_NOTHING, _CHANGED, _EVERYTHING = range(3)
# Rows of one message where all rows are sent.
_CHUNK_ROWS = 1 << 18
_RESTART_S = 10.0
_POLL_S = 0.1
# What launchers of ranks set; the process has no ranks.
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_START = "import sys; from recsys.export import run_publisher; sys.exit(run_publisher(int(sys.argv[1])))"


@dataclass(frozen=True, kw_only=True)
class PublishStatus:
    """What became of the deltas so far; on rank 0.

    Attributes:
        state: "starting"; "ready" for the next snapshot; "busy" with one; "retrying": the destination cannot be used
            now; "failed": the last snapshot could not be published, the next one will hold it; "refused": nothing
            will be published, ``reason`` says why.
        reason: Why nothing is published now; empty if all is well.
        num_published: The number of deltas.
        digest: The state that the last delta left, or that the destination held.
        num_rows: The rows in the last delta.
        num_dense: The dense weights in the last delta.
        snapshot_s: Seconds that the training's thread took for the last snapshot.
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
    that was ended in any way continues the chain of deltas. Later ones hold the rows that were touched in between.

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
        what has changed by then.

        Args:
            is_due: Whether to take one, for ranks that call it after the same steps but have clocks of their own;
                rank 0 decides.

        Returns:
            Whether a snapshot was taken.
        """
        wanted = _NOTHING if self._child is None or not is_due else self._child.wanted()
        action = self._agreed(wanted)
        if action == _NOTHING:
            return False
        started = time.perf_counter()
        if action == _EVERYTHING:
            self.touched.clear(_CONSUMER)
            for message in self._all_rows():
                self._send([message])
            self._send([("publish", self._snapshots.dense())])
        else:
            rows = self.touched.rows(_CONSUMER)
            messages = [
                ("rows", table, numbers.numpy(), None if found is None else found.numpy())
                for table, numbers in rows.items()
                if numbers.numel()
                for found in [self._snapshots.rows(table, numbers)]
            ]
            self._send([*messages, ("publish", self._snapshots.dense())])
        if self._child is not None:
            self._child.taken(time.perf_counter() - started)
        return True

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Publish what has changed up to now, and wait for it; call it on every rank after the last step.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether it is published.
        """
        deadline = time.monotonic() + timeout_s
        self._wait(deadline)
        if not self.publish():
            return False
        return self._wait(deadline)

    def _wait(self, deadline: float) -> bool:
        """Wait until the last snapshot is published; return whether it is. All ranks wait."""
        done = self._child is not None and self._child.wait(deadline)
        return bool(self._agreed(int(done)))

    def close(self) -> None:
        """End the process; a delta that it is sending is still sent, for a few seconds. Call ``finish`` before."""
        self.touched.close()
        if self._child is not None:
            self._child.close()

    def _send(self, messages: list[Any]) -> None:
        if self._child is not None:
            self._child.send(messages)

    def _all_rows(self) -> Iterator[tuple[Any, ...]]:
        for table, (num_rows, _) in self._snapshots.sizes.items():
            for first in range(0, num_rows, _CHUNK_ROWS):
                numbers = torch.arange(first, min(first + _CHUNK_ROWS, num_rows))
                found = self._snapshots.rows(table, numbers)
                yield "rows", table, numbers.numpy(), None if found is None else found.numpy()

    def _agreed(self, number: int) -> int:
        """Return rank 0's number."""
        group = self._snapshots.group
        if group is None or self._snapshots.world_size == 1:
            return number
        device = "cpu" if "gloo" in dist.get_backend(group) else "cuda"
        told = torch.tensor([number], device=device)
        dist.broadcast(told, group=group, group_src=0)
        return int(told)


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

    def wanted(self) -> int:
        """Return what the next snapshot must hold; start the process again if it has ended."""
        with self._changed:
            if self.status.state == "ended" and time.monotonic() - self._failed_s > _RESTART_S:
                self._launch()
            if self.status.state not in ("ready", "failed"):
                return _NOTHING
            return _EVERYTHING if self._needs_all else _CHANGED

    def send(self, messages: list[Any]) -> None:
        """Send messages beside the caller's work; waits if two calls are on their way."""
        with self._changed:
            if self.status.state in ("ready", "failed"):
                self.status = replace(self.status, state="busy", reason="")
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
                self._hear(*pickle.loads(pipe.recv_bytes()))
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
                    pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
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
