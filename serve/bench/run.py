"""One run: ask the server for its model, start the sender, measure, and build the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import text_format

from serve.bench import environment
from serve.bench.load.drive import span
from serve.bench.load.figures import Figures, Verdict, figures, verdict
from serve.bench.load.measured import Measured
from serve.bench.load.native import NativeLoad
from serve.bench.load.plan import Job, LoadError, Progress, Recording, Step
from serve.bench.load.workers import Workers
from serve.bench.search import Found, find_rate
from serve.bench.settings import Settings
from serve.client import Client
from serve.client import Settings as ClientSettings
from serve.wire import predict_pb2 as wire

# A step of a search lasts until this many requests were due, so that more than ten of them are above its p99,
# but no longer than _LONGEST_STEP_S or what is left of the search's time.
_MIN_STEP_REQUESTS = 1000
_LONGEST_STEP_S = 30.0
# The closed loop that suggests the first rate of a search.
_PROBE_S = 2.0
_PROBE_IN_FLIGHT = 32

Begin = Callable[[str, float], Progress]

_MOST_EXAMPLES = 1024


class Load(Protocol):
    """A sender: ``NativeLoad`` or ``Workers``."""

    num_requests: int

    def measure(self, step: Step, progress: Progress | None = None) -> Measured:
        """Make one measurement."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One step of a search."""

    verdict: Verdict
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run.

    Attributes:
        settings: settings of the run.
        server: the server and its model.
        started_at: time in UTC.
        tool: versions of the client.
        machine: machine of the client.
        measurement: the measurement; of a search the last one at the rate that it found, or None if it found
            none.
        found: outcome of a search.
        steps: steps of a search, in the order in which they were measured.
        server_metrics: figures from the server's own metrics, if their address was given.
        num_distinct: number of different requests.
    """

    settings: Settings
    server: dict[str, Any]
    started_at: str
    tool: dict[str, Any]
    machine: dict[str, Any]
    measurement: Figures | None
    found: Found | None
    steps: list[Tried]
    server_metrics: dict[str, float | None] | None
    num_distinct: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        data: dict[str, Any] = {
            "started_at": self.started_at,
            "settings": {**self.settings.to_json(), "num_distinct": self.num_distinct},
            "tool": self.tool,
            "machine": self.machine,
            "server": self.server,
            "measurement": None if self.measurement is None else self.measurement.to_json(),
            "server_metrics": self.server_metrics,
        }
        if self.found is not None:
            data["search"] = {
                "requests_per_s": self.found.rate_per_s,
                "failing_per_s": self.found.failing_per_s,
                "limit": self.found.limit,
                "is_settled": self.found.is_settled,
            }
            data["steps"] = [{"verdict": tried.verdict, **tried.figures.to_json()} for tried in self.steps]
        return data

    def warnings(self) -> list[str]:
        """Return warnings for the reader. A rate that a search found is valid even if the client was late."""
        made = self.measurement
        if made is None:
            return []
        late = [made.late_text] if self.found is None and not made.is_valid else []
        return [*late, *made.warnings]

    def missed(self) -> list[str]:
        """Return the expectations that were not met, one text each."""
        settings, made = self.settings, self.measurement
        expected = settings.result
        found = []
        if made is None:
            return [f"no rate was answered with a p99 of at most {settings.search.p99_ms:g} ms"]
        if not made.is_valid and self.found is None:
            found.append("the measurement is not valid: too many requests were sent late")
        rate_per_s = made.requests_per_s if self.found is None else self.found.rate_per_s or 0.0
        if expected.expect_per_s is not None and rate_per_s < expected.expect_per_s:
            found.append(f"rate: got {rate_per_s:.1f}/s, expected at least {expected.expect_per_s:g}/s")
        if expected.expect_p99_ms is not None:
            p99_ms = math.inf if made.p99_ms is None else made.p99_ms
            if p99_ms > expected.expect_p99_ms:
                found.append(f"p99: got {p99_ms:.3f} ms, expected at most {expected.expect_p99_ms:g} ms")
        return found


def run(settings: Settings, begin: Begin) -> Result:
    """Measure.

    Args:
        settings: settings of the run.
        begin: called before each measurement with its name and length in seconds; returns the receiver of its
            progress.

    Raises:
        LoadError: nothing was measured.
        PredictError: the server did not describe its model.
        OSError: no server answers, or a file cannot be read.
        ValueError: a file does not hold what it should, or an option names an input that the model does not have.
    """
    if settings.target.tls is not None:
        # reports errors in the TLS files before anything is started
        settings.target.tls.credentials()
    metadata = _metadata(settings)
    _check_inputs(settings, metadata)
    recording = _recording(settings, metadata)
    recorded_s = _recorded_s(recording)
    started_at = environment.now()
    machine = environment.machine()
    before = _scraped(settings.result.metrics)
    with _opened(settings, metadata, recording) as load:
        if settings.mode == "find-rate":
            measurement, found, steps = search_rate(settings, load, begin)
        else:
            measurement, found, steps = _one(settings, load, begin, recorded_s), None, []
        num_distinct = load.num_requests
    after = _scraped(settings.result.metrics)
    return Result(
        settings=settings,
        server=environment.served(metadata),
        started_at=started_at,
        tool=environment.tool(settings.load.sender),
        machine=machine,
        measurement=measurement,
        found=found,
        steps=steps,
        server_metrics=None if before is None or after is None else environment.server_figures(before, after),
        num_distinct=num_distinct,
    )


def _scraped(address: str) -> dict[str, float] | None:
    if not address:
        return None
    try:
        return environment.scrape(address)
    except OSError as error:
        raise LoadError(
            f"--metrics: got {address!r}: {error}; expected HOST:PORT of the server's metrics"
        ) from None


def _one(settings: Settings, load: Load, begin: Begin, recorded_s: float) -> Figures:
    asked = settings.load
    step = Step(
        duration_s=asked.duration_s,
        warm_up_s=asked.warm_up_s,
        num_in_flight=asked.num_in_flight,
        rate_per_s=asked.rate_per_s,
        max_in_flight=asked.max_in_flight,
    )
    length_s = min(step.warm_up_s + step.duration_s, recorded_s)
    measured = load.measure(step, begin("measuring", length_s))
    return figures(measured, step, is_ranking=settings.shape.ranking)


def _recorded_s(recording: Recording | None) -> float:
    """Return how long a recording plays: infinity where it sets no pace."""
    if recording is None:
        return math.inf
    count, recorded_s = span(recording.path, recording.model)
    if not count:
        raise ValueError("--replay: the capture holds no request of that model")
    return math.inf if recording.speed is None else recorded_s / recording.speed


def search_rate(
    settings: Settings, load: Load, begin: Begin, clock: Callable[[], float] = time.monotonic
) -> tuple[Figures | None, Found, list[Tried]]:
    """Search for the highest rate within the bound, for no longer than the settings allow.

    Args:
        settings: settings of the run.
        load: the sender.
        begin: see ``run``.
        clock: time in seconds.

    Returns:
        The figures at the rate that was found, the outcome, and the steps.
    """
    bound_ms = settings.search.p99_ms
    assert bound_ms is not None
    steps: list[Tried] = []
    end_s = clock() + settings.search.most_s
    # A step that asks too much takes longer than asked for, until what waits is answered.
    overrun_s = 0.0

    def measure(rate_per_s: float) -> Verdict | None:
        nonlocal overrun_s
        asked = settings.load
        begin_s = clock()
        left_s = end_s - begin_s - asked.warm_up_s - overrun_s
        if left_s < asked.duration_s:
            return None
        duration_s = min(_MIN_STEP_REQUESTS / rate_per_s, _LONGEST_STEP_S, left_s)
        step = Step(
            duration_s=max(duration_s, asked.duration_s),
            warm_up_s=asked.warm_up_s,
            rate_per_s=rate_per_s,
            max_in_flight=asked.max_in_flight,
            number=len(steps) + 1,
        )
        length_s = step.warm_up_s + step.duration_s
        what = f"step {step.number}: {rate_per_s:,.0f}/s, at most {end_s - begin_s:.0f} s left"
        made = figures(load.measure(step, begin(what, length_s)), step, is_ranking=settings.shape.ranking)
        overrun_s = max(overrun_s, clock() - begin_s - length_s)
        steps.append(Tried(verdict=verdict(made, bound_ms), figures=made))
        return steps[-1].verdict

    first_per_s = settings.search.first_per_s or _suggestion(settings, load, begin)
    found = find_rate(measure, first_per_s, precision=settings.search.precision)
    at_rate = [tried.figures for tried in steps if tried.figures.asked_per_s == found.rate_per_s]
    passed = [made for made in at_rate if verdict(made, bound_ms) is Verdict.OK]
    return (passed[-1] if passed else None), found, steps


def _suggestion(settings: Settings, load: Load, begin: Begin) -> float:
    """Return the rate of a short closed loop, which open loops seldom exceed within a bound."""
    step = Step(
        duration_s=_PROBE_S,
        warm_up_s=settings.load.warm_up_s,
        num_in_flight=max(_PROBE_IN_FLIGHT, settings.target.num_connections),
    )
    measured = load.measure(step, begin("a first guess", step.warm_up_s + step.duration_s))
    if not measured.num_in_time:
        code, text = next(iter(measured.texts.items()), ("DEADLINE_EXCEEDED", "no answer in time"))
        raise LoadError(f"no request was answered: {code}: {text}")
    return max(round(measured.num_in_time / step.duration_s, 1), 0.5)


def _recording(settings: Settings, metadata: wire.ModelMetadata) -> Recording | None:
    recording = settings.recording
    if recording is not None and settings.target.protocol != "recsys" and not recording.model:
        # Requests of other protocols are encoded by the signature of one model.
        return replace(recording, model=metadata.model)
    return recording


def _opened(
    settings: Settings, metadata: wire.ModelMetadata, recording: Recording | None
) -> NativeLoad | Workers:
    """Return the sender of a run; it connects with the first measurement."""
    job = Job(
        target=settings.target,
        metadata=metadata.SerializeToString(),
        shape=settings.shape,
        recording=recording,
        seed=settings.load.seed,
    )
    count = settings.load.num_processes
    if settings.load.sender == "native":
        return NativeLoad(job, count)
    num_connections = settings.target.num_connections
    shape = replace(settings.shape, num_distinct=math.ceil(settings.shape.num_distinct / count))
    return Workers(
        [
            replace(
                job,
                target=replace(job.target, num_connections=len(range(i, num_connections, count))),
                shape=shape,
                index=i,
                num_processes=count,
            )
            for i in range(count)
        ]
    )


def _metadata(settings: Settings) -> wire.ModelMetadata:
    """Return the model's metadata: from a file, if there is one of that name, else from a server."""
    if settings.shape.payload_bytes:
        return wire.ModelMetadata()
    where = settings.describe or settings.target.address
    if settings.describe and Path(settings.describe).is_file():
        try:
            text = Path(settings.describe).read_text()
            metadata: wire.ModelMetadata = text_format.Parse(text, wire.ModelMetadata())
            return metadata
        except (text_format.ParseError, UnicodeDecodeError) as error:
            raise ValueError(
                f"--describe: expected what recsys-predict ADDRESS --metadata prints ({error})"
            ) from None
    asked = ClientSettings(
        timeout_s=settings.target.timeout_s,
        model=settings.shape.model,
        version=settings.shape.version,
        tls=settings.target.tls,
    )
    with Client(where, settings=asked) as client:
        return client.metadata(num_examples=_MOST_EXAMPLES if settings.shape.like_examples else 0)


def _check_inputs(settings: Settings, metadata: wire.ModelMetadata) -> None:
    known = [sparse.name for sparse in metadata.sparse]
    unknown = [name for name in settings.shape.ids_per_bag_of if name not in known]
    if unknown:
        raise ValueError(f"--ids-per-bag: got {unknown[0]!r}, expected a sparse input: {known}")
    if settings.shape.ranking and not metadata.context:
        raise ValueError("--candidates: the model was exported without a context; --rows sends whole rows")
