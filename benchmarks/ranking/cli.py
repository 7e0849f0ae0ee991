"""How much faster rankings are where the user is computed once: the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.speed import DisagreementError
from benchmarks.measure.tables import table_of, tracked
from benchmarks.models.peer import PeerMissingError, check_installed
from benchmarks.ranking import grown
from benchmarks.ranking.cached import ZIPF, Cached, measure_cached
from benchmarks.ranking.cases import CASES, NUM_CANDIDATES
from benchmarks.ranking.grown import Grown, measure_grown
from benchmarks.ranking.served import Served, measure_served
from benchmarks.ranking.speed import FormSpeed, bars_of, measure
from recsys.base.cli import count
from recsys.kernels import operators
from serve.profiler.rounds import CLOCKS, RoundsConfig

_DESCRIPTION = """\
Requests with one context and 200 candidates: the model exported with --context, whose ranking form computes the context
once; the same artifact's plain form with the context repeated in each row, as clients without ranking requests send it;
TorchRec's model, quantized to INT8 and scripted, with the same rows; and the model by hand in TorchScript, with float32
tables and without padding, which computes the user once and all candidates by products of matrices. The same weights,
one process, one intra-op thread; forms take turns. Then the native server, over loopback, with artifacts exported with
and without --context.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.ranking --check
  python -m benchmarks.ranking --models DLRM,"two towers" --clock cpu --no-server
  python -m benchmarks.ranking --cache
  python -m benchmarks.ranking --growing --check
  python -m benchmarks.ranking --quick --json

