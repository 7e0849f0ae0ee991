"""Speed of the exported artifact compared to TorchRec's quantized and scripted DLRM, in one run.

Shape letters: B batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.auc import TOLERANCE, AucResult, compare_auc, sources
from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, run
from benchmarks.measure.profiling import OperatorShare, profile_artifact, profile_table
from benchmarks.measure.speed import (
    BATCH_SIZES,
    DisagreementError,
    SpeedResult,
    check_agreement,
    measure_speed,
    measure_zoo,
    speed_bars,
)
from benchmarks.measure.tables import table_of, tracked
from benchmarks.models import zoo
from benchmarks.models.dlrm import add_options, build, export_and_load, requests
from benchmarks.models.peer import PeerMissingError, check_installed, script_peer
from recsys.kernels import operators
from serve.profiler.rounds import CLOCKS, RoundsConfig

_DESCRIPTION = """\
Samples per second of an exported DLRM (13-512-256-64, 26 tables of width 64, 512-256-1) and of TorchRec's own
inference DLRM with the same weights, quantized to INT8 and scripted as TorchRec's packager does it (without
sharding, which cannot run on CPU there). From plain tensors to probabilities, one ID per feature, one process, one
intra-op thread, the allocator settings of recsys-serve for all. Beside it MLPerf's DCNv2, with 214 IDs per sample,
a network like DIN, with histories of 1 to 20 items or all of 20, and networks like SASRec, BST and HSTU, with 1 to 50
or all 50. Then the AUC of trained models before and after the export.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.artifact
  python -m benchmarks.artifact --quick --no-auc --json
  python -m benchmarks.artifact --profile
  python -m benchmarks.artifact --no-auc --check

exit codes: 0 measured, 1 the contestants disagree or the AUC moved, 2 bad usage or TorchRec missing, {MISSED_TEXT}
"""
# Rows of each table of the other models, whose tables are wider.
_ZOO_ROWS = 20_000
_NUM_ROUNDS = 15
# Forwards under the profiler, by batch size.
_PROFILED = {1: 2000, 128: 200}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements.

    Attributes:
        instructions: the instruction set of the native kernels, which chooses the bars; "none" where there are none.
        bfloat16_in: the type in which linear layers in bfloat16 multiply, which does so too.
        num_table_rows: rows of each table.
        rounds: the duration of the measurement.
        agreement: largest relative difference of each artifact's probabilities to the peer's.
        speed: by batch size and contestant.
        profile: by batch size, of the float32 artifact.
        auc: by data set.
    """

    instructions: str
    bfloat16_in: str
    num_table_rows: int
    rounds: RoundsConfig
    agreement: dict[str, float]
    speed: list[SpeedResult]
    profile: dict[int, list[OperatorShare]]
    auc: list[AucResult]

    @property
    def bars(self) -> list[Bar]:
        """The bars of the speed."""
        return speed_bars(self.speed, self.instructions, self.bfloat16_in)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {**asdict(self), "auc": [result.to_json() for result in self.auc]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {PeerMissingError: 2, DisagreementError: 1, OSError: 2})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    check_installed()
    report = _measure(args, folder)
    moved = [result for result in report.auc if result.largest_difference > TOLERANCE]
    for result in moved:
        found = f"{result.largest_difference:.5f}"
        print(
            f"benchmarks.artifact: {result.data}: the AUC moved by {found}, expected at most {TOLERANCE}",
            file=sys.stderr,
        )
    return Measured(data=report.to_json(), shown=_shown(report), bars=report.bars, status=1 if moved else 0)


def _measure(args: argparse.Namespace, folder: Path) -> Report:
    num_rows = args.rows or (1_000 if args.quick else 100_000)
    rounds = RoundsConfig(
        num_rounds=args.rounds or (3 if args.quick else _NUM_ROUNDS),
        turn_s=0.02 if args.quick else 0.3,
        clock=args.clock,
        num_warm_up_calls=2 if args.quick else 20,
    )
    model = build(num_rows)
    artifacts = export_and_load(model, folder / "speed")
    peer = script_peer(model, num_rows)
    agreement = check_agreement(peer, artifacts, requests(512, num_rows)[:4])
    sizes = args.batch_sizes or ((1, 32) if args.quick else BATCH_SIZES)
    speed: list[SpeedResult] = []
    for size in tracked(sizes, "speed"):
        speed += measure_speed(peer, artifacts, size, num_rows, rounds)
    names = () if args.no_zoo else tuple(zoo.MODELS)
    for name in tracked(names, "other models"):
        rows = min(num_rows, _ZOO_ROWS)
        speed += measure_zoo(name, zoo.build(name, rows), folder, rows, rounds)
    profile = {}
    for size, num_calls in _PROFILED.items() if args.profile else ():
        calls = max(1, num_calls // 20) if args.quick else num_calls
        profile[size] = profile_artifact(artifacts["float32"], requests(size, num_rows), calls)
    wanted = [] if args.no_auc else sources(args.quick)
    auc = [compare_auc(source, folder / "auc") for source in tracked(wanted, "AUC")]
    return Report(
        instructions="none" if operators.why_missing() else operators.instructions(),
        bfloat16_in="float32" if operators.why_missing() else operators.multiplies_in("bfloat16"),
        num_table_rows=num_rows,
        rounds=rounds,
        agreement=agreement,
        speed=speed,
        profile=profile,
        auc=auc,
    )


def _shown(report: Report) -> list[str | Table]:
    differences = ", ".join(f"{name} {found:.2g}" for name, found in report.agreement.items())
    return [
        f"26 tables of {report.num_table_rows:,} rows, dim 64, INT8; one ID per feature; medians of "
        f"{report.rounds.num_rounds} rounds in turns; {report.rounds.clock} time; instructions of the native kernels: "
        f"{report.instructions}, which multiply bfloat16 layers in {report.bfloat16_in}",
        _speed_table(report.speed),
        f"largest relative difference of a probability to TorchRec's: {differences}",
        *(
            profile_table(f"float32 artifact at batch {size}", shares)
            for size, shares in report.profile.items()
        ),
        *([_auc_table(report.auc)] if report.auc else []),
    ]


def _speed_table(results: Sequence[SpeedResult]) -> Table:
    rows = [
        {
            "batch": str(result.batch_size),
            "contestant": result.contestant,
            "samples/s": f"{result.samples_per_s:,.0f}",
            "ratio": f"{result.ratio:.2f}",
            "middle half": f"{result.ratio_low:.2f}–{result.ratio_high:.2f}",
        }
        for result in results
    ]
    return table_of("artifact against TorchRec, scripted", rows, texts=("contestant",), sections="batch")


def _auc_table(results: Sequence[AucResult]) -> Table:
    rows = [
        {
            "data": result.data,
            "rows": f"{result.num_held_out_rows:,}",
            **{name: f"{auc:.5f}" for name, auc in result.by_model.items()},
            "largest difference": f"{result.largest_difference:.5f}",
        }
        for result in results
    ]
    return table_of("AUC on held-out data", rows)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("artifact", _DESCRIPTION, _EPILOG, has_bars=True)
    add_options(parser, BATCH_SIZES, _NUM_ROUNDS)
    parser.add_argument("--profile", action="store_true", help="also print where the artifact's time goes")
    parser.add_argument("--no-zoo", action="store_true", help="leave the models beside the DLRM out")
    parser.add_argument("--no-auc", action="store_true", help="leave the training and the AUC out")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="cpu: leave out the time that others had the core",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
