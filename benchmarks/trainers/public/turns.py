"""Trainers in processes of their own, which take turns: epoch after epoch, while the others wait."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure.ratios import Ratio
from benchmarks.trainers.public.task import Task
from benchmarks.trainers.public.worker import SCORES_FILE

_ROOT = Path(__file__).resolve().parents[3]
OURS, PLAIN = "recsys-train", "plain PyTorch"


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A side of the comparison.

    Attributes:
        name: Of the side.
        module: Of its process.
        is_public: Whether it runs in the peers' Python.
        models: Those that it has.
    """

    name: str
    module: str
    is_public: bool = False
    models: Sequence[str] = ("deepfm",)


#: The plain loop first: it is what others are compared with.
TRAINERS = (
    Trainer(name=PLAIN, module="plain"),
    Trainer(name=OURS, module="ours", models=("deepfm", "sasrec")),
    Trainer(name="DeepCTR-Torch", module="deepctr", is_public=True),
    Trainer(name="RecBole", module="recbole_side", is_public=True, models=("deepfm", "sasrec")),
)


@dataclass(kw_only=True)
class Measured:
    """What was measured of one trainer.

    Attributes:
        name: Of the trainer.
        error: Why nothing was; empty where it was.
        versions: Of its packages.
        prepare_s: Seconds of wall time before the first epoch, the start of Python and the imports included.
        wall_s: Of each epoch.
        cpu_s: Of each epoch, all threads.
        qualities: Of the held-out rows after each epoch, by metric.
        peak_mb: The largest resident memory.
    """

    name: str
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    prepare_s: float = 0.0
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    qualities: list[dict[str, float]] = field(default_factory=list)
    peak_mb: float = 0.0

    def rate(self, num_rows: int, clock: str) -> float:
        """Return rows per second of a clock, "wall_s" or "cpu_s": the median of the epochs."""
        return num_rows / float(statistics.median(getattr(self, clock)))

    def ratio(self, other: Measured, clock: str) -> Ratio:
        """Return how many times the other's rows it trains in the same time, epoch by epoch."""
        return Ratio.of(getattr(other, clock), getattr(self, clock))

    def best(self, metric: str) -> float:
        """Return the best epoch's quality."""
        return max(of[metric] for of in self.qualities)


Quality = Callable[[NDArray[np.float64]], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Turns:
    """How trainers are measured.

    Attributes:
        peers_python: Of public trainers; None leaves them out.
        num_epochs: Turns of each.
        quality: Returns metrics of the held-out rows' scores.
        progress: Takes a line on what is done.
    """

    peers_python: Path | None
    num_epochs: int
    quality: Quality
    progress: Callable[[str], None]


def take_turns(trainers: Sequence[Trainer], task: Task, folder: Path, turns: Turns) -> list[Measured]:
    """Train the task that lies in a folder with each trainer that has its model."""
    trainers = [trainer for trainer in trainers if task.model in trainer.models]
    measured = [Measured(name=trainer.name) for trainer in trainers]
    with ExitStack() as stack:
        processes = {}
        for trainer, found in zip(trainers, measured, strict=True):
            python = turns.peers_python if trainer.is_public else Path(sys.executable)
            if python is None:
                found.error = "--peers-python names no Python that has it"
                continue
            turns.progress(f"{task.name}: {trainer.name} reads its rows")
            process = stack.enter_context(_Worker(python, trainer.module, folder))
            ready = process.answer()
            found.error, found.versions = ready.get("error", ""), ready.get("versions", {})
            found.prepare_s = ready.get("prepare_s", 0.0)
            if not found.error:
                processes[trainer.name] = process
        names = list(processes)
        by_name = {found.name: found for found in measured}
        for epoch in range(turns.num_epochs):
            first = epoch % max(len(names), 1)
            for name in names[first:] + names[:first]:
                turns.progress(f"{task.name}: {name}, epoch {epoch + 1} of {turns.num_epochs}")
                _turn(processes[name], by_name[name], folder, turns.quality)
            names = [name for name in names if not by_name[name].error]
    return measured


def _turn(process: _Worker, found: Measured, folder: Path, quality: Quality) -> None:
    took, scored = process.ask("epoch"), process.ask("scores")
    if error := took.get("error") or scored.get("error"):
        found.error = error
        return
    found.wall_s.append(took["wall_s"])
    found.cpu_s.append(took["cpu_s"])
    found.peak_mb = scored["peak_mb"]
    if "qualities" in scored:
        found.qualities.append(scored["qualities"])
    else:
        found.qualities.append(quality(np.load(folder / SCORES_FILE.format(found.name))))


class _Worker:
    """A trainer's process, which ends with the block."""

    def __init__(self, python: Path, module: str, folder: Path) -> None:
        self._errors = (folder / f"{module}.log").open("w+")
        command = [str(python), "-m", f"benchmarks.trainers.public.{module}", str(folder)]
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)},
        )

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            print(command, file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next answer; that of a process that died is its last error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return {"error": said[-1] if said else f"its process ended with {self._process.wait()}"}

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
