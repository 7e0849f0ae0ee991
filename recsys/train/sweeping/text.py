"""The runs of a sweep as a table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from recsys.base.terminal import whole_table
from recsys.metrics.ranked import TOP
from recsys.train.comparing.text import headings, number
from recsys.train.sweeping.runs import SweepRun


def value_text(value: Any) -> str:
    """Return a value of an option."""
    if isinstance(value, list | tuple):
        return ",".join(map(value_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def values_text(values: Mapping[str, Any]) -> str:
    """Return the values of a run in a line."""
    return ", ".join(f"{key} {value_text(value)}" for key, value in values.items())


def columns(runs: Sequence[SweepRun], metric: str) -> tuple[list[str], list[str], list[str]]:
    """Return the options' keys and the metrics' names and headings, with the metric that counts first."""
    keys = list(runs[0].values)
    found = dict.fromkeys(name for run in runs for name in run.metrics)
    names = [metric, *(name for name in found if name != metric)]
    return keys, names, headings(names, TOP)


def cells(run: SweepRun, keys: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a run that has not failed."""
    return [
        str(run.number),
        *(value_text(run.values[key]) for key in keys),
        *(number(run.metrics.get(name)) for name in names),
        f"{run.epoch} of {len(run.curve)}, pruned" if run.is_pruned else str(run.epoch),
        f"{run.seconds:.1f}",
    ]


def print_runs(runs: Sequence[SweepRun], metric: str) -> None:
    """Print the table, the best run first, and a line for each that failed."""
    done = [run for run in runs if not run.error]
    if done:
        keys, names, titles = columns(done, metric)
        rows = [cells(run, keys, names) for run in done]
        heads = ["run", *keys, *titles, "epoch", "seconds"]
        Console().print(whole_table("", heads, rows, left=set(range(1, len(keys) + 1))))
    for run in runs:
        if run.error:
            print(f"run {run.number} failed: {values_text(run.values)}: {run.error}")
