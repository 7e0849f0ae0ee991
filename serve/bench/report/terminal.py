"""The report as text: a progress bar while it runs, then tables, which the page shows too."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console, ConsoleRenderable
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from recsys.base.terminal import whole_table
from serve.bench.load.figures import Figures, Verdict
from serve.bench.load.latencies import QUANTILES
from serve.bench.load.plan import Progress as Tell
from serve.bench.run import Result, Tried

# Width if the output is not a terminal.
_PIPE_WIDTH = 120
_COLUMNS = (*QUANTILES, "max", "mean")


class Display:
    """A progress bar if the stream is a terminal.

    Args:
        stream: standard error.
        says_steps: whether to print a line per measurement if the stream is not a terminal.
    """

    def __init__(self, stream: TextIO, *, says_steps: bool = False) -> None:
        self._lines = stream if says_steps and not stream.isatty() else None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=Console(file=stream),
            transient=True,
            disable=not stream.isatty(),
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, length_s: float) -> Tell:
        """Show the next measurement, and return the receiver of its progress."""
        if self._lines is not None:
            print(f"recsys-bench: {what}, {length_s:.0f} s", file=self._lines, flush=True)
        for task_id in self._progress.task_ids:
            self._progress.remove_task(task_id)
        total = length_s if math.isfinite(length_s) else None
        task = self._progress.add_task(what, total=total, said="")

        def tell(elapsed_s: float, num_answered: int, num_failed: int) -> None:
            failed = f", {num_failed:,} failed" if num_failed else ""
            self._progress.update(task, completed=elapsed_s, said=f"{num_answered:,} answered{failed}")

        return tell


def print_result(result: Result, console: Console | None = None) -> None:
    """Print the report in the terminal's width."""
    if console is None:
        console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(Text(headline(result), style="bold"))
    for line in about(result):
        console.print(Text(line))
    if result.found is not None:
        console.print(_table("steps", steps_table(result)))
    made = result.measurement
    if made is None:
        return
    console.print(_table("latency in ms", latencies_table(made)))
    if made.errors:
        console.print(_table("failed requests", errors_table(made)))
    if result.server_metrics is not None:
        console.print(_table("the server counted", server_metrics_table(result.server_metrics)))
    for warning in result.warnings():
        console.print(Text(f"warning: {warning}", style="bold yellow"))


def headline(result: Result) -> str:
    """Return the outcome in one line."""
    made, found = result.measurement, result.found
    if found is not None:
        bound = f"p99 of at most {result.settings.search.p99_ms:g} ms"
        if found.rate_per_s is None:
            return f"no rate was answered with a {bound}"
        if found.limit is None:
            return f"at least {found.rate_per_s:,.1f} requests/s with a {bound}: no limit was found"
        of = " (the client's limit, not the server's)" if found.limit is Verdict.LATE else ""
        unsure = (
            "" if found.is_settled else f", not settled in {result.settings.search.most_s:g} s (--search-s)"
        )
        return f"{found.rate_per_s:,.1f} requests/s with a {bound}{of}{unsure}"
    if made is None or not made.num_answered:
        return "nothing was answered"
    contexts = "" if made.contexts_per_s is None else f"{made.contexts_per_s:,.1f} contexts/s, "
    return (
        f"{made.requests_per_s:,.1f} requests/s, {contexts}{made.rows_per_s:,.1f} rows/s; "
        f"p50 {number(made.latency_ms['p50'])} ms, p99 {number(made.p99_ms)} ms"
        + ("" if made.is_valid else "; NOT VALID, see the warning")
    )


