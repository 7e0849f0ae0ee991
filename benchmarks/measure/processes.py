"""Servers and tools as separate processes, and a load generator's figures of a server."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parents[2]


class StepError(RuntimeError):
    """A server or a measurement did not work."""


@dataclass
class Seen:
    """The figures of one server under one load, by round."""

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
        """The medians of the rounds."""
        return {name: statistics.median(values) for name, values in asdict(self).items()}


@dataclass(frozen=True)
class Started:
    """A running server: its process ID, and its ready line."""

    pid: int
    ready: dict[str, Any]

    @property
    def address(self) -> str:
        """The address of its gRPC port."""
        return f"127.0.0.1:{self.ready['port']}"

    def processor_s(self) -> float:
        """Return the processor time that it has taken so far, in steps of a hundredth of a second."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        # utime and stime, see proc(5); the process's name, which is cut off, is the second field.
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this project."""
    return [sys.executable, "-m", name, *arguments]


@contextmanager
def started(command: list[str], errors: IO[str] | None = None) -> Iterator[Started]:
    """Run a server that prints its address as JSON in the first line; it ends with the block.

    Args:
        command: of the server.
        errors: receives its standard error; None for our own.

    Raises:
        StepError: it did not start.
    """
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
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
    """Run a tool and return the JSON that it prints.

    Args:
        command: of the tool.
        good_codes: exit codes after which it has printed JSON too.

    Raises:
        StepError: it failed.
    """
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in good_codes:
        raise StepError(f"{' '.join(command[:3])}: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
