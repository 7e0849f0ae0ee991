"""Rankings through the native server, over loopback: with the context computed once, and for each row."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure.processes import Seen, module, run_json, started
from benchmarks.ranking.cases import CASES, build, export

#: The models that are measured.
SERVED = ("SASRec-like, history 100", "DLRM")
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
    """

    model: str
    artifact: str
    in_flight: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float


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
        lengths = [f"--ids-per-bag={one}={ids}" for one, ids in zip(case.context, case.ids, strict=True)]
        with ExitStack() as stack:
            addresses = {}
            for artifact in (ONCE, EACH_ROW):
                path = export(
                    case, model, folder / f"served-{len(found)}-{artifact}", with_context=artifact == ONCE
                )
                command = module(
                    "serve.app.cli", str(path), "--engine", "native", "--port", "0", "--no-metrics"
                )
                server = stack.enter_context(started([*command, "--json"]))
                addresses[artifact] = server.address
            seen = {(artifact, load): Seen() for load in IN_FLIGHT for artifact in addresses}
            for number in range(num_rounds):
                order = list(seen) if number % 2 == 0 else list(seen)[::-1]
                for artifact, load in order:
                    options = [
                        *("--candidates", str(num_candidates), "--in-flight", str(load), *lengths),
                        *("--connections", str(min(load, 4)), "--distinct", "256"),
                        *("--describe", addresses[ONCE], "--duration-s", str(seconds), "--json"),
                    ]
                    result = run_json(module("serve.bench", addresses[artifact], *options))
                    seen[artifact, load].add(artifact, result["measurement"])
        found += [
            Served(model=name, artifact=artifact, in_flight=load, **one.medians())
            for (artifact, load), one in seen.items()
        ]
    return found
