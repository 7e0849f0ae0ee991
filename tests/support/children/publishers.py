"""Processes that publish, forked from one that has imported the exporter: starting one takes milliseconds, not seconds.

They run the same code over the same pipe as those that ``recsys.training`` starts; only the start differs.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress

import pytest

_SERVER = "from tests.support.children.publishers import serve; serve({})"


class ForkedProcess:
    """What ``subprocess.Popen`` offers of a process, for one that is no child of ours."""

    def __init__(self, pid: int) -> None:
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._handle = None

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        if self._handle is None:
            return
        if not select.select([self._handle], [], [], timeout_s)[0]:
            raise subprocess.TimeoutExpired("publisher", timeout_s or 0.0)
        os.close(self._handle)
        self._handle = None


class ForkServer:
    """The process that they are forked from."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER.format(theirs.fileno())], pass_fds=[theirs.fileno()]
            )

    def start(self, descriptor: int) -> ForkedProcess:
        """Start a process that publishes, with one end of a pair of sockets."""
        socket.send_fds(self._socket, [b"x"], [descriptor])
        pid = array.array("q", self._socket.recv(8))[0]
        return ForkedProcess(pid)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        assert self._process.wait() == 0


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def forked_publishers(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers start their processes by forking."""
    monkeypatch.setattr("recsys.training.publisher_process.start_process", fork_server.start)


def serve(descriptor: int) -> None:
    """Fork a process for each descriptor that comes, until the other end is closed."""
    from export.publish.process import run_publisher

    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as control:
        while True:
            message, received, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                os.setsid()
                status = 1
                try:
                    status = run_publisher(received[0])
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            os.close(received[0])
            control.send(array.array("q", [pid]).tobytes())
