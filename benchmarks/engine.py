"""The engine's defaults compared to fixed numbers of executors, a server without batching, and the floor.

The floor is gRPC's echo and the model alone. One artifact (DLRM, 26 INT8 tables), one sender, all on the same cores.
Servers take turns in random order, and start again for each round; the model alone is measured between
rounds, with nothing else running.
Figures are medians over the rounds, ratios those of turns in the same round.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import Seen, Started, module, run_json, started
from benchmarks.measure.tables import table_of
from benchmarks.serving import export_dlrm
from recsys.base.cli import count
from recsys.base.machine import num_processors

_EPILOG = f"""\
examples:
  make native native-peers && python -m benchmarks.engine
  python -m benchmarks.engine --rounds 1 --seconds 1 --check
  python -m benchmarks.engine --engine reference --no-rest --json

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage, {MISSED_TEXT}.
"""
DEFAULT, PLAIN, ECHO, REST = "default", "C++, no batching", "gRPC echo", "REST"
# Processors of which the open loop's sender gets one, and from which on the share of the floor is to be all of it.
_ENOUGH_CORES = 4


@dataclass(frozen=True, kw_only=True)
class Load:
    """One closed loop.

    Attributes:
        in_flight: unanswered requests.
        rows: rows of each request.
        is_ranking: whether the rows are candidates of one context.
    """

    in_flight: int
    rows: int = 1
    is_ranking: bool = False

    @property
    def name(self) -> str:
        """A readable name."""
        what = f"ranking 1 × {self.rows}" if self.is_ranking else f"{self.rows} row{'s' * (self.rows > 1)}"
        return f"{what}, {self.in_flight} in flight"

    @property
    def options(self) -> list[str]:
        """Return the sender's options."""
        rows = ["--candidates" if self.is_ranking else "--rows", str(self.rows), "--distinct", "512"]
        return ["--in-flight", str(self.in_flight), "--connections", str(min(self.in_flight, 4)), *rows]


ONE, SOME, MANY = (Load(in_flight=n) for n in (1, 16, 64))
WIDE = Load(in_flight=8, rows=32)
RANKING = Load(in_flight=1, rows=200, is_ranking=True)
RANKINGS = Load(in_flight=8, rows=200, is_ranking=True)
LOADS = (ONE, SOME, MANY, WIDE, RANKING, RANKINGS)


@dataclass
class Found:
    """All rounds.

    Attributes:
        seen: by server and load; fixed numbers of executors are named by ``fixed``.
        open_loop: the default at 70 % of its throughput with 64 requests in flight, with the sender on
            separate processors.
        best: single samples per second of the model alone at its best batch.
        alone_ms: one call of the model with one sample.
    """

    seen: dict[tuple[str, Load], Seen] = field(default_factory=dict)
    open_loop: list[dict[str, Any]] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)

    def figure(self, server: str, load: Load) -> dict[str, float]:
        """Return the medians of one server under one load."""
        return self.seen[server, load].medians()

    def ratio(self, load: Load, other: str) -> float:
        """Return the median of the default's throughput over another server's, round by round."""
        return _median_ratio(self.seen[DEFAULT, load].requests_per_s, self.seen[other, load].requests_per_s)


def fixed(num_executors: int) -> str:
    """Return the name of the server with this maximum number of executors."""
    return f"--executors {num_executors}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    found = _measure(args.artifact or export_dlrm(folder / "dlrm.artifact", args.table_rows), args)
    about = f"engine: {args.engine}; {args.rounds} rounds of {args.seconds:g} s"
    return Measured(
        data={"engine": args.engine, **_as_json(found)},
        shown=[about, _load_table(found)],
        bars=bars(found, num_processors()),
    )


def _server(artifact: Path, args: argparse.Namespace, *options: str) -> list[str]:
    command = module(
        "serve.app.cli", str(artifact), "--engine", args.engine, "--port", "0", "--no-metrics", "--json"
    )
    return [*command, *options]


def _measure(artifact: Path, args: argparse.Namespace) -> Found:
    found = Found()
    bounds = fixed_numbers(num_processors())
    commands = {
        DEFAULT: _server(artifact, args),
        **{fixed(n): _server(artifact, args, "--executors", str(n)) for n in bounds},
        PLAIN: [str(args.build / "recsys-plain-server"), str(artifact)],
        ECHO: [str(args.build / "recsys-echo-server")],
    }
    if args.rest:
        commands[REST] = _server(artifact, args, "--http-port", "0")
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measure", total=args.rounds * len(LOADS))
        for number in range(args.rounds):
            _alone(found, artifact)
            order = random.Random(number)
            # Started for each round: where a process's memory comes to lie makes some a tenth slower than others.
            with _all_started(commands) as servers:
                for load in LOADS:
                    # Not in a fixed order: who comes after a server that left a processor idle finds it quicker.
                    names = order.sample([*servers], len(servers))
                    _turns(found, load, {name: servers[name] for name in names}, args)
                    progress.advance(task)
    with _on_cores_apart() as cores, started(_server(artifact, args)) as server:
        if cores:
            os.sched_setaffinity(0, cores)
        for _ in range(args.rounds):
            rate = 0.7 * _send(args, server.address, *MANY.options)["requests_per_s"]
            found.open_loop.append(_send(args, server.address, "--rate", f"{rate:.0f}", "--connections", "4"))
    return found


@contextmanager
def _all_started(commands: dict[str, list[str]]) -> Iterator[dict[str, Started]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(started(command)) for name, command in commands.items()}


