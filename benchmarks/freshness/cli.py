"""From a click to a served row: the command line."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.freshness import live, serving, stream, training
from benchmarks.measure.bars import MISSED_TEXT, Bar, add_bar_options, bar_table, bars_json, exit_status
from benchmarks.measure.machine import prepare, wide_console
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
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
    args = _parser().parse_args(argv)
    machine = prepare()
    console = wide_console()
    results: dict[str, Any] = {}
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="freshness-") as folder:
        for part in args.parts:
            if not args.json:
                console.print(f"{part} …")
            try:
                found, of_part = _measure(part, Path(folder) / part, args)
            except (StepError, RuntimeError) as error:
                print(f"benchmarks.freshness: {part}: {error}", file=sys.stderr)
                return 1
            results[part] = found
            bars += of_part
    if args.json:
        print(json.dumps({"machine": machine.to_json(), **results, "bars": bars_json(bars)}))
        return exit_status(bars, args)
    for part, found in results.items():
        rows = found if isinstance(found, list) else [found]
        shown = [{name: f"{value:.4g}" for name, value in row.items()} for row in rows]
        console.print(table_of(f"{part}; {machine.text()}", shown))
    console.print(bar_table(bars))
    return exit_status(bars, args)


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
        folder, *((2_000, 10, 1, 2.0) if quick else (500_000, 1_000, args.rounds, 10.0))
    )
    return asdict(delta_cost), serving.bars_of(delta_cost)


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {','.join(PARTS)}")
    return parts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.freshness",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"default: {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=120.0, help="of the part live (default: 120)")
    parser.add_argument("--rounds", type=count, default=5, help="of training and serving (default: 5)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    add_bar_options(parser)
    return parser
