"""Histograms of latencies with buckets of equal relative width, in total and over time, in bounded memory.

As in HdrHistogram, a value of at most 8 significant bits has its own bucket; of larger values the first 8
bits count. So a bucket's width is at most 1/128 of its values, and the error of its middle at most 1/256
(0.39 %). The range from a nanosecond to an hour has fewer than 4,600 buckets, of which only those in use are
stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

_SIGNIFICANT_BITS = 8
_HALF = 1 << (_SIGNIFICANT_BITS - 1)
#: More intervals than this are merged in pairs, so that long runs take no more memory than short ones.
MOST_INTERVALS = 240
#: The reported quantiles.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def bucket(value_ns: int) -> int:
    """Return the number of a value's bucket: ascending with the value, without gaps."""
    shift = max(value_ns.bit_length() - _SIGNIFICANT_BITS, 0)
    return shift * _HALF + (value_ns >> shift)


def bucket_bounds(index: int) -> tuple[int, int]:
    """Return the least value of a bucket and of the next one, in nanoseconds."""
    shift = max(index // _HALF - 1, 0)
    least = (index - shift * _HALF) << shift
    return least, least + (1 << shift)


@dataclass(slots=True)
class Latencies:
    """A histogram of durations.

    Attributes:
        counts: durations by bucket.
        sum_ns: exact sum of all durations.
        max_ns: the longest duration, exact.
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
        """Add all that another histogram holds."""
        for index, count in other.counts.items():
            self.counts[index] = self.counts.get(index, 0) + count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def quantiles_ns(self, quantiles: Sequence[float]) -> list[float]:
        """Return for each quantile the least duration that this share does not exceed; NaN without durations.

        Args:
            quantiles: ascending, each above 0 and at most 1.
        """
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
        """Return the share of durations above a bound, to the precision of a bucket; 0 without durations."""
        limit = bucket(max(int(seconds * 1e9), 0))
        above = sum(count for index, count in self.counts.items() if index > limit)
        return above / max(len(self), 1)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bucket's upper bound in seconds with the number of durations up to it, ascending."""
        seen = 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            yield bucket_bounds(index)[1] * 1e-9, seen

    def figures_ms(self) -> dict[str, float | None]:
        """Return quantiles, maximum and mean in milliseconds; None each if there is no duration."""
        total = len(self)
        if not total:
            return dict.fromkeys([*QUANTILES, "max", "mean"])
        values = [value_ns * 1e-6 for value_ns in self.quantiles_ns(list(QUANTILES.values()))]
        ends = {"max": self.max_ns * 1e-6, "mean": self.sum_ns / total * 1e-6}
        return {**dict(zip(QUANTILES, values, strict=True)), **ends}

    def to_json(self) -> list[list[Any]]:
        """Return ``[upper bound in ms, count]`` of each bucket that was hit, ascending."""
        return [[bucket_bounds(index)[1] * 1e-6, self.counts[index]] for index in sorted(self.counts)]

    def _middle_ns(self, index: int) -> float:
        """Return the duration that stands for a bucket; at most the longest that was added."""
        least, end = bucket_bounds(index)
        return min((least + end - 1) / 2, self.max_ns)


def _rank(quantile: float | None, total: int) -> int | None:
    return None if quantile is None else max(math.ceil(quantile * total), 1)


@dataclass(slots=True)
class Interval:
    """Requests that ended in one interval."""

    latencies: Latencies = field(default_factory=Latencies)
    num_failed: int = 0

    def merge(self, other: Interval) -> None:
        """Add what another interval holds."""
        self.latencies.merge(other.latencies)
        self.num_failed += other.num_failed


@dataclass(slots=True)
class Series:
    """Answers by time of arrival.

    Attributes:
        width_s: width of each interval: a power of two.
        intervals: intervals by number, from the start of the measured time.
    """

    width_s: int = 1
    intervals: dict[int, Interval] = field(default_factory=dict)

    def add(self, at_s: float, seconds: float | None) -> None:
        """Count an answer.

        Args:
            at_s: seconds from the start of the measured time.
            seconds: latency of the request; None if it failed.
        """
        number = int(at_s // self.width_s)
        while number >= MOST_INTERVALS:
            self._widen()
            number = int(at_s // self.width_s)
        interval = self.intervals.setdefault(number, Interval())
        if seconds is None:
            interval.num_failed += 1
        else:
            interval.latencies.add(seconds)

    def merge(self, other: Series) -> None:
        """Add what another series holds; the coarser of the two widths stays."""
        while self.width_s < other.width_s:
            self._widen()
        for number, interval in other.intervals.items():
            here = number * other.width_s // self.width_s
            self.intervals.setdefault(here, Interval()).merge(interval)

    def points(self, duration_s: float) -> Iterator[dict[str, Any]]:
        """Yield one object for each interval of the measured time.

        Args:
            duration_s: measured time; answers that came later are left out.
        """
        for number in range(MOST_INTERVALS):
            start_s = number * self.width_s
            width_s = min(self.width_s, duration_s - start_s)
            if width_s <= 0:
                return
            if width_s < self.width_s and number and width_s < self.width_s / 2:
                return  # too short for figures
            interval = self.intervals.get(number, Interval())
            figures = interval.latencies.figures_ms()
            yield {
                "at_s": start_s,
                "width_s": width_s,
                "requests_per_s": len(interval.latencies) / width_s,
                "failed_per_s": interval.num_failed / width_s,
                "p50_ms": figures["p50"],
                "p99_ms": figures["p99"],
            }

    def _widen(self) -> None:
        old, self.intervals = self.intervals, {}
        self.width_s *= 2
        for number, interval in old.items():
            self.intervals.setdefault(number // 2, Interval()).merge(interval)
