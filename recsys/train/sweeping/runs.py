"""The runs of a sweep, and the file that they are in: a line of JSON each, after one that says what is swept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUNS_NAME = "runs.jsonl"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run.

    Attributes:
        number: From 1.
        values: The options' values, as in TOML.
        seconds: Its duration.
        epoch: The epoch that was kept, or the best one of a run that was ended early; 0 if it failed.
        metrics: The held-out metrics of that epoch, of the first label.
        metric: What runs are compared by; None if it is not defined, or the run failed.
        examples_per_second: The training's throughput in the last epoch.
        error: Why it failed; empty if it did not.
        curve: What runs are compared by, by the number of the epoch.
        is_pruned: Whether it was ended early; there is no model of it.
    """

    number: int
    values: Mapping[str, Any]
    seconds: float
    epoch: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    metric: float | None = None
    examples_per_second: float = 0.0
    error: str = ""
    curve: Mapping[str, float] = field(default_factory=dict)
    is_pruned: bool = False

    def steps(self) -> dict[int, float]:
        """Return ``curve`` by numbers, which JSON has as texts."""
        return {int(number): value for number, value in self.curve.items()}


class RunsFile:
    """The runs of a sweep in its folder. A line that was cut off by an interrupt is dropped.

    Args:
        folder: The sweep's; made if it does not exist.
        about: What is swept, as plain data.

    Attributes:
        runs: The runs that are done, in order.

    Raises:
        ValueError: The folder has another sweep, or a file that is none.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._path = folder / RUNS_NAME
        self.runs: list[SweepRun] = []
        about = json.loads(json.dumps(about))
        folder.mkdir(exist_ok=True)
        if not self._path.exists():
            self._append(about)
            return
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            with self._path.open("r+b") as file:
                file.truncate(len(whole.encode()))
        lines = whole.splitlines()
        if not lines:
            self._append(about)
            return
        try:
            head, *rest = [json.loads(line) for line in lines]
            self.runs = [SweepRun(**run) for run in rest]
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"--sweep: {self._path}: got a file that no sweep has written: {error}"
            ) from None
        _check_same(folder, head, about)

    def add(self, run: SweepRun) -> None:
        """Add a run that has ended."""
        self._append(asdict(run))
        self.runs.append(run)

    def _append(self, data: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _check_same(folder: Path, found: Any, expected: Mapping[str, Any]) -> None:
    if not isinstance(found, Mapping):
        raise ValueError(f"--sweep: {folder}: got a file that no sweep has written, expected another folder")
    for name in [*expected, *found]:
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"--sweep: {folder} has a sweep with {name} {str(found.get(name))[:80]!r}, got "
                f"{str(expected.get(name))[:80]!r}; go on with the same, or sweep into another folder"
            )


def ranked(runs: list[SweepRun], *, higher_is_better: bool) -> list[SweepRun]:
    """Return the runs, the best first, then those that were ended early, then those without a metric."""
    measured = [run for run in runs if run.metric is not None]
    measured.sort(key=lambda run: (run.is_pruned, (run.metric or 0.0) * (-1 if higher_is_better else 1)))
    return measured + [run for run in runs if run.metric is None]
