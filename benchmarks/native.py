"""The native server beside the Python server, a C++ server without batching, and the floor: gRPC's echo and the model.

One artifact (DLRM, 26 INT8 tables), one load generator (recsys-cpp-bench), all on the same cores. Servers take turns;
the model alone is measured between them, with nothing else running. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import prepare, wide_console
from benchmarks.native_memory import measure as measure_memory
from benchmarks.native_memory import server_command
from benchmarks.processes import Seen, StepError, module, run_json, started
from benchmarks.serving import CASES, Case, export_dlrm
from recsys.options import count

_EPILOG = """\
examples:
  make native && python -m benchmarks.native
  python -m benchmarks.native --rounds 1 --seconds 1 --large-table-rows 0

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage.
"""
NATIVE, PYTHON, PLAIN, ECHO = "recsys-server", "recsys-serve", "C++, no batching", "gRPC echo"
_ONE, _MANY = CASES[0], CASES[2]
_RANKING = CASES[4]


@dataclass
class Found:
    """All rounds.

    Attributes:
        seen: by server and load.
        open_loop: of the native server at 70 % of what it did with 64 requests in flight.
        best: requests per second of the model alone at its best batch, by candidates of a request.
        alone_ms: one call of the model with one sample.
    """

    seen: dict[tuple[str, Case], Seen] = field(default_factory=dict)
    open_loop: list[dict[str, Any]] = field(default_factory=list)
    best: dict[int, list[float]] = field(default_factory=lambda: {0: [], 200: []})
    alone_ms: list[float] = field(default_factory=list)

    def figure(self, server: str, case: Case) -> dict[str, float]:
        """Medians of one server under one load."""
        return self.seen[server, case].medians()


@dataclass(frozen=True)
class Goal:
    """What the native server is to reach, and what it did."""

    text: str
    bar: float
    got: float
    is_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it did."""
        return self.got <= self.bar if self.is_most else self.got >= self.bar


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(argv)
    machine = prepare()
    try:
        with tempfile.TemporaryDirectory() as folder:
            artifact = export_dlrm(Path(folder) / "dlrm.artifact", args.table_rows)
            found = _measure(artifact, args)
            memory = None
            if args.large_table_rows:
                large = export_dlrm(Path(folder) / "large.artifact", args.large_table_rows)
                memory = measure_memory(args.build, large, args.rounds)
    except (StepError, OSError) as error:
        print(f"benchmarks.native: {error}", file=sys.stderr)
        return 1
    goals = _goals(found)
    if args.json:
        print(json.dumps(_as_json(found, goals, memory, {"machine": machine.to_json()})))
        return 0
    console = wide_console()
    console.print(machine.text(), soft_wrap=True)
    console.print(
        f"DLRM of 26 INT8 tables × {args.table_rows:,} rows; {args.rounds} rounds of {args.seconds:g} s; "
        "load generator on the same cores",
        soft_wrap=True,
    )
    console.print(_load_table(found))
    console.print(_goal_table(goals))
    if memory is not None:
        console.print(_memory_table(memory))
    return 0


def _measure(artifact: Path, args: argparse.Namespace) -> Found:
    found = Found()
    echo_command = [str(args.build / "recsys-echo-server")]
    plain_command = [str(args.build / "recsys-plain-server"), str(artifact)]
    python_command = module("serve.cli", str(artifact), "--port", "0", "--no-metrics", "--json")
    with ExitStack() as stack:
        commands = {
            NATIVE: server_command(args.build, artifact),
            PYTHON: python_command,
            PLAIN: plain_command,
            ECHO: echo_command,
        }
        addresses = {
            name: stack.enter_context(started(command)).address for name, command in commands.items()
        }
        progress = stack.enter_context(
            Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
        )
        task = progress.add_task("measure", total=args.rounds * (len(CASES) + 1))
        for number in range(args.rounds):
            _alone(found, artifact)
            for case in CASES:
                names = [name for name in addresses if name != ECHO or not case.candidates]
                for name in names if number % 2 == 0 else names[::-1]:
                    figures = _load(args, addresses[name], case, describe=addresses[NATIVE])
                    found.seen.setdefault((name, case), Seen()).add(name, figures)
                progress.advance(task)
            rate = 0.7 * found.seen[NATIVE, _MANY].requests_per_s[-1]
            options = ("--rate", f"{rate:.0f}", "--connections", "4")
            found.open_loop.append(_bench(args, addresses[NATIVE], *options))
            progress.advance(task)
    return found


def _alone(found: Found, artifact: Path) -> None:
    """The model with nothing around it."""
    for candidates, best in found.best.items():
        command = module("benchmarks.serving_ceiling", str(artifact), "--candidates", str(candidates))
        rates = run_json([*command, "--seconds", "0.5"])["requests_per_s"]
        best.append(max(rates.values()))
        if candidates == 0:
            found.alone_ms.append(1e3 / rates["1"])


