"""Loading a model of many tables: processor time of each part of it, of its program and of its TorchScript.

A DLRM of small tables, so that their bytes take no time. Loads take turns in one process, after a first one.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.measure.bars import Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of
from benchmarks.models.dlrm import build
from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import map_rows, part_bytes, read_manifest
from recsys.artifact.programs import ProgramPart
from recsys.base.cli import count
from recsys.kernels import operators

_MOST_PROGRAM_MS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured)


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    missing = operators.why_missing()
    if missing:
        raise StepError(missing)
    logging.disable(logging.WARNING)
    path = folder / "artifact"
    export_model(build(args.rows, num_tables=args.tables), path, ExportConfig())
    times = _measure(path, args.rounds)
    title = f"{args.tables} tables of {args.rows:,} rows, processor ms"
    bound = times["load, TorchScript"]
    return Measured(
        data={"ms": times},
        shown=[table_of(title, [{"what": what, "median": f"{took:.1f}"} for what, took in times.items()])],
        bars=[
            Bar(f"program of {args.tables} tables, ms", _MOST_PROGRAM_MS, times["program"], is_most=True),
            Bar("load_artifact, ms; at most that of TorchScript", bound, times["load"], is_most=True),
        ],
    )


def _measure(path: Path, rounds: int) -> dict[str, float]:
    """Return the median of each part, in processor milliseconds."""
    manifest = read_manifest(path)
    graph = manifest.targets[0]
    assert graph.program is not None
    name, rows = graph.program, map_rows(path / "rows.bin", manifest.layout)

    def program() -> object:
        return ProgramPart(name, part_bytes(path, manifest, name)).bind(rows, {}, graph.linear_dtype)

    steps: dict[str, Callable[[], object]] = {
        "manifest": lambda: read_manifest(path),
        "program": program,
        "load": lambda: load_artifact(path, verify_checksums=False),
        "load, TorchScript": lambda: load_artifact(path, verify_checksums=False, scripted=True),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for what, step in steps.items():
            began = time.process_time()
            step()
            if turn:
                times[what].append(1e3 * (time.process_time() - began))
    return {what: statistics.median(took) for what, took in times.items()}


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("loading.program_load", __doc__, has_bars=True)
    parser.add_argument("--tables", type=count, default=100, metavar="T", help="default 100")
    parser.add_argument("--rows", type=count, default=100, metavar="R", help="of each table (default 100)")
    parser.add_argument(
        "--rounds", type=count, default=20, metavar="N", help="loads of each kind (default 20)"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the artifact goes meanwhile")
    return parser


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
