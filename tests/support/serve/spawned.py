"""A server in a process of its own: it can be killed, and its crash is not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.fork_server import Forked

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Spawned:
    """A running server.

    Attributes:
        process: its process; standard output is a pipe of JSON lines.
        ready: the line that said that it is ready.
    """

    process: subprocess.Popen[str] | Forked
    ready: dict[str, Any]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ready['port']}"

    @property
    def metrics_address(self) -> str:
        return f"127.0.0.1:{self.ready['metrics_port']}"

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; the exit code and the last line."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, json.loads(output.splitlines()[-1])


def _started(
    command: Sequence[str], errors: IO[str], environment: Mapping[str, str]
) -> subprocess.Popen[str] | Forked:
    """Start a command, or fork what it would be where it is our own server."""
    if [*command[:2]] == [sys.executable, "-m"] and command[2] in ("serve.app", "serve.app.cli"):
        return Forked(command[1:], cwd=ROOT, environment=environment, streams=(None, errors.fileno()))
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(environment)
    )


@contextmanager
def spawned(command: Sequence[str], log: Path) -> Iterator[Spawned]:
    """Start a server and wait until it is ready; at the end it is gone, whatever happened.

    Args:
        command: prints a JSON line once it is ready, as ``recsys-serve --json`` does.
        log: takes its standard error.
    """
    # Whether the native engine is built must not change what these tests see.
    environment = {"RECSYS_SERVE_PROCESS_ENGINE": "reference", **os.environ}
    with log.open("w") as errors, _started(command, errors, environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the server did not start: {log.read_text()}"
            yield Spawned(process, json.loads(line))
        finally:
            if process.poll() is None:
                process.kill()
