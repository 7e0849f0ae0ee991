"""Latencies counted in buckets of equal relative width: bounded memory, however many there are.

As HdrHistogram does it: a value of at most 8 significant bits has a bucket of its own; of a larger one the first 8
bits are kept. So a bucket is at most 1/128 of its values wide, and its middle, which stands for them, is at most
1/256 (0.39 %) off. A nanosecond to an hour takes under 4,600 buckets, of which those that were hit are stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_SIGNIFICANT_BITS = 8
_HALF = 1 << (_SIGNIFICANT_BITS - 1)
#: What is reported of every distribution.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def bucket(value_ns: int) -> int:
    """The number of a value's bucket: ascending with the value, without gaps."""
    shift = max(value_ns.bit_length() - _SIGNIFICANT_BITS, 0)
    return shift * _HALF + (value_ns >> shift)


def bucket_bounds(index: int) -> tuple[int, int]:
    """The least value of a bucket, and the least above it, in nanoseconds."""
    shift = max(index // _HALF - 1, 0)
    least = (index - shift * _HALF) << shift
    return least, least + (1 << shift)


@dataclass(slots=True)
class Latencies:
    """A histogram of durations.

    Attributes:
        counts: by bucket.
        sum_ns: of all durations, exact.
        max_ns: the longest, exact.
    """

    counts: dict[int, int] = field(default_factory=dict)
    sum_ns: int = 0
    max_ns: int = 0

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one (clocks of two processes) counts as 0."""
        value_ns = max(int(seconds * 1e9), 0)
        index = bucket(value_ns)
        self.counts[index] = self.counts.get(index, 0) + 1
        self.sum_ns += value_ns
        self.max_ns = max(self.max_ns, value_ns)

    def merge(self, other: Latencies) -> None:
        """Add all that another one holds; loses nothing."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def quantiles_s(self, quantiles: Sequence[float]) -> list[float]:
        """For each quantile the smallest duration that at least this share does not exceed; NaN where none was added.

        Args:
            quantiles: ascending, each above 0 and at most 1.
        """
        return [value_ns * 1e-9 for value_ns in self._quantiles_ns(quantiles)]

    def _quantiles_ns(self, quantiles: Sequence[float]) -> list[float]:
        total = len(self)
        if not total:
            return [math.nan] * len(quantiles)
        found: list[float] = []
        wanted = iter(quantiles)
        rank = _rank(next(wanted, None), total)
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            while rank is not None and rank <= seen:
                found.append(self._middle_ns(index))
                rank = _rank(next(wanted, None), total)
        return found

    def share_above(self, seconds: float) -> float:
        """The share of durations above a bound, as far as buckets can tell; 0 where none was added."""
        limit = bucket(max(int(seconds * 1e9), 0))
        above = sum(count for index, count in self.counts.items() if index > limit)
        return above / max(len(self), 1)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bucket's upper bound in seconds with the number of durations up to there, ascending."""
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            yield bucket_bounds(index)[1] * 1e-9, seen

    def figures_ms(self) -> dict[str, float | None]:
        """Quantiles, mean and maximum in milliseconds; None each where there is nothing."""
        total = len(self)
        if not total:
            return dict.fromkeys([*QUANTILES, "max", "mean"])
        values = [value_ns * 1e-6 for value_ns in self._quantiles_ns(list(QUANTILES.values()))]
        ends = {"max": self.max_ns * 1e-6, "mean": self.sum_ns / total * 1e-6}
        return {**dict(zip(QUANTILES, values, strict=True)), **ends}

    def to_json(self) -> list[list[Any]]:
        """``[upper bound in ms, count]`` of each bucket that was hit, ascending."""
        return [[bucket_bounds(index)[1] * 1e-6, self.counts[index]] for index in sorted(self.counts)]

    def _middle_ns(self, index: int) -> float:
        """What stands for a bucket; never above the longest that was added."""
        least, end = bucket_bounds(index)
        return min((least + end - 1) / 2, self.max_ns)


def _rank(quantile: float | None, total: int) -> int | None:
    return None if quantile is None else max(math.ceil(quantile * total), 1)
