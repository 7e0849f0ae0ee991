"""How fast sharded tables train, beside TorchRec's DistributedModelParallel, in one run.

Shape letters: B batch of one rank, D embedding dim, R rows, W world size.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.profiling import OperatorShare, profile_table
from benchmarks.measure.tables import table_of, tracked
from benchmarks.models.peer import PeerMissingError, check_installed
from benchmarks.trainers.case import EMBEDDING_DIM, PLANS, TrainingCase
from benchmarks.trainers.rounds import (
    OURS,
    PEER,
    TRAINING_CLOCKS,
    TurnsConfig,
    agree,
    begin,
    profiled,
    turn,
)
from recsys.base.cli import count
from serve.profiler.rounds import Timing
from tests.support.ranks import RankError, RankPool, run_ranks

_DESCRIPTION = """\
Samples per second of our DistributedModelParallel and of TorchRec's: 26 tables of width 64 on two gloo ranks of this
machine, one thread each, with the same plan, weights and batches and row-wise Adagrad in the backward pass. A step
goes from plain tensors to updated tables: KeyedJaggedTensor, forward, backward. The loss is linear in the pooled
embeddings (its gradient is given), so that the tables are all there is; --dlrm trains a whole DLRM (13-512-256-64,
512-256-1). Outputs and updated weights are compared first; then each side lives in two processes of its own, with the
allocator settings that it brings (--tuned-malloc: the same for both), and they take turns.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.trainers.sharded
  python -m benchmarks.trainers.sharded --ids-per-bag 1,1-10,10 --clock cpu
  python -m benchmarks.trainers.sharded --types table_wise --dlrm --profile
  python -m benchmarks.trainers.sharded --quick --json

