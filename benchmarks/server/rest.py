"""REST compared to gRPC on one server of the native engine, in one run: requests per second, and latency.

One artifact (DLRM, 26 INT8 tables), single samples, kept connections, client on the same cores. The two protocols take
turns; ratios are of the same round, and figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import Seen, Started, module, run_json, started
from benchmarks.measure.tables import table_of, tracked
from benchmarks.serving import export_dlrm
from benchmarks.steps.rest_load import FORMS
from recsys.base.cli import count

_EPILOG = f"""\
examples:
  python -m benchmarks.server.rest
  python -m benchmarks.server.rest --rounds 1 --seconds 2 --json

exit codes: 0 measured, 1 a server or a step failed, 2 bad usage, {MISSED_TEXT}
"""
_GRPC = "grpc"
_IN_FLIGHT = (1, 64)
_MOST_CONNECTIONS = 4
#: The least share of gRPC's requests per second, and the most of its p50.
_RATE_BAR, _LATENCY_BAR = 0.4, 2.0

_Figures = dict[tuple[str, int], Seen]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    seen = _measure(export_dlrm(folder / "dlrm.artifact", args.table_rows), args)
    rows: list[dict[str, Any]] = [
        {"protocol": name, "in flight": in_flight, **found.medians()}
        for (name, in_flight), found in seen.items()
    ]
    cells = [
        {
            "protocol": row["protocol"],
            "in flight": str(row["in flight"]),
            "requests/s": f"{row['requests_per_s']:,.0f}",
            "p50 ms": f"{row['p50_ms']:.3f}",
            "p99 ms": f"{row['p99_ms']:.2f}",
        }
        for row in rows
    ]
    return Measured(
        data={"rows": rows},
        shown=[table_of("single samples", cells, texts=("protocol",))],
        bars=[bar for form in FORMS for bar in _bars(form, seen)],
    )


def _measure(artifact: Path, args: argparse.Namespace) -> _Figures:
    seen: _Figures = defaultdict(Seen)
    names = (_GRPC, *FORMS)
    options = ("--engine", "native", "--port", "0", "--http-port", "0", "--no-metrics", "--json")
    with started(module("serve.app.cli", str(artifact), *options)) as server:
        turns = [
            (name, in_flight)
            for number in range(args.rounds)
            for in_flight in _IN_FLIGHT
            for name in (names if number % 2 == 0 else names[::-1])
        ]
        for name, in_flight in tracked(turns, "measure"):
            load = _over_grpc if name == _GRPC else _over_rest
            seen[name, in_flight].add(name, load(server, name, in_flight, args.seconds))
    return dict(sorted(seen.items(), key=lambda item: (item[0][1], names.index(item[0][0]))))


def _over_grpc(server: Started, _: str, in_flight: int, seconds: float) -> dict[str, Any]:
    connections = str(min(in_flight, _MOST_CONNECTIONS))
    options = ("--in-flight", str(in_flight), "--connections", connections, "--duration-s", str(seconds))
    found: dict[str, Any] = run_json(module("serve.bench", server.address, *options, "--json"))["measurement"]
    return found


def _over_rest(server: Started, form: str, in_flight: int, seconds: float) -> dict[str, Any]:
    rest = f"127.0.0.1:{server.ready['http_port']}"
    options = ("--form", form, "--in-flight", str(in_flight), "--seconds", str(seconds))
    found = run_json(module("benchmarks.steps.rest_load", server.address, rest, *options))
    return {
        "num_failed": 0,
        "requests_per_s": found["requests_per_s"],
        "latency_ms": {"p50": found["p50_ms"], "p99": found["p99_ms"]},
    }


def _bars(form: str, seen: _Figures) -> list[Bar]:
    few, many = _IN_FLIGHT
    rate = _ratio(seen[form, many].requests_per_s, seen[_GRPC, many].requests_per_s)
    latency = _ratio(seen[form, few].p50_ms, seen[_GRPC, few].p50_ms)
    return [
        Bar(f"{form}: share of gRPC's requests/s, {many} in flight", _RATE_BAR, rate),
        Bar(f"{form}: p50 ÷ gRPC's, {few} in flight", _LATENCY_BAR, latency, is_most=True),
    ]


def _ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, theirs, strict=True))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("server.rest", __doc__, _EPILOG, has_bars=True)
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="default 3")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each turn (default 3)")
    parser.add_argument("--table-rows", type=count, default=100_000, metavar="R", help="default 100000")
    return parser


if __name__ == "__main__":
    sys.exit(main())
