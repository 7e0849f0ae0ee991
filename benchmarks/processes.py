"""Servers and tools as processes of their own: started, asked, ended; and what a load generator saw of a server."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


class StepError(RuntimeError):
    """A server or a measurement did not work."""


@dataclass
class Seen:
    """What one server did under one load, round by round."""

    requests_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def add(self, name: str, figures: dict[str, Any]) -> None:
        """One more round.

        Args:
            name: of the server, for the error.
            figures: the ``measurement`` that recsys-bench printed.

        Raises:
            StepError: a request failed.
        """
        if figures["num_failed"]:
            raise StepError(f"{name}: {figures['errors']}")
        self.requests_per_s.append(figures["requests_per_s"])
        self.p50_ms.append(figures["latency_ms"]["p50"])
        self.p99_ms.append(figures["latency_ms"]["p99"])

    def medians(self) -> dict[str, float]:
        """Of the rounds."""
        return {name: statistics.median(values) for name, values in asdict(self).items()}


@dataclass(frozen=True)
class Started:
    """A running server: its process's number, and the line with which it said that it is ready."""

    pid: int
    ready: dict[str, Any]

    @property
    def address(self) -> str:
        """Of its gRPC port."""
        return f"127.0.0.1:{self.ready['port']}"


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules."""
    return [sys.executable, "-m", name, *arguments]


@contextmanager
def started(command: list[str]) -> Iterator[Started]:
    """A server that says where it listens with its first line, as JSON; it ends with the block.

    Raises:
        StepError: it did not start.
    """
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise StepError(f"{Path(command[0]).name} did not start: {' '.join(command[1:])}")
            yield Started(process.pid, json.loads(line))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def run_json(command: list[str], *, good_codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Run a tool to its end: the JSON that it prints.

    Args:
        command: of the tool.
        good_codes: exit codes with which it has printed something all the same.

    Raises:
        StepError: it failed.
    """
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in good_codes:
        raise StepError(f"{' '.join(command[:3])}: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