def about(result: Result) -> list[str]:
    """Return a description of the measurement and the client."""
    settings, server = result.settings, result.server
    said = settings.to_json()
    what = f"model {server['model']}, version {server['version']}, target {server['target']}"
    if settings.shape.payload_bytes:
        what = settings.target.address
        shape = f"payloads of {settings.shape.payload_bytes} bytes"
    elif "replay" in said:
        shape = "a recording"
    elif "candidates" in said:
        users = f" of {said['users']:,} users" if said["users"] else ""
        shape = f"requests of one context{users} and {said['candidates']} candidates"
    else:
        shape = f"rows per request: {said['rows']}"
    lines = [
        f"{what}; {said['protocol']}; {shape}",
        loop_text(result),
    ]
    made = result.measurement
    if made is not None:
        shares = ", ".join(f"{share:.0%}" for share in made.generator_cpu_shares)
        late = (
            ""
            if made.lag_ms is None
            else f"; {made.late_share:.2%} sent more than {made.late_ms:.3g} ms late"
        )
        lines.append(f"the client used {shares or 'an unknown share'} of a core{late}")
    return lines


def loop_text(result: Result) -> str:
    """Return a description of the loop."""
    settings, made = result.settings, result.measurement
    load = settings.load
    what = "thread" if load.sender == "native" else "process"
    where = (
        f"{_counted(settings.target.num_connections, 'connection')}, "
        f"{_counted(load.num_processes, what)} of the {load.sender} sender"
    )
    if settings.mode == "find-rate":
        return f"open loops of at least {load.duration_s:g} s; {where}"
    lasted = "" if made is None else f" for {made.duration_s:.4g} s"
    if load.num_in_flight is not None:
        return f"closed loop, {load.num_in_flight} in flight{lasted}; {where}"
    if load.rate_per_s is not None:
        return f"open loop, {load.rate_per_s:g}/s{lasted}; {where}"
    speed = settings.recording.speed if settings.recording else None
    return f"a recording at {speed:g} times its speed{lasted}; {where}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}{'es' if name.endswith('s') else 's'}"


def _table(title: str, cells: Cells) -> ConsoleRenderable:
    return whole_table(title, cells.headings, cells.rows, left=set(cells.left))


@dataclass(frozen=True)
class Cells:
    """A table.

    Attributes:
        headings: headings of the columns.
        rows: one cell for each column.
        left: columns that are flush left; all others are numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int]


def latencies_table(made: Figures) -> Cells:
    """Return the latencies of all requests and of each kind."""
    is_open = made.lag_ms is not None
    rows = [["since due" if is_open else "all", f"{made.num_answered:,}", *_cells(made.latency_ms)]]
    if made.service_ms is not None and made.lag_ms is not None:
        rows.append(["since sent", "", *_cells(made.service_ms)])
        rows.append(["sent late by", "", *_cells(made.lag_ms)])
    rows += [
        [name, f"{kind['num_answered']:,}", *_cells(kind["latency_ms"])] for name, kind in made.kinds.items()
    ]
    return Cells(("requests", "answered", *_COLUMNS), rows, left=(0,))


def by_rate(result: Result) -> list[Tried]:
    """Return the steps of a search by rate."""
    return sorted(result.steps, key=lambda tried: tried.figures.asked_per_s or 0.0)


def steps_table(result: Result) -> Cells:
    """Return the steps of a search."""
    rows = [
        [
            number(tried.figures.asked_per_s),
            number(tried.figures.requests_per_s),
            number(tried.figures.latency_ms["p50"]),
            number(tried.figures.p99_ms),
            f"{tried.figures.num_failed:,}",
            f"{tried.figures.late_share:.1%}",
            tried.verdict.text,
        ]
        for tried in by_rate(result)
    ]
    headings = ("asked/s", "answered/s", "p50 ms", "p99 ms", "failed", "sent late", "outcome")
    return Cells(headings, rows, left=(6,))


def errors_table(made: Figures) -> Cells:
    """Return the failed requests by code."""
    rows = [[code, f"{count:,}", made.error_texts.get(code, "")] for code, count in made.errors.items()]
    return Cells(("code", "requests", "the first one said"), rows, left=(0, 2))


def server_metrics_table(metrics: dict[str, Any]) -> Cells:
    """Return the server's own figures."""
    rows = [[name.replace("_", " "), number(value)] for name, value in metrics.items()]
    return Cells(("what", "value"), rows, left=(0,))


def number(value: float | None) -> str:
    """Return a number with four significant digits, or a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cells(values: dict[str, float | None]) -> list[str]:
    return [number(values[name]) for name in _COLUMNS]
