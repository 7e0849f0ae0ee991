"""A process that has imported a program, and forks it for each test that asks: importing torch takes seconds.

``python -m tests.support.serve.fork_server server|publisher`` takes commands at the socket on its standard input.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[3]
_MAX_BYTES = 1 << 20
_STATUS_BYTES = 4
# What is imported before the first fork.
_IMPORTED = {"server": "serve.app.start", "publisher": "export.publish.process"}


class Forked:
    """A forked program, with the methods of ``subprocess.Popen`` that tests use.

    Args:
        arguments: of the command line.
        cwd: its folder.
        environment: all of its variables.
        errors: the descriptor of its standard error.
        program: "server" for ``python -m serve.app.cli``, "publisher" for what ``recsys.training`` starts.
        passed: a descriptor that the program gets.

    Attributes:
        pid: its process.
        stdout: its standard output.
        returncode: how it ended, negative for a signal; None while it runs.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        errors: int,
        program: str = "server",
        passed: int | None = None,
    ) -> None:
        output, out = os.pipe()
        self._status, status = os.pipe()
        command = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
        server = _server(program)
        files = [out, errors, status, *([] if passed is None else [passed])]
        try:
            socket.send_fds(server, [json.dumps(command).encode()], files)
            self.pid = int(server.recv(_STATUS_BYTES * 8))
        finally:
            os.close(out)
            os.close(status)
        self.stdout: IO[str] = os.fdopen(output)
        self.returncode: int | None = None

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return ``returncode``."""
        if self.returncode is None:
            if not wait([self._status], timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            status = os.read(self._status, _STATUS_BYTES)
            assert status, "the server that forks has ended"
            os.close(self._status)
            self.returncode = int.from_bytes(status, "little", signed=True)
        return self.returncode

    def poll(self) -> int | None:
        """Return ``returncode`` without waiting."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end; return the rest of its output, which fits into a pipe."""
        self.wait(timeout)
        return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        """Send a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


@cache
def _server(program: str) -> socket.socket:
    """Start the process that forks a program; it ends with us."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(theirs):
        command = [sys.executable, "-m", "tests.support.serve.fork_server", program]
        process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno())

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main() -> None:
    """Fork the program for each command, until nobody can send one."""
    program = sys.argv[1]
    importlib.import_module(_IMPORTED[program])
    commands = socket.socket(fileno=os.dup(0))
    waking, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    while True:
        ready = wait([commands, waking])
        if waking in ready:
            os.read(waking, _MAX_BYTES)
            _report(running)
        if commands not in ready:
            continue
        message, files, _, _ = socket.recv_fds(commands, _MAX_BYTES, 4)
        if not message:
            break
        out, errors, status, *passed = files
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(out, 1)
            os.dup2(errors, 2)
            for each in (commands.detach(), waking, woken, out, errors, status, *running.values()):
                os.close(each)
            _run(program, *passed, **json.loads(message))
        running[pid] = status
        for each in (out, errors, *passed):
            os.close(each)
        commands.send(str(pid).encode())
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _report(running: dict[int, int]) -> None:
    """Say how processes ended to those who wait for them."""
    for pid in [*running]:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status = running.pop(pid)
        with suppress(BrokenPipeError):
            os.write(status, code.to_bytes(_STATUS_BYTES, "little", signed=True))
        os.close(status)


def _run(program: str, *passed: int, arguments: list[str], cwd: str, environment: dict[str, str]) -> NoReturn:
    """Do what the command line would do, and end the process."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    code: object = 1
    try:
        if program == "publisher":
            code = importlib.import_module("recsys.export").run_publisher(*passed)
        else:
            code = importlib.import_module("serve.app.cli").main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
