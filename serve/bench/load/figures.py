"""Rates and percentiles of a measurement, and their validity."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from serve.bench.load.latencies import Latencies
from serve.bench.load.measured import NOT_SENT, Measured
from serve.bench.load.plan import Step

#: A request is late if it was sent by more than this, or more than a tenth of the measured p99, after it was
#: due.
LATE_MS = 1.0
LATE_SHARE_OF_P99 = 0.1
#: If a larger share of requests was late, the numbers describe the client rather than the server.
MOST_LATE = 0.01
#: A sending process or thread that uses this share of a core may limit the throughput.
BUSY = 0.9
#: A rate counts as answered if this share of it was.
_MIN_ACHIEVED = 0.95


class Verdict(StrEnum):
    """The outcome of one step of a search."""

    OK = "ok"
    SLOW = "slow"
    PAUSED = "paused"
    FAILED = "failed"
    BEHIND = "behind"
    LATE = "late"

    @property
    def text(self) -> str:
        """Return the text for the report."""
        return {
            Verdict.OK: "within the bound",
            Verdict.SLOW: "p99 above the bound",
            Verdict.PAUSED: "p99 above the bound, in a few of its seconds",
            Verdict.FAILED: "requests failed",
            Verdict.BEHIND: "answers fell behind the rate",
            Verdict.LATE: "the client sent too late",
        }[self]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One measurement. Times of an open loop count from when a request was due.

    Attributes:
        asked_per_s: rate of an open loop.
        num_in_flight: unanswered requests of a closed loop.
        duration_s: measured time.
        requests_per_s: answers within the measured time, per second.
        rows_per_s: rows of these answers, per second.
        contexts_per_s: contexts of these answers, per second; None where not all are of ranking requests.
        num_answered: requests that were answered, within the measured time or later.
        num_failed: requests that failed.
        errors: failed requests by code.
        error_texts: text of the first failed request of each code.
        latency_ms: p50, p90, p95, p99, p99.9, max, mean.
        service_ms: the same from when requests were sent; of an open loop.
        lag_ms: the same of the time by which requests were sent late; of an open loop.
        late_share: share of the requests that were sent late.
        late_ms: delay from which a request counts as late, see ``LATE_MS``.
        is_valid: whether few enough requests were late.
        warnings: further warnings.
        generator_cpu_shares: share of a core that each sending process or thread used.
        kinds: a subset of these figures per kind of request, if there are several.
        series: figures over time.
        histogram: ``[upper bound in ms, count]``.
    """

    asked_per_s: float | None
    num_in_flight: int | None
    duration_s: float
    requests_per_s: float
    rows_per_s: float
    contexts_per_s: float | None
    num_answered: int
    num_failed: int
    errors: dict[str, int]
    error_texts: dict[str, str]
    latency_ms: dict[str, float | None]
    service_ms: dict[str, float | None] | None
    lag_ms: dict[str, float | None] | None
    late_share: float
    late_ms: float
    is_valid: bool
    warnings: list[str]
    generator_cpu_shares: list[float]
    kinds: dict[str, dict[str, Any]] = field(default_factory=dict)
    series: list[dict[str, Any]] = field(default_factory=list)
    histogram: list[list[Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @property
    def late_text(self) -> str:
        """Return why the numbers are not valid; empty if they are."""
        if self.is_valid:
            return ""
        return (
            f"not valid: {self.late_share:.1%} of the requests were sent more than {self.late_ms:.3g} ms late (at most "
            f"{MOST_LATE:.0%} may be): the client could not keep the rate; use more --processes, or another machine"
        )

    @property
    def p99_ms(self) -> float | None:
        """The p99 of the latencies; None if no request was answered."""
        return self.latency_ms["p99"]


def figures(measured: Measured, step: Step, *, is_ranking: bool = False) -> Figures:
    """Return the figures of one measurement.

    Args:
        measured: the counts.
        step: what was measured.
        is_ranking: whether each request has one context.
    """
    duration_s = step.duration_s if measured.elapsed_s is None else max(measured.elapsed_s, 1e-9)
    latency_ms = measured.latencies.figures_ms()
    late_ms = max(LATE_MS, LATE_SHARE_OF_P99 * (latency_ms["p99"] or 0.0))
    late_share = measured.lags.share_above(late_ms * 1e-3)
    return Figures(
        asked_per_s=step.rate_per_s,
        num_in_flight=step.num_in_flight,
        duration_s=duration_s,
        requests_per_s=measured.num_in_time / duration_s,
        rows_per_s=measured.num_rows / duration_s,
        contexts_per_s=measured.num_in_time / duration_s if is_ranking else None,
        num_answered=measured.num_answered,
        num_failed=measured.num_failed,
        errors=dict(measured.errors),
        error_texts=dict(measured.texts),
        latency_ms=latency_ms,
        service_ms=_if_any(measured.services),
        lag_ms=_if_any(measured.lags),
        late_share=late_share,
        late_ms=late_ms,
        is_valid=late_share <= MOST_LATE,
        warnings=_warnings(measured),
        generator_cpu_shares=[round(share, 3) for share in measured.cpu_shares],
        kinds={
            name: {
                "num_answered": len(kind.latencies),
                "num_failed": kind.num_failed,
                "latency_ms": kind.latencies.figures_ms(),
            }
            for name, kind in sorted(measured.kinds.items())
        },
        series=list(measured.series.points(duration_s)),
        histogram=measured.latencies.to_json(),
    )


def verdict(made: Figures, p99_ms: float) -> Verdict:
    """Return whether a rate was answered within a bound.

    A rate that is too high is slow in most seconds; a pause of either machine spoils a few, at any rate.

    The latencies include delays of the client. A rate that passes despite them passes; one that fails with a
    late client is attributed to the client.
    """
    if made.num_failed or made.p99_ms is None:
        return Verdict.FAILED
    if made.p99_ms > p99_ms:
        if not made.is_valid:
            return Verdict.LATE
        slow = [point["p99_ms"] is not None and point["p99_ms"] > p99_ms for point in made.series]
        return Verdict.PAUSED if 0 < 2 * sum(slow) <= len(slow) else Verdict.SLOW
    due_per_s = made.num_answered / made.duration_s
    return Verdict.BEHIND if made.requests_per_s < _MIN_ACHIEVED * due_per_s else Verdict.OK


def _if_any(latencies: Latencies) -> dict[str, float | None] | None:
    return latencies.figures_ms() if len(latencies) else None


def _warnings(measured: Measured) -> list[str]:
    found = []
    if NOT_SENT in measured.errors:
        found.append(
            f"{measured.errors[NOT_SENT]} requests were not sent: too many were unanswered (--max-in-flight)"
        )
    busy = [share for share in measured.cpu_shares if share > BUSY]
    if busy:
        found.append(
            f"{len(busy)} of {len(measured.cpu_shares)} sending processes or threads used more than {BUSY:.0%} of a "
            "core: the client may be what bounds these numbers; use more --processes"
        )
    return found