def _turns(found: Found, load: Load, servers: dict[str, Started], args: argparse.Namespace) -> None:
    """Measure each server once, in the order of ``servers``."""
    for name, server in servers.items():
        if _is_measured(name, load):
            address, options = server.address, [*load.options, "--describe", servers[DEFAULT].address]
            if name == REST:
                address = f"127.0.0.1:{server.ready['http_port']}"
                options += ["--protocol", "rest", "--sender", "python"]
            found.seen.setdefault((name, load), Seen()).add(name, _send(args, address, *options))


def fixed_numbers(num: int) -> list[int]:
    """Return the numbers of executors that are compared: all up to 4, then doublings, and the last one."""
    return sorted(
        {*range(1, min(num, 4) + 1), *(2**i for i in range(2, num.bit_length()) if 2**i <= num), num}
    )


def _is_measured(name: str, load: Load) -> bool:
    if name == ECHO:
        return not load.is_ranking
    return name != REST or load == MANY


@contextmanager
def _on_cores_apart() -> Iterator[set[int]]:
    """Leave one core in four to the sender, at least one, and start servers on the others.

    Yields:
        The sender's cores; none if they cannot be separated. Processes started in the block run on the
        others.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        yield set()
        return
    num_senders = max(len(cores) // _ENOUGH_CORES, 1)
    try:
        os.sched_setaffinity(0, cores[num_senders:])
        yield set(cores[:num_senders])
    finally:
        os.sched_setaffinity(0, cores)


def _alone(found: Found, artifact: Path) -> None:
    """Measure the model without a server."""
    command = module("benchmarks.steps.serving_ceiling", str(artifact), "--seconds", "0.5")
    rates = run_json(command)["requests_per_s"]
    found.best.append(max(rates.values()))
    found.alone_ms.append(1e3 / rates["1"])


def _send(args: argparse.Namespace, address: str, *options: str) -> dict[str, Any]:
    command = module("serve.bench", address, *options, "--duration-s", str(args.seconds), "--json")
    # 3: the sender fell behind in an open loop, which its figures show.
    figures: dict[str, Any] = run_json(command, good_codes=(0, 3))["measurement"]
    return figures


def _median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def bars(found: Found, num_cores: int) -> list[Bar]:
    """Return the bars of a machine with so many processors."""
    made = []
    names = sorted({name for name, _ in found.seen if name.startswith(fixed(0)[:-1])})
    for load in LOADS:
        ratios = {name: found.ratio(load, name) for name in names}
        # This is the default's own number: the ratio of two equal servers shows the noise, and is no bar.
        twin = ratios.pop(fixed(num_cores)) if len(names) > 1 else 1.0
        best = min(ratios, key=lambda name: ratios[name])
        text = f"{load.name}: ÷ the best other number ({best}; the default's own gave {twin:.2f})"
        made.append(Bar(text, 0.95, ratios[best]))
        made.append(Bar(f"{load.name}: ÷ {PLAIN}", 4.0 if load == MANY else 1.0, found.ratio(load, PLAIN)))
    least_ms = [a + b for a, b in zip(found.seen[ECHO, ONE].p50_ms, found.alone_ms, strict=True)]
    text = (
        f"{ONE.name}: p50 ÷ (echo's p50 + the model with one sample = {statistics.median(least_ms):.3f} ms)"
    )
    made.append(Bar(text, 1.15, _median_ratio(found.seen[DEFAULT, ONE].p50_ms, least_ms), is_most=True))
    floors = [
        1 / (1 / a + 1 / b) for a, b in zip(found.seen[ECHO, MANY].requests_per_s, found.best, strict=True)
    ]
    text = (
        f"{MANY.name}: share of 1 / (echo + the model at its best batch) = {statistics.median(floors):,.0f}/s"
    )
    least = 1.0 if num_cores >= _ENOUGH_CORES else 0.75
    made.append(Bar(text, least, _median_ratio(found.seen[DEFAULT, MANY].requests_per_s, floors)))
    tail = statistics.median(f["latency_ms"]["p99"] / f["latency_ms"]["p50"] for f in found.open_loop)
    late = sum(not f["is_valid"] for f in found.open_loop)
    unsure = f" ({late} of {len(found.open_loop)} rounds: the sender fell behind)" if late else ""
    made.append(Bar(f"open loop at 70 % of the highest rate: p99 ÷ p50{unsure}", 3.0, tail, is_most=True))
    return made


def _as_json(found: Found) -> dict[str, Any]:
    loads = [
        {"load": load.name, "server": server, **seen.medians(), "rounds": asdict(seen)}
        for (server, load), seen in found.seen.items()
    ]
    alone = {"best_requests_per_s": found.best, "one_sample_ms": found.alone_ms}
    return {"loads": loads, "model_alone": alone, "open_loop": found.open_loop}


def _load_table(found: Found) -> Table:
    rows = []
    for load in LOADS:
        for server, at in found.seen:
            if at == load:
                got = found.figure(server, load)
                figures = {
                    "requests/s": f"{got['requests_per_s']:,.0f}",
                    "p50 ms": f"{got['p50_ms']:.3f}",
                    "p99 ms": f"{got['p99_ms']:.3f}",
                }
                rows.append({"load": load.name, "server": server, **figures})
    return table_of("loads", rows, texts=("load", "server"))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("engine", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--engine", choices=("native", "reference"), default="native", help="default native")
    parser.add_argument("--build", type=Path, default=Path("build/native"), help="of make native-peers")
    parser.add_argument("--artifact", type=Path, help="a DLRM exported earlier (default: export one)")
    parser.add_argument("--rounds", type=count, default=9, metavar="N", help="default 9")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each turn (default 1)")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    parser.add_argument("--no-rest", dest="rest", action="store_false", help="leave REST out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
