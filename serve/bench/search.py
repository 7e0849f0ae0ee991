"""Search for the highest rate that a server answers within a bound: strides, bisection, repetitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serve.bench.load.figures import Verdict

# Shares of the first rate, tried in order until one passes. They are dense near the first rate, because a
# closed loop suggests a first rate slightly above the result. Then they fall fast: if half of the first rate
# fails, the rate is not the reason, and each step at a low rate takes long.
_SHARES = (1.0, 0.8, 0.5, 1 / 16, 1 / 100)
# A rate that fails at this share of the first rate or below is measured again at once, because a pause of the machine
# may be the reason, and every later step would be below it.
_SURE_FROM = 0.8
# Factor to the next rate beyond a border that a repeated measurement has moved.
_STRIDE = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of a search.

    Attributes:
        rate_per_s: the highest rate that passed; None if none did.
        failing_per_s: the lowest rate above it that failed; None if none did.
        limit: why that one failed.
        is_settled: whether both were measured often enough and are within the precision.
    """

    rate_per_s: float | None
    failing_per_s: float | None
    limit: Verdict | None
    is_settled: bool


class _Votes:
    """The verdicts of every rate. A rate passes if more of its measurements passed than failed."""

    def __init__(self, num_looks: int) -> None:
        self._enough = num_looks // 2 + 1
        self._by_rate: dict[float, list[Verdict]] = {}

    def add(self, rate_per_s: float, verdict: Verdict) -> None:
        self._by_rate.setdefault(rate_per_s, []).append(verdict)

    def passes(self, rate_per_s: float) -> bool:
        votes = self._by_rate[rate_per_s]
        return 2 * votes.count(Verdict.OK) > len(votes)

    def is_settled(self, rate_per_s: float) -> bool:
        votes = self._by_rate[rate_per_s]
        num_ok = votes.count(Verdict.OK)
        return max(num_ok, len(votes) - num_ok) >= self._enough

    def undecided(self) -> float | None:
        """Return a rate that passed as often as it failed."""
        rates = self._by_rate.items()
        return next((rate for rate, votes in rates if 2 * votes.count(Verdict.OK) == len(votes)), None)

    def border(self) -> tuple[float | None, float | None]:
        """Return the highest rate that passes below every rate that fails, and the lowest that fails."""
        high = min((rate for rate in self._by_rate if not self.passes(rate)), default=None)
        passing = (rate for rate in self._by_rate if self.passes(rate) and (high is None or rate < high))
        return max(passing, default=None), high

    def why(self, rate_per_s: float) -> Verdict:
        """Return why a rate failed last."""
        return next(verdict for verdict in reversed(self._by_rate[rate_per_s]) if verdict is not Verdict.OK)


def find_rate(
    measure: Callable[[float], Verdict],
    first_per_s: float,
    *,
    precision: float = 0.05,
    num_looks: int = 3,
    most_steps: int = 40,
) -> Found:
    """Search.

    If the first rate passes, it is doubled until one fails; else lower rates are tried, down to a hundredth of it. Then
    the gap between a rate that passes and one that fails is halved until it is narrower than ``precision``. A pause of
    the machine can fail a step at any rate. So rates that fail far below the first one, and both sides of the border,
    are measured again, up to ``num_looks`` times, and the majority counts; where that moves the border, the search goes
    on from there.

    Args:
        measure: measures a rate.
        first_per_s: rate of the first step.
        precision: gap that is narrow enough, as a share of the answer.
        num_looks: odd number of measurements of a rate at the border, at most; 1 never repeats a measurement.
        most_steps: number of steps after which the best rate so far is the answer.
    """
    votes = _Votes(num_looks)
    had_border = False
    low: float | None = None
    high: float | None = None
    is_settled = False
    for _ in range(most_steps):
        rate_per_s = _next(votes, first_per_s, precision, had_border=had_border)
        if rate_per_s is None:
            is_settled = low is not None
            break
        votes.add(rate_per_s, measure(rate_per_s))
        low, high = votes.border()
        had_border = had_border or (low is not None and high is not None)
    return Found(
        rate_per_s=low,
        failing_per_s=high,
        limit=None if high is None else votes.why(high),
        is_settled=is_settled,
    )


def _next(votes: _Votes, first_per_s: float, precision: float, *, had_border: bool) -> float | None:
    """Return the rate to measure next; None once the border is narrow and settled, or no rate passes."""
    low, high = votes.border()
    if (undecided := votes.undecided()) is not None:
        return undecided
    if high is not None and high <= _SURE_FROM * first_per_s and not votes.is_settled(high):
        return high
    if low is None:
        return _lower(first_per_s, high, had_border=had_border)
    if high is None:
        return low * (_STRIDE if had_border else 2.0)
    if high - low > precision * low:
        return (low + high) / 2
    return next((rate for rate in (low, high) if not votes.is_settled(rate)), None)


def _lower(first_per_s: float, high: float | None, *, had_border: bool) -> float | None:
    """Return a rate below all that failed; None below the last share of the first rate."""
    if high is None:
        return first_per_s
    if had_border:
        lower = high / _STRIDE
        return lower if lower >= _SHARES[-1] * first_per_s else None
    return next((share * first_per_s for share in _SHARES if share * first_per_s < high), None)
