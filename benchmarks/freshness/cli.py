"""From a click to a served row: the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.freshness import live, serving, stream, training
from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.tables import table_of, tracked
from recsys.base.cli import count

PARTS = ("live", "stream", "training", "serving")
_DESCRIPTION = """\
live: clicks on Kafka, a trainer, two servers (examples/fresh.py): seconds from the clicks on a new item to its row in
all servers' answers. stream: AUC of a stream of clicks whose favourites change, served with deltas each five seconds,
each minute, each hour and never; time is simulated. training: steps with and without publishing. serving: p99 of an
open loop with and without a delta each second.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.freshness --check
  python -m benchmarks.freshness --parts training,serving --rounds 5
  python -m benchmarks.freshness --quick --json

exit codes: 0 measured, 1 a part failed, 2 bad usage, {MISSED_TEXT}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {RuntimeError: 1})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    results: dict[str, Any] = {}
    tables: list[Table] = []
    bars: list[Bar] = []
    for part in tracked(args.parts, "parts"):
        try:
            results[part], of_part = _measure(part, folder / part, args)
        except RuntimeError as error:
            raise RuntimeError(f"{part}: {error}") from error
        bars += of_part
        rows = results[part] if isinstance(results[part], list) else [results[part]]
        tables.append(table_of(part, [{name: f"{value:.4g}" for name, value in row.items()} for row in rows]))
    return Measured(data=results, shown=tables, bars=bars)


def _measure(part: str, folder: Path, args: argparse.Namespace) -> tuple[Any, list[Bar]]:
    folder.mkdir()
    quick = args.quick
    if part == "live":
        served = live.measure_live(
            folder / "fresh", 5.0 if quick else args.seconds, 2_000 if quick else 20_000
        )
        return asdict(served), live.bars_of(served)
    if part == "stream":
        found = stream.measure_stream(folder, 24 if quick else 1_440, 100)
        return [asdict(one) for one in found], []
    if part == "training":
        size = (2_000, 64, 1, 2.0) if quick else (200_000, 1_024, args.rounds, 10.0)
        cost = training.measure_training(folder, *size)
        return asdict(cost), training.bars_of(cost)
    delta_cost = serving.measure_serving(
        folder, *((2_000, 10, 1, 2.0) if quick else (2_000_000, 1_000, 5 * args.rounds, 3.0))
    )
    return asdict(delta_cost), serving.bars_of(delta_cost)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("freshness", _DESCRIPTION, _EPILOG, has_bars=True)
    parser.add_argument(
        "--parts", type=names_of(PARTS), default=list(PARTS), help=f"default: {','.join(PARTS)}"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of the part live (default: 120)")
    parser.add_argument(
        "--rounds", type=count, default=5, help="of training; five turns of serving (default: 5)"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    return parser
