"""The server compared to a plain gRPC server without batching and to the scripted model alone, in one run.

One artifact (DLRM, 26 INT8 tables), one load generator (recsys-bench, closed loop), all on the same cores: single
samples at 1, 16 and 64 in flight, ranking requests of 1 context and 200 candidates at 1 and 8. Servers take turns; the
ceiling is measured between them, with nothing else running. Figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import Seen, module, run_json, started
from benchmarks.measure.tables import table_of, tracked
from benchmarks.models.dlrm import FEATURE_NAMES, build
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.base.cli import count

_EPILOG = """\
examples:
  python -m benchmarks.serving
  python -m benchmarks.serving --rounds 1 --seconds 2 --json
  python -m benchmarks.serving --executors 2

Exit codes: 0 measured, 1 a server or a step failed, 2 bad usage.
"""
_NUM_CONTEXT = 13
OURS, PLAIN = "recsys-serve", "plain gRPC, no batching"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One load.

    Attributes:
        candidates: rows of a ranking request; 0 for single samples.
        in_flight: requests at a time.
    """

    candidates: int
    in_flight: int

    @property
    def name(self) -> str:
        """For people."""
        what = f"ranking 1 × {self.candidates}" if self.candidates else "single sample"
        return f"{what}, {self.in_flight} in flight"


CASES = (
    *(Case(candidates=0, in_flight=n) for n in (1, 16, 64)),
    *(Case(candidates=200, in_flight=n) for n in (1, 8)),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    rows = _rows(*_measure(export_dlrm(folder / "dlrm.artifact", args.table_rows), args))
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    about = (
        f"DLRM of 26 INT8 tables × {args.table_rows:,} rows; {args.rounds} rounds of {args.seconds:g} s; "
        f"{args.executors} executor(s); client on the same cores"
    )
    return Measured(data={"settings": settings, "rows": rows}, shown=[about, _table(rows)])


def export_dlrm(path: Path, table_rows: int) -> Path:
    """The model that servers are measured with, of tables of so many rows; half of its features may be a context."""
    config = ExportConfig(name="dlrm", context=FEATURE_NAMES[:_NUM_CONTEXT])
    export_model(build(table_rows), path, config)
    return path


def _measure(
    artifact: Path, args: argparse.Namespace
) -> tuple[dict[tuple[str, Case], Seen], dict[int, list[float]]]:
    seen: dict[tuple[str, Case], Seen] = {}
    ceilings: dict[int, list[float]] = {0: [], 200: []}
    turns = [(number, case) for number in range(args.rounds) for case in CASES]
    with _ours(artifact, args.executors) as ours, _plain(artifact) as plain:
        servers = {OURS: ours, PLAIN: plain}
        for number, case in tracked(turns, "measure"):
            if case.in_flight == 1:
                ceilings[case.candidates].append(_ceiling(artifact, case.candidates, args))
            order = list(servers) if number % 2 == 0 else list(servers)[::-1]
            for name in order:
                found = seen.setdefault((name, case), Seen())
                _load(servers[name], case, args.seconds, found)
    return seen, ceilings


@contextmanager
def _ours(artifact: Path, executors: int) -> Iterator[str]:
    options = ("--port", "0", "--no-metrics", "--executors", str(executors), "--json")
    with started(module("serve.app.cli", str(artifact), *options)) as server:
        yield server.address


@contextmanager
def _plain(artifact: Path) -> Iterator[str]:
    with started(module("benchmarks.steps.serving_plain", str(artifact))) as server:
        yield server.address


def _load(address: str, case: Case, seconds: float, seen: Seen) -> None:
    options = ["--in-flight", str(case.in_flight), "--connections", str(min(case.in_flight, 4))]
    if case.candidates:
        options += ["--candidates", str(case.candidates), "--distinct", "512"]
    command = module("serve.bench", address, *options, "--duration-s", str(seconds), "--json")
    seen.add(address, run_json(command)["measurement"])


def _ceiling(artifact: Path, candidates: int, args: argparse.Namespace) -> float:
    options = ["--candidates", str(candidates), "--threads", str(args.executors), "--seconds", "0.5"]
    found = run_json(module("benchmarks.steps.serving_ceiling", str(artifact), *options))["requests_per_s"]
    return float(max(found.values()))


def _rows(seen: dict[tuple[str, Case], Seen], ceilings: dict[int, list[float]]) -> list[dict[str, Any]]:
    """One for each case and server."""
    rows = []
    for case in CASES:
        ceiling = statistics.median(ceilings[case.candidates])
        for name in (OURS, PLAIN):
            found = seen[name, case].medians()
            rates, plain = seen[name, case].requests_per_s, seen[PLAIN, case].requests_per_s
            ratios = [mine / theirs for mine, theirs in zip(rates, plain, strict=True)]
            rows.append(
                {
                    "case": case.name,
                    "server": name,
                    **found,
                    "ratio_to_plain": statistics.median(ratios),
                    "ceiling_requests_per_s": ceiling,
                    "share_of_ceiling": found["requests_per_s"] / ceiling,
                }
            )
    return rows


def _table(results: Sequence[dict[str, Any]]) -> Table:
    rows = [
        {
            "load": result["case"],
            "server": result["server"],
            "requests/s": f"{result['requests_per_s']:,.0f}",
            "p50 ms": f"{result['p50_ms']:.2f}",
            "p99 ms": f"{result['p99_ms']:.2f}",
            "÷ plain": f"{result['ratio_to_plain']:.2f}",
            "ceiling/s": f"{result['ceiling_requests_per_s']:,.0f}",
            "share of it": f"{result['share_of_ceiling']:.0%}",
        }
        for result in results
    ]
    return table_of("requests per second", rows, texts=("load", "server"))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("serving", __doc__, _EPILOG)
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="default 3")
    parser.add_argument("--seconds", type=float, default=5.0, metavar="S", help="of each turn (default 5)")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    parser.add_argument(
        "--executors",
        type=count,
        default=1,
        metavar="N",
        help="of our server, and threads of the ceiling (default 1)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
