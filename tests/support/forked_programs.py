"""A folder with the project's programs, ``torchrun`` and ``python``, forked from a process that has imported torch.

For scripts that start several programs, each of which would import torch again. Each launcher there passes on its
words, standard descriptors and signals, and ends as the program does. With other options than ``-m``, ``-u`` and
``-W``, ``python`` is started as ever: a program may pass descriptors to it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path

from tests.support.fork_server import ROOT, Forked

_MAX_BYTES = 1 << 20
_LAUNCHER = """\
#!{python} -IS
import json, os, signal, socket, sys
first, words = {words!r}, sys.argv[1:]
if not first and (not words or (words[0].startswith("-") and words[0] not in ("-m", "-u", "-W"))):
    os.execv({python!r}, [{python!r}, *words])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
command = {{"words": [*first, *words], "cwd": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(server, [json.dumps(command).encode()], [0, 1, 2])
pid = int(server.recv(32))
for each in (signal.SIGTERM, signal.SIGINT):
    signal.signal(each, lambda number, _: os.kill(pid, number))
code = int(server.recv(32))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""
_PROGRAM = "import sys; sys.argv[0] = {name!r}; from {module} import {function}; sys.exit({function}())"


@contextmanager
def forked_programs(folder: Path) -> Iterator[Path]:
    """Write the launchers into a folder, which is returned, and fork what they ask for until the end."""
    address = folder / "fork.socket"
    _write(folder, address)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen()
        accepting = threading.Thread(target=_accept, args=(listener, folder), name="forked programs")
        accepting.start()
        try:
            yield folder
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()


def _write(folder: Path, address: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    words: dict[str, list[str]] = {"python": []}
    for name, entry in {**scripts, "torchrun": "torch.distributed.run:main"}.items():
        module, function = entry.split(":")
        words[name] = ["-c", _PROGRAM.format(name=name, module=module, function=function)]
    for name, first in words.items():
        launcher = folder / name
        launcher.write_text(_LAUNCHER.format(python=sys.executable, words=first, address=str(address)))
        launcher.chmod(0o755)


def _accept(listener: socket.socket, folder: Path) -> None:
    threads = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener was shut down
            break
        threads.append(threading.Thread(target=_launch, args=(connection, folder), name="forked program"))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _launch(connection: socket.socket, folder: Path) -> None:
    with closing(connection):
        message, files, _, _ = socket.recv_fds(connection, _MAX_BYTES, 3)
        if not message:
            return
        command = json.loads(message)
        stdin, output, errors = files
        with Forked(
            command["words"],
            cwd=Path(command["cwd"]),
            environment={**command["environment"], "PYTHONEXECUTABLE": str(folder / "python")},
            streams=(output, errors, stdin),
        ) as process:
            for file in files:
                os.close(file)
            connection.send(str(process.pid).encode())
            # A launcher sends nothing more: there is something to read where it was killed.
            if connection in wait([process, connection]) and process.poll() is None:
                process.kill()
            code = process.wait()
            with suppress(BrokenPipeError):
                connection.send(str(code).encode())
