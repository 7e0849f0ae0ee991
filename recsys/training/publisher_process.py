"""The process that publishes, seen from the training's rank 0."""

from __future__ import annotations

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
from enum import IntEnum
from multiprocessing.connection import Connection
from typing import Any

from recsys.training.messages import receive, send

_RESTART_S = 10.0
# What launchers of ranks set; the process has no ranks.
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: What the process runs; its argument is the descriptor.
START = "import sys; from recsys.export import run_publisher; sys.exit(run_publisher(int(sys.argv[1])))"


class Action(IntEnum):
    """What ranks do in one call of ``publish``."""

    NOTHING = 0
    #: A snapshot of what has changed.
    CHANGED = 1
    #: Begin one of all rows.
    EVERYTHING = 2
    #: Go on with one of all rows.
    MORE = 3


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


class PublisherProcess:
    """Starts the process, sends it messages, and hears what becomes of them.

    Args:
        start: What it begins with.
        log: As in ``Publisher``.

    Attributes:
        status: What became of the deltas so far.
    """

    def __init__(self, start: Mapping[str, Any], log: Callable[[str], None]) -> None:
        self.status = PublishStatus()
        self._start, self._log = start, log
        self._changed = threading.Condition()
        self._needs_all = True
        # The reason that was logged last, until all is well again.
        self._told = ""
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
        with theirs:
            self._process = start_process(theirs.fileno())
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

    def wanted(self, *, is_due: bool = True) -> Action:
        """Return what is to be done now; start the process again if it has ended.

        Args:
            is_due: Whether a snapshot may begin.
        """
        with self._changed:
            if self.status.state == "ended" and time.monotonic() - self._failed_s > _RESTART_S:
                self._launch()
            if self.status.state == "copying":
                return Action.MORE
            if self.status.state not in ("ready", "failed") or not is_due:
                return Action.NOTHING
            return Action.EVERYTHING if self._needs_all else Action.CHANGED

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
        """Wait until the process is ready, and start it again if it has ended; return whether it is ready."""
        with self._changed:
            while self.status.state in ("starting", "busy", "retrying", "ended"):
                until_s = deadline
                if self.status.state == "ended":
                    until_s = min(deadline, self._failed_s + _RESTART_S)
                if self._changed.wait(until_s - time.monotonic()):
                    continue
                if time.monotonic() >= deadline:
                    return False
                self._launch()
            return self.status.state == "ready"

    @property
    def is_lost(self) -> bool:
        """Whether no snapshot has arrived of late because the process has ended, or has just begun."""
        with self._changed:
            return self._needs_all and self.status.state in ("starting", "ready", "ended")

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
            if self.status.reason not in ("", self._told):
                self._told = self.status.reason
                line = f"publish: {state}: {self._told}"
            elif self._told and state == "ready":
                self._told = ""
                line = "publish: deltas are published again"
            self._changed.notify_all()
        if line:
            self._log(line)


def start_process(descriptor: int) -> subprocess.Popen[bytes]:
    """Start the process.

    Args:
        descriptor: One end of a pair of sockets, for its messages.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
    environment |= {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", START, str(descriptor)],
        pass_fds=[descriptor],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
        # An interrupt is for the training, which ends this process when it is done.
        start_new_session=True,
    )


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


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False
