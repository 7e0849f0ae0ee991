"""What people see at a terminal: a progress bar while it runs, then tables."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from serve.bench import tables
from serve.bench.figures import Verdict
from serve.bench.run import Result
from serve.bench.tables import Cells, number
from serve.bench.workers import Progress as Tell

# A column that is wider gives way where the terminal is narrow, and so does the first one.
_MOST_MIN_WIDTH = 24
# Where there is no terminal to ask.
_PIPE_WIDTH = 120


class Display:
    """A progress bar, where there is somebody to see it.

    Args:
        stream: a terminal, or not.
        says_steps: whether every measurement gets a line where there is no terminal.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, length_s: float) -> Tell:
        """The next measurement; what it gives is told of its progress."""
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
    """Everything that matters, in the terminal's width."""
    if console is None:
        console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)
    console.print(Text(headline(result), style="bold"))
    for line in about(result):
        console.print(Text(line))
    if result.found is not None:
        console.print(_table("steps", tables.steps(result)))
    made = result.measurement
    if made is None:
        return
    console.print(_table("latency in ms", tables.latencies(made)))
    if made.errors:
        console.print(_table("failed requests", tables.errors(made)))
    if result.server_metrics is not None:
        console.print(_table("the server counted", tables.server_metrics(result.server_metrics)))
    for warning in result.warnings():
        console.print(Text(f"warning: {warning}", style="bold yellow"))


def headline(result: Result) -> str:
    """One line that says what came out."""
    made, found = result.measurement, result.found
    if found is not None:
        bound = f"p99 of at most {result.settings.p99_ms:g} ms"
        if found.rate_per_s is None:
            return f"no rate was answered with a {bound}"
        if found.limit is None:
            return f"at least {found.rate_per_s:,.1f} requests/s with a {bound}: no limit was found"
        of = " (the client's limit, not the server's)" if found.limit is Verdict.LATE else ""
        unsure = "" if found.is_settled else ", not settled"
        return f"{found.rate_per_s:,.1f} requests/s with a {bound}{of}{unsure}"
    if made is None or not made.num_answered:
        return "nothing was answered"
    return (
        f"{made.requests_per_s:,.1f} requests/s, {made.rows_per_s:,.1f} rows/s; "
        f"p50 {number(made.latency_ms['p50'])} ms, p99 {number(made.p99_ms)} ms"
        + ("" if made.is_valid else "; NOT VALID, see the warning")
    )


def about(result: Result) -> list[str]:
    """What was measured, how, and what sent."""
    settings, server = result.settings, result.server
    said = settings.to_json()
    if "replay" in said:
        shape = "a recording"
    elif "candidates" in said:
        shape = f"requests of one context and {said['candidates']} candidates"
    else:
        shape = f"rows per request: {said['rows']}"
    lines = [
        f"model {server['model']}, version {server['version']}, target {server['target']}; "
        f"{said['protocol']}; {shape}",
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
    """How requests were sent."""
    settings, made = result.settings, result.measurement
    where = (
        f"{_counted(settings.num_connections, 'connection')}, {_counted(settings.num_processes, 'process')}"
    )
    if settings.mode == "find-rate":
        return f"open loops of at least {settings.duration_s:g} s; {where}"
    lasted = "" if made is None else f" for {made.duration_s:.4g} s"
    if settings.num_in_flight is not None:
        return f"closed loop, {settings.num_in_flight} in flight{lasted}; {where}"
    if settings.rate_per_s is not None:
        return f"open loop, {settings.rate_per_s:g}/s{lasted}; {where}"
    speed = settings.recording.speed if settings.recording else None
    return f"a recording at {speed:g} times its speed{lasted}; {where}"


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}{'es' if name.endswith('s') else 's'}"


def _table(title: str, cells: Cells) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for i, heading in enumerate(cells.headings):
        width = max([len(heading), *(len(row[i]) for row in cells.rows)])
        table.add_column(
            heading,
            justify="left" if i in cells.left else "right",
            overflow="fold",
            min_width=None if i == 0 else min(width, _MOST_MIN_WIDTH),
        )
    for row in cells.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