exit codes: 0 measured, 1 the forms disagree or a server failed, 2 bad usage or TorchRec missing, {MISSED_TEXT}
"""
_NUM_ROWS, _QUICK_ROWS = 20_000, 500
# More than the calls that are measured.
_GROWING_ROWS = 200_000
_NUM_USERS, _QUICK_USERS = 10_000, 50


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements.

    Attributes:
        instructions: the instruction set of the native kernels; "none" where there are none.
        num_table_rows: rows of each table.
        num_candidates: of a request.
        rounds: the duration of the measurement.
        speed: by model and form.
        served: through the server.
        cached: with ``--cache`` alone: users who come back.
        grown: with ``--growing`` alone: histories with one item more.
    """

    instructions: str
    num_table_rows: int
    num_candidates: int
    rounds: RoundsConfig
    speed: list[FormSpeed]
    served: list[Served]
    cached: list[Cached]
    grown: list[Grown]

    @property
    def bars(self) -> list[Bar]:
        """The bars of the speed."""
        return [*bars_of(self.speed), *grown.bars_of(self.grown)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    failures = {PeerMissingError: 2, DisagreementError: 1, StepError: 1, OSError: 2}
    return run(_parser(), argv, _measured, failures)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    check_installed()
    report = _measure(args, args.models, folder)
    return Measured(data=asdict(report), shown=_shown(report), bars=report.bars)


def _measure(args: argparse.Namespace, names: Sequence[str], folder: Path) -> Report:
    num_rows = args.rows or (_QUICK_ROWS if args.quick else _NUM_ROWS)
    num_candidates = 8 if args.quick else NUM_CANDIDATES
    rounds = RoundsConfig(
        num_rounds=args.rounds or (2 if args.quick else 5),
        turn_s=0.01 if args.quick else 0.2,
        clock=args.clock,
    )
    speed: list[FormSpeed] = []
    asked = [] if args.cache or args.growing else names
    for i, name in enumerate(tracked(asked, "models")):
        speed += measure(name, folder / str(i), num_rows, num_candidates, rounds)
    served: list[Served] = []
    num_turns = args.rounds or (1 if args.quick else 3)
    if args.server:
        served = measure_served(asked, folder, num_rows, num_candidates, num_turns, args.seconds)
    cached: list[Cached] = []
    if args.cache:
        sizes = (num_rows, num_candidates, _QUICK_USERS if args.quick else _NUM_USERS)
        cached = measure_cached(names, folder, sizes, num_turns, args.seconds)
    more: list[Grown] = []
    if args.growing:
        more = measure_grown(folder, args.rows or _GROWING_ROWS, rounds, is_quick=args.quick)
    return Report(
        instructions="none" if operators.why_missing() else operators.instructions(),
        num_table_rows=num_rows,
        num_candidates=num_candidates,
        rounds=rounds,
        speed=speed,
        served=served,
        cached=cached,
        grown=more,
    )


def _shown(report: Report) -> list[str | Table]:
    shown: list[str | Table] = [
        f"1 context × {report.num_candidates} candidates; tables of {report.num_table_rows:,} rows, dim 64, INT8; "
        f"medians of {report.rounds.num_rounds} rounds in turns; {report.rounds.clock} time; "
        f"instructions of the native kernels: {report.instructions}"
    ]
    if report.speed:
        shown.append(_speed_table(report.speed))
    if report.grown:
        shown.append(_grown_table(report.grown))
    if report.served:
        shown.append(_served_table(report.served))
    if report.cached:
        shown += [_cached_table(report.cached), "all compared answers are bit-equal"]
    return shown


def _speed_table(results: Sequence[FormSpeed]) -> Table:
    rows = [
        {
            "model": result.model,
            "form": result.form,
            "ms": f"{result.ms:.3f}",
            "÷ context once": f"{result.ratio:.2f}",
            "middle half": f"{result.ratio_low:.2f}–{result.ratio_high:.2f}",
            "difference": f"{result.difference:.1g}",
        }
        for result in results
    ]
    return table_of("a request, by form", rows, texts=("model", "form"), sections="model")


def _grown_table(results: Sequence[Grown]) -> Table:
    rows = [
        {
            "model": result.model,
            "items": str(result.num_items),
            "the whole, ms": f"{result.whole_ms:.3f}",
            "the new item, ms": f"{result.grown_ms:.3f}",
            "ratio": f"{result.ratio:.2f}",
            "difference": f"{result.difference:.1g}",
        }
        for result in results
    ]
    return table_of("one item more on a history", rows)


def _served_table(results: Sequence[Served]) -> Table:
    rows = [
        {
            "model": result.model,
            "artifact": result.artifact,
            "in flight": str(result.in_flight),
            "requests/s": f"{result.requests_per_s:,.0f}",
            "p50 ms": f"{result.p50_ms:.3f}",
            "p99 ms": f"{result.p99_ms:.3f}",
            "processor ms": f"{result.processor_ms:.3f}",
        }
        for result in results
    ]
    return table_of("through the server", rows, texts=("model", "artifact"))


def _cached_table(results: Sequence[Cached]) -> Table:
    rows = [
        {
            "model": result.model,
            "context cache": result.cache,
            "MiB": f"{result.max_bytes / 2**20:.1f}",
            "requests/s": f"{result.requests_per_s:,.0f}",
            "ratio": f"{result.ratio:.2f}",
            "p50 ms": f"{result.p50_ms:.3f}",
            "processor ms": f"{result.processor_ms:.3f}",
            "hit rate": "" if result.hit_rate is None else f"{result.hit_rate:.0%}",
            "server's MiB": f"{result.anonymous_bytes / 2**20:,.0f}",
        }
        for result in results
    ]
    title = f"users who come back (Zipf {ZIPF})"
    return table_of(title, rows, texts=("model", "context cache"))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("ranking", _DESCRIPTION, _EPILOG, has_bars=True)
    parser.add_argument("--quick", action="store_true", help="small tables, short turns: does it run at all?")
    parser.add_argument(
        "--models",
        type=names_of(CASES),
        default=list(CASES),
        metavar="NAME,NAME",
        help=f"some of: {', '.join(CASES)}",
    )
    parser.add_argument("--rows", type=count, metavar="R", help=f"rows of each table (default {_NUM_ROWS})")
    parser.add_argument(
        "--rounds", type=count, metavar="N", help="turns of each measurement (default 5, servers 3)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="of each turn of a server (default 1)"
    )
    parser.add_argument("--no-server", dest="server", action="store_false", help="leave the server out")
    parser.add_argument(
        "--cache",
        action="store_true",
        help=f"instead: servers with and without a context cache, and {_NUM_USERS:,} users who come back",
    )
    parser.add_argument(
        "--growing",
        action="store_true",
        help="instead: histories with one item more than a context cache holds",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where temporary artifacts go")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: leave out the time that others had the core",
    )
    return parser
