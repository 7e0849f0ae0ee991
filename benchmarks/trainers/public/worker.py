"""The process of one trainer: it trains an epoch, or scores the held-out rows, whenever it is asked.

It reads commands from standard input, a line each, and answers by a line of JSON. What a trainer prints goes to
standard error. It needs NumPy alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.trainers.public.task import Task

SCORES_FILE = "scores.{}.npy"


class Side(Protocol):
    """A trainer with its model."""

    def epoch(self, number: int) -> None:
        """Train on all rows; ``number`` counts from 0."""

    def scores(self) -> NDArray[Any] | dict[str, float]:
        """Return the scores of the held-out rows, ``[N]``, in any monotone scale; or, of next items, their metrics."""


def serve(name: str, packages: Sequence[str], make: Callable[[Task, Path], Side]) -> None:
    """Answer commands until the input ends.

    Args:
        name: Of the side, for its file of scores.
        packages: Distributions whose versions are reported.
        make: Returns the side for a task and its folder; an error becomes the answer.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # public packages use what their dependencies have deprecated
    folder = Path(sys.argv[1]).resolve()

    def answer(**data: Any) -> None:
        print(json.dumps(data), file=answers, flush=True)

    began = time.perf_counter()
    try:
        side = make(Task.load(folder), folder)
    except Exception as error:  # the table says why
        answer(error=f"{type(error).__name__}: {error}")
        return
    answer(versions={one: version(one) for one in packages}, prepare_s=time.perf_counter() - began)
    epochs = 0
    for line in sys.stdin:
        if line.strip() == "epoch":
            wall, cpu = time.perf_counter(), time.process_time()
            side.epoch(epochs)
            epochs += 1
            answer(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)
        else:
            found = side.scores()
            if isinstance(found, dict):
                answer(peak_mb=_peak_mb(), qualities=found)
                continue
            np.save(folder / SCORES_FILE.format(name), np.asarray(found, dtype=np.float64))
            answer(peak_mb=_peak_mb())


def _peak_mb() -> float:
    """Return the largest resident memory of this process; ``getrusage`` counts what forked it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
