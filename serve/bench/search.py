"""Search for the highest rate that a server answers within a bound: bisection in which single steps may be wrong.

A pause of the machine fails a step at any rate, and a rate just above the border passes now and then. So no step
excludes a rate: each one makes borders above or below it less likely, and the next rate is the median of what is left
(Horstein's probabilistic bisection).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serve.bench.load.figures import Verdict

# Borders from a thousandth to a thousand times the first rate are possible. Half of them lie within a factor of 1.5;
# the others are spread so wide (a Cauchy distribution of their logarithms) that a few steps lead far.
_MOST_FACTOR = 1000.0
_SCALE = math.log(1.5)
# The probability that a rate below the border gives this verdict, because the machine paused or the client did, and
# that one above it passes.
_WRONG = {Verdict.SLOW: 0.2, Verdict.PAUSED: 0.5, Verdict.LATE: 0.5, Verdict.FAILED: 0.1, Verdict.BEHIND: 0.1}
_LUCKY = 0.05
# The search ends when the border lies between two rates that were measured, with this probability.
_SURE = 0.8
# A share of the precision that separates possible borders.
_CELL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of a search.

    Attributes:
        rate_per_s: the highest rate that passed; None if none did.
        failing_per_s: the lowest rate above it that failed; None if none did.
        limit: why that one failed.
        is_settled: whether the border lies between the two with high probability, and they are within the precision.
    """

    rate_per_s: float | None
    failing_per_s: float | None
    limit: Verdict | None
    is_settled: bool


class _Border:
    """What is known of the border between rates that pass and rates that fail."""

    def __init__(self, first_per_s: float, precision: float) -> None:
        width = math.log1p(precision * _CELL)
        count = math.ceil(math.log(_MOST_FACTOR) / width)
        offsets = width * np.arange(-count, count + 1)
        # A border at cell i: rates up to this one pass, higher ones fail.
        self.rates: NDArray[np.float64] = first_per_s * np.exp(offsets)
        self._log = -np.log1p((offsets / _SCALE) ** 2)

    def learn(self, rate_per_s: float, verdict: Verdict) -> None:
        """Take a step's verdict into account."""
        passes = self.rates >= rate_per_s * (1 - 1e-9)
        if verdict is Verdict.OK:
            self._log += np.log(np.where(passes, 1 - _WRONG[Verdict.SLOW], _LUCKY))
        else:
            self._log += np.log(np.where(passes, _WRONG[verdict], 1 - _LUCKY))

    def next(self) -> float:
        """Return the rate whose verdict tells most: it is about as likely to pass as to fail."""
        passes = np.cumsum(self._probabilities()[::-1])[::-1]
        return float(self.rates[int(np.abs(passes - 0.5).argmin())])

    def passes(self, rate_per_s: float) -> float:
        """Return the probability that a rate passes."""
        return self.probability(rate_per_s, math.inf)

    def probability(self, low_per_s: float, high_per_s: float) -> float:
        """Return the probability that the first rate passes and the second fails."""
        inside = (self.rates >= low_per_s * (1 - 1e-9)) & (self.rates < high_per_s * (1 - 1e-9))
        return float(self._probabilities()[inside].sum())

    def _probabilities(self) -> NDArray[np.float64]:
        weights = np.exp(self._log - self._log.max())
        return np.asarray(weights / weights.sum())


def find_rate(
    measure: Callable[[float], Verdict | None],
    first_per_s: float,
    *,
    precision: float = 0.05,
    most_steps: int = 100,
) -> Found:
    """Search.

    Args:
        measure: measures a rate; None if there is no time for it, which ends the search.
        first_per_s: rate of the first step, and the best guess at the answer.
        precision: gap between a rate that passes and one that fails that is narrow enough, as a share of the rate.
        most_steps: number of steps after which the best rate so far is the answer.
    """
    border = _Border(first_per_s, precision)
    verdicts: dict[float, list[Verdict]] = {}
    found = Found(rate_per_s=None, failing_per_s=None, limit=None, is_settled=False)
    for _ in range(most_steps):
        rate_per_s = border.next() if verdicts else first_per_s
        verdict = measure(rate_per_s)
        if verdict is None:
            break
        verdicts.setdefault(rate_per_s, []).append(verdict)
        border.learn(rate_per_s, verdict)
        found = _found(border, verdicts, precision)
        if found.is_settled:
            break
    return found


def _found(border: _Border, verdicts: dict[float, list[Verdict]], precision: float) -> Found:
    """Return the highest rate that passed and likely passes, and the lowest above it that failed and likely fails."""
    passed = [rate for rate, given in verdicts.items() if Verdict.OK in given and border.passes(rate) > 0.5]
    low = max(passed, default=None)
    failed = [
        rate
        for rate, given in verdicts.items()
        if set(given) != {Verdict.OK} and border.passes(rate) < 0.5 and (low is None or rate > low)
    ]
    high = min(failed, default=None)
    if high is None:
        return Found(rate_per_s=low, failing_per_s=None, limit=None, is_settled=False)
    limit = next(verdict for verdict in reversed(verdicts[high]) if verdict is not Verdict.OK)
    is_settled = (
        low is not None
        and high - low <= precision * low * (1 + 1e-9)
        and border.probability(low, high) >= _SURE
    )
    return Found(rate_per_s=low, failing_per_s=high, limit=limit, is_settled=is_settled)