exit codes: 0 measured, 1 the two sides disagree, 2 bad usage or TorchRec missing, {MISSED_TEXT}
"""
WORLD_SIZE = 2
#: How many times TorchRec's samples/s ours should have at least.
TARGET = 1.0
#: Features of recommendation data have from one ID (a country) to some tens (a history); benchmarks of the field
#: have 1 (Criteo's 26 features) and about 8 on average (the multi-hot Criteo of MLPerf's DLRM-DCNv2: 214 / 26).
DEFAULT_IDS_PER_BAG = (1, 10)
_TIMEOUT_S = 1800.0
_NUM_PROFILE_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """One case.

    Attributes:
        case: what was trained.
        peer_samples_per_s: TorchRec's, of all ranks together: the median of the rounds.
        samples_per_s: ours.
        ratio: ours ÷ TorchRec's: the median of the rounds' ratios.
        ratio_low: a quarter of the rounds gave a lower ratio.
        ratio_high: a quarter of the rounds gave a higher one.
        output_difference: the largest, relative to the largest output.
        weight_difference: the largest after the compared steps.
        profile: of rank 0, by side.
    """

    case: TrainingCase
    peer_samples_per_s: float
    samples_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    output_difference: float
    weight_difference: float
    profile: dict[str, list[OperatorShare]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {PeerMissingError: 2, RankError: 1})


def _measured(args: argparse.Namespace, _folder: Path) -> Measured:
    check_installed()
    turns = TurnsConfig(
        num_rounds=args.rounds or (3 if args.quick else 15),
        turn_s=0.05 if args.quick else 1.0,
        clock=args.clock,
        with_profile=args.profile,
        tune_allocator=args.tuned_malloc,
    )
    num_rows = args.rows or (1_000 if args.quick else 100_000)
    batch_size = args.batch_size or (32 if args.quick else 1024)
    cases = [
        TrainingCase(
            sharding_type=name, ids_per_bag=ids, dlrm=args.dlrm, num_rows=num_rows, batch_size=batch_size
        )
        for ids in args.ids_per_bag
        for name in args.types
    ]
    results = [measure(case, turns) for case in tracked(cases, "training")]
    data = {"turns": asdict(turns), "results": [asdict(result) for result in results]}
    return Measured(data=data, shown=_shown(turns, results), bars=bars(results))


def bars(results: Sequence[TrainingResult]) -> list[Bar]:
    """Return a bar for each case."""
    return [Bar(f"{_title(result.case)}: ÷ {PEER}", TARGET, result.ratio) for result in results]


def measure(case: TrainingCase, turns: TurnsConfig) -> TrainingResult:
    """Both sides, each on ranks of its own, in turns.

    Raises:
        RankError: a rank failed, or the sides disagree.
    """
    differences = run_ranks(WORLD_SIZE, agree, case, timeout_s=_TIMEOUT_S)
    with RankPool(WORLD_SIZE) as theirs, RankPool(WORLD_SIZE) as ours:
        pools = {PEER: theirs, OURS: ours}
        num_steps = {
            name: pool.run(begin, case, name, turns, timeout_s=_TIMEOUT_S)[0] for name, pool in pools.items()
        }
        rounds: dict[str, list[list[float]]] = {name: [] for name in pools}
        for number in range(turns.num_rounds):
            for name in list(pools)[:: -1 if number % 2 else 1]:
                rounds[name].append(pools[name].run(turn, num_steps[name], turns.clock))
        profiles = {name: pool.run(profiled)[0] for name, pool in pools.items()} if turns.with_profile else {}
    timings = {name: _timing(found, turns.clock) for name, found in rounds.items()}
    ratios = timings[OURS].speedups_over(timings[PEER])
    quarter = len(ratios) // 4
    num_samples = WORLD_SIZE * case.batch_size
    return TrainingResult(
        case=case,
        peer_samples_per_s=num_samples / timings[PEER].median_s,
        samples_per_s=num_samples / timings[OURS].median_s,
        ratio=statistics.median(ratios),
        ratio_low=ratios[quarter],
        ratio_high=ratios[-1 - quarter],
        output_difference=max(output for output, _ in differences),
        weight_difference=max(weight for _, weight in differences),
        profile=profiles,
    )


def _timing(rounds: Sequence[Sequence[float]], clock: str) -> Timing:
    """A step takes as long as its slowest rank; time on cores is what the ranks spent on average."""
    of_round = statistics.mean if clock == "cpu" else max
    return Timing(seconds=tuple(of_round(ranks) for ranks in rounds))


def _shown(turns: TurnsConfig, results: Sequence[TrainingResult]) -> list[str | Table]:
    case = results[0].case
    what = "whole DLRM" if case.dlrm else "tables alone"
    about = (
        f"{case.num_tables} tables of {case.num_rows:,} rows, dim {EMBEDDING_DIM}; {what}; {WORLD_SIZE} gloo ranks, "
        f"batch {case.batch_size} each; IDs uniform over the rows, bag sizes uniform; medians of "
        f"{turns.num_rounds} rounds in turns; {turns.clock} time"
    )
    if not turns.tune_allocator:
        about += f"\nallocator: as each side leaves it ({OURS} sets it, {PEER} does not)"
    outputs = max(result.output_difference for result in results)
    weights = max(result.weight_difference for result in results)
    agreed = f"largest differences to {PEER} before the timing: outputs {outputs:.2g} relative, weights {weights:.2g}"
    profiles = [
        profile_table(f"{name}, {_title(result.case)}, rank 0", shares, _NUM_PROFILE_ROWS)
        for result in results
        for name, shares in result.profile.items()
    ]
    return [about, _table(results), agreed, *profiles]


def _table(results: Sequence[TrainingResult]) -> Table:
    rows = []
    for result in results:
        low, high = result.case.ids_per_bag
        row = {
            "sharding type": result.case.sharding_type,
            "IDs per bag": str(low) if low == high else f"{low}–{high}",
            PEER: f"{result.peer_samples_per_s:,.0f}",
            OURS: f"{result.samples_per_s:,.0f}",
            "ratio": f"{result.ratio:.2f}",
            "middle half": f"{result.ratio_low:.2f}–{result.ratio_high:.2f}",
        }
        rows.append(row)
    return table_of(f"samples/s, {OURS} beside {PEER}", rows)


def _title(case: TrainingCase) -> str:
    low, high = case.ids_per_bag
    return f"{case.sharding_type}, {low} to {high} IDs per bag"


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("trainers.sharded", _DESCRIPTION, _EPILOG, has_bars=True)
    parser.add_argument("--quick", action="store_true", help="small tables, short turns: does it run at all?")
    parser.add_argument("--profile", action="store_true", help="also print where each side's time goes")
    parser.add_argument("--dlrm", action="store_true", help="a whole DLRM instead of the tables alone")
    parser.add_argument(
        "--tuned-malloc", action="store_true", help="both sides keep freed memory, as ours does by itself"
    )
    parser.add_argument(
        "--types", type=names_of(PLANS), default=list(PLANS), metavar="T,T", help=f"of {','.join(PLANS)}"
    )
    parser.add_argument(
        "--ids-per-bag",
        type=_ids_per_bag,
        default=[DEFAULT_IDS_PER_BAG],
        metavar="N,N-N",
        help="a number, or the ends of a range, such as 1,1-10,10 (default 1-10)",
    )
    parser.add_argument("--rows", type=count, metavar="R", help="rows of each table (default 100000)")
    parser.add_argument("--batch-size", type=count, metavar="B", help="of each rank (default 1024)")
    parser.add_argument("--rounds", type=count, metavar="N", help="turns of each side (default 15)")
    parser.add_argument(
        "--clock",
        choices=tuple(TRAINING_CLOCKS),
        default="wall",
        help="cpu: the time that a rank's threads had a core, for machines that others use",
    )
    return parser


def _ids_per_bag(text: str) -> list[tuple[int, int]]:
    ranges = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        ends = count(low), count(high if dash else low)
        if ends[0] > ends[1]:
            raise argparse.ArgumentTypeError(f"got {part!r}, expected the smaller number first")
        ranges.append(ends)
    return ranges


if __name__ == "__main__":
    sys.exit(main())
