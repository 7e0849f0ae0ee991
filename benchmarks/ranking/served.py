"""Rankings through the native server, over loopback: with the context computed once, and for each row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure.processes import Seen, Started, module, run_json, started
from benchmarks.ranking.cases import CASES, Case, build, export

#: The models that are measured.
SERVED = ("SASRec-like 100", "DLRM")
ONCE, EACH_ROW = "with --context", "without"
IN_FLIGHT = (1, 8)


@dataclass(frozen=True, kw_only=True)
class Served:
    """One server under one load: medians of the rounds.

    Attributes:
        model: its name in ``CASES``.
        artifact: ``ONCE`` or ``EACH_ROW``.
        in_flight: unanswered requests.
        requests_per_s: answered.
        p50_ms: of the time to an answer.
        p99_ms: likewise.
        processor_ms: of the server, for each request.
    """

    model: str
    artifact: str
    in_flight: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    processor_ms: float


def server_command(path: Path, *options: str) -> list[str]:
    """Return the command of a native server on a port that the system chooses."""
    return module("serve.app.cli", str(path), "--engine", "native", "--port", "0", "--json", *options)


def bench_options(case: Case, num_candidates: int, num_in_flight: int, seconds: float) -> list[str]:
    """Return options of recsys-bench: a closed loop of a model's ranking requests."""
    return [
        *("--candidates", str(num_candidates), "--in-flight", str(num_in_flight)),
        *("--connections", str(min(num_in_flight, 4)), "--duration-s", str(seconds), "--json"),
        *(f"--ids-per-bag={name}={ids}" for name, ids in zip(case.context, case.ids, strict=True)),
    ]


def measure_served(
    names: Sequence[str], folder: Path, num_rows: int, num_candidates: int, num_rounds: int, seconds: float
) -> list[Served]:
    """Measure the servers of some models in turns.

    The same ranking requests go to both: without a ranking form, the server repeats the context for each row.

    Args:
        names: Models; those not in ``SERVED`` are left out.
        folder: Where artifacts go.
        num_rows: Rows of each table.
        num_candidates: Rows of a request.
        num_rounds: Turns of each server.
        seconds: Of a turn.

    Raises:
        StepError: A server or a request failed.
    """
    found: list[Served] = []
    for name in (name for name in names if name in SERVED):
        case = CASES[name]
        model = build(case, num_rows)
        with ExitStack() as stack:
            servers: dict[str, Started] = {}
            for artifact in (ONCE, EACH_ROW):
                path = folder / f"served-{len(found)}-{artifact}"
                export(case, model, path, with_context=artifact == ONCE)
                servers[artifact] = stack.enter_context(started(server_command(path, "--no-metrics")))
            seen = {(artifact, load): Seen() for load in IN_FLIGHT for artifact in servers}
            took: dict[tuple[str, int], list[float]] = {key: [] for key in seen}
            for number in range(num_rounds):
                for artifact, load in list(seen) if number % 2 == 0 else list(seen)[::-1]:
                    options = [*bench_options(case, num_candidates, load, seconds), "--distinct", "256"]
                    options += ["--describe", servers[ONCE].address, "--warm-up-s", "0"]
                    before_s = servers[artifact].processor_s()
                    made = run_json(module("serve.bench", servers[artifact].address, *options))["measurement"]
                    processor_s = servers[artifact].processor_s() - before_s
                    seen[artifact, load].add(artifact, made)
                    took[artifact, load].append(1e3 * processor_s / made["num_answered"])
        found += [
            Served(
                model=name,
                artifact=artifact,
                in_flight=load,
                processor_ms=statistics.median(took[artifact, load]),
                **one.medians(),
            )
            for (artifact, load), one in seen.items()
        ]
    return found
