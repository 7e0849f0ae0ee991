"""MLPerf's recommendation models under its load generator: the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.table import Table

from benchmarks.measure.bars import MISSED_TEXT, Bar
from benchmarks.measure.command import Measured, make_parser, names_of, run
from benchmarks.measure.processes import StepError
from benchmarks.measure.tables import table_of, tracked
from benchmarks.mlperf.loadgen import SCENARIOS, Generator, LoadgenMissingError, Plan, Run, Scores, loadgen
from benchmarks.mlperf.systems import SYSTEMS, System, opened
from benchmarks.mlperf.workloads import DlrmDcnV2, Dlrmv3, Sample, Workload
from recsys.base.cli import count
from recsys.base.machine import num_processors
from recsys.kernels import operators
from recsys.metrics.exact import auc
from serve.profiler.limits import product_rate
from serve.profiler.rounds import RoundsConfig

_DESCRIPTION = """\
MLPerf's recommendation models under MLPerf's load generator (pip install mlcommons-loadgen): DLRM-DCNv2, whose sample
is a user with 100 to 700 pairs, and DLRMv3, an HSTU whose sample is a history with candidates. Scenarios Offline,
Server and SingleStream, of the artifact in this process and of the native server over loopback, in turns; then all
samples in accuracy mode. Weights, inputs and labels are random, and labels follow the float model's scores. Tables
are cut to what the machine holds, and each figure says so: this is no submission to MLPerf.
"""
_EPILOG = f"""\
examples:
  python -m benchmarks.mlperf --check
  python -m benchmarks.mlperf --model dlrmv3 --candidates 1024 --history 256 --samples 32
  python -m benchmarks.mlperf --seconds 600 --most-rows 2000000 --logs mlperf-logs
  python -m benchmarks.mlperf --quick --json

exit codes: 0 measured, 1 a query failed, 2 bad usage or the load generator missing, {MISSED_TEXT}
"""
#: Of MLPerf's rules: the accuracy in INT8 is at least this share of the float model's.
_ACCURACY = 0.999
#: The server's Offline rate as a share of that in this process. Client and server share the machine's cores.
_SERVED_SHARE = 0.9
# Rates of the Server scenario that are tried, as shares of the Offline rate, until one is valid.
_TRIED = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_EXPECTED_PER_S = 50.0
_OFFLINE_RESERVE = 1.3
#: The best published result of a processor, Intel's Xeon 6980P with AMX in INT8 and tables of full size.
_BEST_PAIRS = 19_500
_NUM_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements.

    Attributes:
        instructions: The instruction set of the native kernels.
        model: MLPerf's name.
        scale: What differs from MLPerf's size.
        linear_dtype: That of the linear layers.
        pairs_per_sample: The mean.
        runs: By system and scenario.
        aucs: Of the float model and of each system's answers.
        product_share: Products of the Offline scenario's first run for each second of processor time, as a share of
            what a core computes in this type; None without that scenario.
    """

    instructions: str
    model: str
    scale: str
    linear_dtype: str
    pairs_per_sample: float
    runs: list[Run]
    aucs: dict[str, float]
    product_share: float | None

    def pairs_per_core(self, run: Run) -> float:
        """Return pairs a second for each core of the machine."""
        return run.samples_per_s * self.pairs_per_sample / num_processors()

    @property
    def bars(self) -> list[Bar]:
        """The accuracy that MLPerf asks for, and what the server costs."""
        offline = {run.system: run.samples_per_s for run in self.runs if run.scenario == "offline"}
        found = [
            Bar(f"{name}: AUC, share of the float model's", _ACCURACY, value / self.aucs["float"])
            for name, value in self.aucs.items()
            if name != "float"
        ]
        if len(offline) == 2:
            share = offline["server"] / offline["in process"]
            found.append(
                Bar("Offline: the server's rate, share of that in this process", _SERVED_SHARE, share)
            )
        found += [
            Bar(f"{run.system}, {SCENARIOS[run.scenario]}: valid results", 1.0, float(run.is_valid))
            for run in self.runs
        ]
        return found

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        runs = [{**run.to_json(), "pairs_per_s_core": self.pairs_per_core(run)} for run in self.runs]
        return {**asdict(self), "runs": runs}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    return run(_parser(), argv, _measured, {LoadgenMissingError: 2, StepError: 1, OSError: 1})


def _measured(args: argparse.Namespace, folder: Path) -> Measured:
    loadgen()
    report = _measure(args, folder)
    return Measured(data=report.to_json(), shown=_shown(report), bars=report.bars)


def _workload(args: argparse.Namespace) -> Workload:
    most_rows = args.most_rows or (2_000 if args.quick else 400_000)
    if args.model == DlrmDcnV2.name:
        return DlrmDcnV2(most_rows)
    return Dlrmv3(most_rows, args.candidates, args.history)


