"""Runs of MLPerf's load generator, and what its logs say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure.processes import StepError
from benchmarks.mlperf.systems import System
from benchmarks.mlperf.workloads import Sample

SCENARIOS = {"offline": "Offline", "server": "Server", "single-stream": "SingleStream"}
Scores = npt.NDArray[np.float32]
# The lines of a summary that are the result of a scenario.
_RATE = {"offline": "Samples per second", "server": "Completed samples per second"}
_P50, _P90, _P99 = (f"{share}.00 percentile latency (ns)" for share in (50, 90, 99))
_SEEDS = (6023615788873153749, 15036839855038426416, 9933818062894767841)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run in performance mode.

    Attributes:
        system: That of the run.
        scenario: A name of ``SCENARIOS``.
        is_valid: Whether the load generator calls the result valid.
        samples_per_s: Answered; of SingleStream, the reciprocal of the mean latency.
        p50_ms: Of the latency of a sample; of Offline none is meant.
        p90_ms: Likewise.
        p99_ms: Likewise.
        target_qps: Of the Server scenario.
        processor_ms: Of the system, for each sample.
        logs: The folder with the load generator's logs.
    """

    system: str
    scenario: str
    is_valid: bool
    samples_per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    target_qps: float | None
    processor_ms: float
    logs: str

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a system is asked.

    Attributes:
        scenario: A name of ``SCENARIOS``.
        seconds: The shortest duration.
        samples_per_s: What is expected, which sizes the Offline scenario's one query, and the Server scenario's rate.
        p99_ms: The bound of the Server scenario.
    """

    scenario: str
    seconds: float
    samples_per_s: float
    p99_ms: float


class LoadgenMissingError(StepError):
    """MLPerf's load generator is not installed."""


def loadgen() -> Any:
    """Return MLPerf's load generator.

    Raises:
        LoadgenMissingError: It is not installed.
    """
    try:
        return import_module("mlperf_loadgen")
    except ImportError:
        raise LoadgenMissingError(
            "mlperf_loadgen: not installed, expected MLPerf's load generator: pip install mlcommons-loadgen"
        ) from None


class Generator:
    """Asks systems for the samples of a workload.

    Args:
        samples: All of them, in memory, as MLPerf's rules have it.
        logs: The folder for the logs.
    """

    def __init__(self, samples: Sequence[Sample], logs: Path) -> None:
        self._samples, self._logs = samples, logs
        self._lg = loadgen()

    def measure(self, system: System, plan: Plan) -> Run:
        """Measure a system in performance mode.

        Raises:
            StepError: A query failed.
        """
        settings = self._settings(plan)
        folder = self._folder(plan.scenario)
        processor_s, num_queries = self._run(system, settings, folder)
        summary = read_summary(folder / "mlperf_log_summary.txt")
        rate = _RATE.get(plan.scenario)
        return Run(
            system=system.name,
            scenario=plan.scenario,
            is_valid=summary["Result is"] == "VALID",
            samples_per_s=float(summary[rate]) if rate else 1e9 / float(summary["Mean latency (ns)"]),
            p50_ms=float(summary[_P50]) / 1e6,
            p90_ms=float(summary[_P90]) / 1e6,
            p99_ms=float(summary[_P99]) / 1e6,
            target_qps=plan.samples_per_s if plan.scenario == "server" else None,
            processor_ms=1e3 * processor_s / num_queries,
            logs=str(folder),
        )

    def scores(self, system: System) -> list[Scores]:
        """Return the scores of all samples, from the load generator's accuracy log.

        Raises:
            StepError: A query failed, or a sample was not answered.
        """
        settings = self._settings(Plan(scenario="offline", seconds=0.0, samples_per_s=1.0, p99_ms=1.0))
        settings.mode = self._lg.TestMode.AccuracyOnly
        folder = self._folder("accuracy")
        self._run(system, settings, folder)
        logged = json.loads((folder / "mlperf_log_accuracy.json").read_text())
        found = {one["qsl_idx"]: np.frombuffer(bytes.fromhex(one["data"]), "<f4") for one in logged}
        if sorted(found) != list(range(len(self._samples))):
            raise StepError(f"accuracy log: got {len(found)} samples, expected {len(self._samples)}")
        return [found[i] for i in range(len(self._samples))]

    def _settings(self, plan: Plan) -> Any:
        settings = self._lg.TestSettings()
        settings.scenario = getattr(self._lg.TestScenario, SCENARIOS[plan.scenario])
        settings.mode = self._lg.TestMode.PerformanceOnly
        settings.min_duration_ms = round(1e3 * plan.seconds)
        settings.min_query_count = 1 if plan.scenario == "offline" else 100
        settings.offline_expected_qps = plan.samples_per_s
        settings.server_target_qps = plan.samples_per_s
        settings.server_target_latency_ns = round(1e6 * plan.p99_ms)
        settings.server_target_latency_percentile = 0.99
        settings.single_stream_expected_latency_ns = round(1e9 / plan.samples_per_s)
        settings.qsl_rng_seed, settings.sample_index_rng_seed, settings.schedule_rng_seed = _SEEDS
        settings.performance_sample_count_override = len(self._samples)
        return settings

    def _folder(self, scenario: str) -> Path:
        number = sum(1 for _ in self._logs.glob(f"{scenario}-*"))
        folder = self._logs / f"{scenario}-{number}"
        folder.mkdir(parents=True)
        return folder

    def _run(self, system: System, settings: Any, folder: Path) -> tuple[float, int]:
        lg = self._lg
        num_answered = 0

        def answer(number: int, scores: Scores) -> None:
            nonlocal num_answered
            num_answered += 1
            # The load generator copies them before it returns.
            lg.QuerySamplesComplete([lg.QuerySampleResponse(number, scores.ctypes.data, scores.nbytes)])

        def issue(queries: Sequence[Any]) -> None:
            system.issue([(query.id, self._samples[query.index]) for query in queries])

        system.answer = answer
        sut = lg.ConstructSUT(issue, lambda: None)
        count = len(self._samples)
        library = lg.ConstructQSL(count, count, lambda _: None, lambda _: None)
        log = lg.LogSettings()
        log.enable_trace = False
        log.log_output.outdir = str(folder)
        log.log_output.copy_summary_to_stdout = False
        system.failures.clear()
        before_s = system.processor_s()
        try:
            lg.StartTestWithLogSettings(sut, library, settings, log)
        finally:
            lg.DestroyQSL(library)
            lg.DestroySUT(sut)
        if system.failures:
            raise StepError(f"{system.name}: {len(system.failures)} queries failed: {system.failures[0]}")
        return system.processor_s() - before_s, num_answered


def read_summary(path: Path) -> Mapping[str, str]:
    """Return the lines of a summary by their names."""
    lines = (re.match(r"\s*(.+?)\s*:\s(.+?)\s*$", line) for line in path.read_text().splitlines())
    return {found[1]: found[2] for found in lines if found}
