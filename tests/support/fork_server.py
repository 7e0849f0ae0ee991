"""Python commands in forks of a process that has imported what they need: importing torch takes seconds.

``run_python`` is ``subprocess.run``, and ``Forked`` is ``subprocess.Popen``, of a Python command. Tests of what a
command imports, or of how the interpreter is started, start it.

``python -m tests.support.fork_server MODULES...`` imports them and takes commands at the socket on its standard input.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: What the project's programs import, and scripts with TorchRec. One process forks all programs.
PROGRAMS = (
    "export.cli",
    "export.publish.process",
    "recsys.train.commands.train",
    "recsys.planner.cli",
    "serve.app.start",
)
TORCHREC = ("torchrec.distributed.model_parallel", "torchrec.models.dlrm")
_MAX_BYTES = 1 << 20
_STATUS_BYTES = 4
# Threads ask one after another.
_ASKING = threading.Lock()


class Forked:
    """A forked command, with the methods of ``subprocess.Popen`` that tests use.

    Args:
        words: what follows ``python``: ``-m module``, ``-c code`` or a script, and its arguments; before them ``-u``,
            which changes nothing, or ``-W`` and what to ignore, which is then all warnings.
        cwd: the folder that it runs in.
        environment: all variables of its environment. ``PYTHONEXECUTABLE`` is ``sys.executable``, as on macOS.
        streams: the descriptors of its standard output, None for a pipe, of its standard error, and of its standard
            input where it has one.
        imported: the modules that the process which forks has imported.
        passed: a descriptor that the command gets; its number there is the last word.

    Attributes:
        pid: its process.
        stdout: the end of the pipe.
        returncode: how it ended, negative for a signal; None while it runs.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        streams: tuple[int | None, int] | tuple[int | None, int, int],
        imported: tuple[str, ...] = PROGRAMS,
        passed: int | None = None,
    ) -> None:
        read, out = os.pipe()
        output, errors, *inputs = streams
        self._status, status = os.pipe()
        command = {"words": list(words), "cwd": str(cwd), "environment": dict(environment)}
        stdin = os.dup(inputs[0]) if inputs else os.open(os.devnull, os.O_RDONLY)
        try:
            files = [
                stdin,
                out if output is None else output,
                errors,
                status,
                *([] if passed is None else [passed]),
            ]
            with _ASKING:
                server = _server(imported)
                socket.send_fds(server, [json.dumps(command).encode()], files)
                self.pid = int(server.recv(_STATUS_BYTES * 8))
        finally:
            for each in (stdin, out, status):
                os.close(each)
        self.stdout: IO[str] = os.fdopen(read)
        self.returncode: int | None = None

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        self.stdout.close()
        self.wait()
        os.close(self._status)

    def fileno(self) -> int:
        """Return a descriptor that can be read once it has ended."""
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return ``returncode``."""
        if self.returncode is None:
            if not wait([self._status], timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            status = os.read(self._status, _STATUS_BYTES)
            assert status, "the server that forks has ended"
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


def run_python(
    *words: str,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    imported: tuple[str, ...] = PROGRAMS,
    timeout_s: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a Python command and wait for its end.

    Args:
        words: as ``Forked`` takes them.
        cwd: the folder that it runs in.
        environment: all variables of its environment; None for ours.
        imported: the modules that the process which forks has imported.
        timeout_s: it is killed after so many seconds.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    environment = dict(os.environ) if environment is None else environment
    with (
        TemporaryFile("w+") as out,
        TemporaryFile("w+") as errors,
        Forked(
            words,
            cwd=cwd,
            environment=environment,
            streams=(out.fileno(), errors.fileno()),
            imported=imported,
        ) as process,
    ):
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            raise
        for file in (out, errors):
            file.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), errors.read())


@cache
def _server(imported: tuple[str, ...]) -> socket.socket:
    """Start the process that forks; it ends with us."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(theirs):
        command = [sys.executable, "-m", "tests.support.fork_server", *imported]
        process = subprocess.Popen(command, cwd=ROOT, stdin=theirs.fileno())

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main() -> None:
    """Fork a process for each command, until nobody can send one."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
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
        message, files, _, _ = socket.recv_fds(commands, _MAX_BYTES, 5)
        if not message:
            break
        stdin, out, errors, status, *passed = files
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(stdin, 0)
            os.dup2(out, 1)
            os.dup2(errors, 2)
            for each in (commands.detach(), waking, woken, stdin, out, errors, status, *running.values()):
                os.close(each)
            _run(*passed, **json.loads(message))
        running[pid] = status
        for each in (stdin, out, errors, *passed):
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


def _run(*passed: int, words: list[str], cwd: str, environment: dict[str, str]) -> NoReturn:
    """Do what ``python`` does with these words, and end the process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.executable = environment.get("PYTHONEXECUTABLE", sys.executable)
    atexit._clear()
    code: object = 0
    try:
        _interpret([*words, *map(str, passed)])
    except SystemExit as ended:
        code = ended.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _interpret(words: list[str]) -> None:
    if words[0] == "-u":
        words = words[1:]
    if words[0] == "-W":
        warnings.simplefilter("ignore")
        words = words[2:]
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        # That the process has imported it is what it is for.
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning, "runpy")
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent.absolute())
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