def _measure(args: argparse.Namespace, folder: Path) -> Report:
    workload = _workload(args)
    model = workload.build()
    path = folder / "artifact"
    workload.export(model, path, args.linear_dtype)
    num_samples = args.samples or (8 if args.quick else 256)
    samples = [workload.sample(i) for i in tracked(range(num_samples), "samples")]
    expected = _float_scores(workload, model, samples)
    del model
    generator = Generator(samples, Path(args.logs) if args.logs else folder / "logs")
    seconds = args.seconds if args.seconds is not None else (0.2 if args.quick else 30.0)
    runs, aucs = [], {"float": _auc(expected, expected)}
    log = folder / "server.log"
    tried = (0.5,) if args.quick else _TRIED
    with opened(args.systems, path, log, is_ranking=workload.is_ranking) as systems:
        for scenario in tracked(args.scenarios, workload.name):
            for system in systems:
                runs.append(_best(generator, system, _Wanted(scenario, seconds, workload.p99_ms, tried)))
        for system in systems:
            aucs[system.name] = _auc(generator.scores(system), expected)
    pairs = sum(sample.num_pairs for sample in samples) / num_samples
    rounds = RoundsConfig(num_rounds=_NUM_ROUNDS, turn_s=0.05, clock="cpu", num_warm_up_calls=2)
    offline = next((run for run in runs if run.scenario == "offline"), None)
    share = None
    if offline is not None:
        products = 2e3 * workload.num_products(pairs) / offline.processor_ms
        share = products / product_rate(args.linear_dtype, rounds)
    return Report(
        instructions="none" if operators.why_missing() else operators.instructions(),
        model=workload.name,
        scale=workload.scale,
        linear_dtype=args.linear_dtype,
        pairs_per_sample=pairs,
        runs=runs,
        aucs=aucs,
        product_share=share,
    )


@dataclass(frozen=True)
class _Wanted:
    """A scenario, the shortest duration of a run, the Server scenario's bound, and the rates that it tries."""

    scenario: str
    seconds: float
    p99_ms: float
    tried: Sequence[float]


def _best(generator: Generator, system: System, wanted: _Wanted) -> Run:
    """Return the run of a scenario; of the Server scenario that of the highest rate that is valid.

    A rate at which queries fail, as a full queue refuses them, is not valid.

    Raises:
        StepError: queries failed at every rate.
    """
    seconds, p99_ms = wanted.seconds, wanted.p99_ms
    # A short one first, which sizes the query of the Offline scenario.
    short = Plan(scenario="offline", seconds=min(seconds, 2.0), samples_per_s=_EXPECTED_PER_S, p99_ms=p99_ms)
    rate = generator.measure(system, short).samples_per_s
    # The one query of the Offline scenario lasts long enough if it holds some more samples than are expected.
    shares = wanted.tried if wanted.scenario == "server" else (_OFFLINE_RESERVE,)
    run, failure = None, StepError("no rate was tried")
    for share in shares:
        plan = Plan(scenario=wanted.scenario, seconds=seconds, samples_per_s=share * rate, p99_ms=p99_ms)
        try:
            run = generator.measure(system, plan)
        except StepError as error:
            failure = error
        else:
            if run.is_valid:
                break
    if run is None:
        raise failure
    return run


def _float_scores(workload: Workload, model: torch.nn.Module, samples: Sequence[Sample]) -> list[Scores]:
    with torch.inference_mode():
        return [
            torch.sigmoid(workload.logits(model, sample)).numpy()
            for sample in tracked(samples, "float model")
        ]


def _auc(scores: Sequence[Scores], expected: Sequence[Scores]) -> float:
    """Return the AUC of scores by labels that are drawn with the expected probabilities."""
    probabilities = np.concatenate(expected).astype(np.float64)
    labels = np.random.default_rng(7).random(len(probabilities)) < probabilities
    found = auc(np.concatenate(scores).astype(np.float64), labels.astype(np.float64))
    assert found is not None
    return found


def _shown(report: Report) -> list[str | Table]:
    rows = [
        {
            "system": run.system,
            "scenario": SCENARIOS[run.scenario],
            "result": "VALID" if run.is_valid else "INVALID",
            "samples/s": f"{run.samples_per_s:.1f}",
            "pairs/s/core": f"{report.pairs_per_core(run):,.0f}",
            "p50 ms": f"{run.p50_ms:.2f}",
            "p99 ms": f"{run.p99_ms:.2f}",
            "processor ms/sample": f"{run.processor_ms:.2f}",
            "pairs/processor s": f"{1e3 * report.pairs_per_sample / run.processor_ms:,.0f}",
        }
        for run in report.runs
    ]
    found = ", ".join(f"{name} {value:.5f}" for name, value in report.aucs.items())
    shown: list[str | Table] = [
        f"{report.model}: {report.scale}; linear layers {report.linear_dtype} on {report.instructions}; "
        f"{report.pairs_per_sample:.1f} pairs a sample",
        table_of("load generator", rows, texts=("system", "scenario", "result")),
        f"AUC: {found}",
    ]
    if report.product_share is not None:
        shown.append(
            f"Offline, for each second of processor time: {report.product_share:.0%} of a core's products in "
            f"{report.linear_dtype}."
        )
    if report.model == DlrmDcnV2.name:
        shown.append(
            f"The best published processor (Xeon 6980P, AMX, INT8, tables of full size): {_BEST_PAIRS:,} pairs/s/core."
        )
    return shown


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("mlperf", _DESCRIPTION, _EPILOG, has_bars=True)
    add = parser.add_argument
    add("--model", choices=(DlrmDcnV2.name, Dlrmv3.name), default=DlrmDcnV2.name)
    add("--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), help="comma-separated")
    add("--scenarios", type=names_of(SCENARIOS), default=list(SCENARIOS), help="comma-separated")
    add("--seconds", type=float, help="shortest run (30); MLPerf's rules ask for 600")
    add("--samples", type=count, help="in memory (256); MLPerf has 330067")
    add("--most-rows", type=count, help="rows of the largest tables (400000)")
    add("--candidates", type=count, default=512, help="of a sample of dlrmv3 (512); MLPerf has 2048")
    add("--history", type=count, default=128, help="items of dlrmv3's histories (128); MLPerf has 16384")
    add("--linear-dtype", choices=operators.LINEAR_DTYPES, default="int8", help="of linear layers (int8)")
    add("--logs", help="keep the load generator's logs in this folder")
    add("--dir", help="where artifacts go (the system's temporary folder)")
    add("--quick", action="store_true", help="small and short: whether it works")
    return parser
