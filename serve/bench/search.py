"""The highest rate that a server answers within a bound: doubling, bisection, and a second look at the border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serve.bench.figures import Verdict

# How far to look beyond a border that a second look has moved.
_STRIDE = 1.25
# A server that fails at so small a share of the first rate fails for other reasons than the rate.
_LEAST_SHARE = 1 / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to.

    Attributes:
        rate_per_s: the highest rate that passed; None if none did.
        failing_per_s: the lowest that did not; None if none was found.
        limit: why that one failed.
        is_settled: whether both were looked at often enough, and lie as near as was asked for.
    """

    rate_per_s: float | None
    failing_per_s: float | None
    limit: Verdict | None
    is_settled: bool


class _Votes:
    """What every rate was found to be. A rate passes if more of its measurements passed than failed."""

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
        """A rate that passed as often as it failed."""
        rates = self._by_rate.items()
        return next((rate for rate, votes in rates if 2 * votes.count(Verdict.OK) == len(votes)), None)

    def border(self) -> tuple[float | None, float | None]:
        """The lowest rate that fails, and below it the highest that passes, the other way round."""
        high = min((rate for rate in self._by_rate if not self.passes(rate)), default=None)
        passing = (rate for rate in self._by_rate if self.passes(rate) and (high is None or rate < high))
        return max(passing, default=None), high

    def why(self, rate_per_s: float) -> Verdict:
        """The last reason for which a rate failed."""
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

    The rate is doubled (or halved) until one passes and one fails; then the gap is halved until it is narrower than
    ``precision``. The border is noise's home: both of its sides are measured again, up to ``num_looks`` times, and the
    majority counts. Where that moves the border, the search goes on from there. It gives up at a hundredth of the
    first rate.

    Args:
        measure: measures a rate.
        first_per_s: where to begin.
        precision: the gap that is narrow enough, as a share of the answer.
        num_looks: an odd number; 1 believes every measurement.
        most_steps: after which the best so far is the answer.
    """
    votes = _Votes(num_looks)
    had_border = False
    low: float | None = None
    high: float | None = None
    is_settled = False
    for _ in range(most_steps):
        rate_per_s = _next(votes, low, high, _STRIDE if had_border else 2.0, precision, first_per_s)
        if rate_per_s is None or rate_per_s < _LEAST_SHARE * first_per_s:
            is_settled = rate_per_s is None
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


def _next(
    votes: _Votes,
    low: float | None,
    high: float | None,
    stride: float,
    precision: float,
    first_per_s: float,
) -> float | None:
    """The rate to measure next; None once the border is narrow and sure."""
    if (undecided := votes.undecided()) is not None:
        return undecided
    if low is None:
        return first_per_s if high is None else high / stride
    if high is None:
        return low * stride
    if high - low > precision * low:
        return (low + high) / 2
    return next((rate for rate in (low, high) if not votes.is_settled(rate)), None)