def _load(args: argparse.Namespace, address: str, case: Case, describe: str) -> dict[str, Any]:
    options = ["--in-flight", str(case.in_flight), "--connections", str(min(case.in_flight, 4))]
    if case.candidates:
        options += ["--candidates", str(case.candidates), "--distinct", "512"]
    return _bench(args, address, *options, "--describe", describe)


def _bench(args: argparse.Namespace, address: str, *options: str) -> dict[str, Any]:
    command = [
        str(args.build / "recsys-cpp-bench"),
        address,
        *options,
        "--duration-s",
        str(args.seconds),
        "--json",
    ]
    # 3: the generator fell behind in an open loop; its figures say so.
    figures: dict[str, Any] = run_json(command, good_codes=(0, 3))["measurement"]
    return figures


def _goals(found: Found) -> list[Goal]:
    def rate(server: str, case: Case) -> float:
        return found.figure(server, case)["requests_per_s"]

    def ratio(other: str) -> float:
        ours, theirs = (found.seen[name, _MANY].requests_per_s for name in (NATIVE, other))
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))

    floor = 1 / (1 / rate(ECHO, _MANY) + 1 / statistics.median(found.best[0]))
    least_ms = found.figure(ECHO, _ONE)["p50_ms"] + statistics.median(found.alone_ms)
    tail = statistics.median(f["latency_ms"]["p99"] / f["latency_ms"]["p50"] for f in found.open_loop)
    late = sum(not f["is_valid"] for f in found.open_loop)
    unsure = (
        f" ({late} of {len(found.open_loop)} rounds not valid: the generator fell behind)" if late else ""
    )
    return [
        Goal("64 in flight: ÷ recsys-serve", 5, ratio(PYTHON)),
        Goal("64 in flight: ÷ C++ without batching", 6, ratio(PLAIN)),
        Goal(
            f"64 in flight: share of the floor, 1 / (echo + model at its best batch) = {floor:,.0f}/s",
            0.75,
            rate(NATIVE, _MANY) / floor,
        ),
        Goal(
            f"1 in flight: p50 ÷ (echo's p50 + the model with one sample = {least_ms:.3f} ms)",
            1.15,
            found.figure(NATIVE, _ONE)["p50_ms"] / least_ms,
            is_most=True,
        ),
        Goal(
            f"ranking 1 × 200, 8 in flight: share of the model alone ({statistics.median(found.best[200]):,.0f}/s)",
            0.95,
            rate(NATIVE, _RANKING) / statistics.median(found.best[200]),
        ),
        Goal(f"open loop at 70 % of the highest rate: p99 ÷ p50{unsure}", 3, tail, is_most=True),
    ]


def _as_json(
    found: Found, goals: list[Goal], memory: dict[str, Any] | None, more: dict[str, Any]
) -> dict[str, Any]:
    loads = [
        {"load": case.name, "server": server, **seen.medians()} for (server, case), seen in found.seen.items()
    ]
    reached = [{"goal": g.text, "bar": g.bar, "got": g.got, "is_met": g.is_met} for g in goals]
    return {**more, "loads": loads, "goals": reached, "memory": memory}


def _load_table(found: Found) -> Table:
    table = Table(title="loads", title_justify="left")
    for name in ("load", "server", "requests/s", "p50 ms", "p99 ms"):
        table.add_column(name, justify="left" if name in ("load", "server") else "right")
    for case in CASES:
        for server in (NATIVE, PYTHON, PLAIN, ECHO):
            if (server, case) in found.seen:
                got = found.figure(server, case)
                numbers = (f"{got['requests_per_s']:,.0f}", f"{got['p50_ms']:.3f}", f"{got['p99_ms']:.3f}")
                table.add_row(case.name, server, *numbers)
    return table


def _goal_table(goals: Sequence[Goal]) -> Table:
    table = Table(title="goals of recsys-server", title_justify="left")
    for name in ("goal", "bar", "got", ""):
        table.add_column(name, justify="left" if name in ("goal", "") else "right")
    for goal in goals:
        bar = f"{'at most' if goal.is_most else 'at least'} {goal.bar:g}"
        table.add_row(goal.text, bar, f"{goal.got:.2f}", "met" if goal.is_met else "not met")
    return table


def _memory_table(memory: dict[str, Any]) -> Table:
    title = f"start and memory, rows of {memory['rows_mb']:,.0f} MB"
    table = Table(title=title, title_justify="left")
    for name in ("what", "figure"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for name, value in memory.items():
        if isinstance(value, dict):
            for kind, mb in value.items():
                table.add_row(f"{name}: {kind}, MB", f"{mb:,.0f}")
        elif name != "rows_mb":
            table.add_row(name, f"{value:.2f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.native",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--build", type=Path, default=Path("build/native"), help="of make native")
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="default 5")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each turn (default 3)")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    parser.add_argument(
        "--large-table-rows",
        type=int,
        default=1_130_000,
        metavar="R",
        help="of the artifact that start and memory are measured with; 0 for neither (default 1130000, 2 GB)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    return parser


if __name__ == "__main__":
    sys.exit(main())
