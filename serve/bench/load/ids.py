"""Random IDs: uniform or Zipf-distributed, drawn many at a time.

Zipf's law with exponent ``s`` over N rows: the row of rank k (1 to N) is requested with a probability
proportional to ``k ** -s``. 0 is uniform, click logs are near 1, larger values are more skewed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
# Maximum number of distinct IDs; it keeps the product in ``scatter`` within 64 bits.
_MOST_ROWS = 1 << 31
# The golden ratio's fraction: its multiples modulo 1 are spread as evenly as possible (Knuth, The Art of
# Computer Programming, volume 3, section 6.4).
_GOLDEN = 0.6180339887498949


class Zipf:
    """A sampler of ranks by Zipf's law, without a table of N probabilities.

    Rejection-inversion after W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone
    discrete distributions", ACM TOMACS 6 (1996): a point is drawn under the curve x ** -s, and rejected if it
    is not under the bar of the nearest rank.

    Args:
        num_rows: N, at least 1.
        exponent: s, above 0.
    """

    def __init__(self, num_rows: int, exponent: float) -> None:
        if num_rows < 1 or not 0 < exponent < 100:
            raise ValueError(
                f"Zipf: got {num_rows} rows, exponent {exponent}, expected at least 1 row and 0 < exponent < 100"
            )
        self._num_rows = num_rows
        self._exponent = exponent
        # Lower bound of the area: the first bar has weight 1 to the left of 1.5.
        self._start = float(self._area(np.array(1.5))) - 1.0
        self._end = float(self._area(np.array(num_rows + 0.5)))
        # Draws this close below their rank are always within its bar.
        self._safe = 2.0 - float(self._inverse(self._area(np.array(2.5)) - 2.0**-exponent))

    def draw(self, count: int, generator: np.random.Generator) -> _Ints:
        """Return ranks from 1 to N, ``[count]``."""
        ranks = np.empty(count, np.int64)
        missing = np.arange(count)
        while missing.size:
            areas = self._end + generator.random(missing.size) * (self._start - self._end)
            points = self._inverse(areas)
            candidates = np.clip(np.floor(points + 0.5), 1, self._num_rows)
            fits = candidates - points <= self._safe
            fits |= areas >= self._area(candidates + 0.5) - candidates**-self._exponent
            ranks[missing[fits]] = candidates[fits].astype(np.int64)
            missing = missing[~fits]
        return ranks

    def _area(self, x: _Floats) -> Any:
        """Return the integral of ``x ** -s`` up to a constant; its limit for s = 1 is the logarithm."""
        logs = np.log(x)
        return logs * _expm1_ratio((1.0 - self._exponent) * logs)

    def _inverse(self, area: _Floats) -> Any:
        """Return the point with this area to its left."""
        scaled = np.maximum((1.0 - self._exponent) * area, -1.0 + 1e-15)
        return np.exp(area * _log1p_ratio(scaled))


def scatter(ranks: _Ints, num_rows: int) -> _Ints:
    """Map ranks to rows, so that frequent rows are not adjacent.

    A fixed permutation: ``rank * m mod N``, where ``m`` is the number nearest to N times the golden ratio's
    fraction that is coprime to N. It is the same in every run and process.

    Args:
        ranks: from 0 to ``num_rows`` - 1.
        num_rows: N.
    """
    multiplier = max(int(num_rows * _GOLDEN), 1)
    while math.gcd(multiplier, num_rows) != 1:
        multiplier += 1
    return ranks * np.int64(multiplier) % np.int64(num_rows)


def draw_ids(count: int, num_rows: int, exponent: float, generator: np.random.Generator) -> _Ints:
    """Return IDs from 0 to ``num_rows`` - 1, ``[count]``.

    Args:
        count: number of IDs.
        num_rows: rows of the table; at most 2³¹ of them are drawn.
        exponent: exponent of Zipf's law; 0 draws uniformly.
        generator: source of random numbers.
    """
    num_rows = min(max(num_rows, 1), _MOST_ROWS)
    if not exponent:
        return generator.integers(0, num_rows, count, np.int64)
    return scatter(Zipf(num_rows, exponent).draw(count, generator) - 1, num_rows)


def _expm1_ratio(x: _Floats) -> _Floats:
    """Return ``(exp(x) - 1) / x``, and 1 at 0."""
    safe = np.where(np.abs(x) > 1e-8, x, 1.0)
    ratio: _Floats = np.where(np.abs(x) > 1e-8, np.expm1(safe) / safe, 1.0 + x / 2)
    return ratio


def _log1p_ratio(x: _Floats) -> _Floats:
    """Return ``log(1 + x) / x``, and 1 at 0."""
    safe = np.where(np.abs(x) > 1e-8, x, 1.0)
    ratio: _Floats = np.where(np.abs(x) > 1e-8, np.log1p(safe) / safe, 1.0 - x / 2)
    return ratio
