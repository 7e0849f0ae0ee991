"""Throughput and latency over time, second by second, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from serve.bench.latencies import Latencies

#: More intervals than that are merged in pairs, so that a run of a day takes no more memory than one of minutes.
MOST_INTERVALS = 240


@dataclass(slots=True)
class Interval:
    """What ended in one interval."""

    latencies: Latencies = field(default_factory=Latencies)
    num_failed: int = 0

    def merge(self, other: Interval) -> None:
        """Add what another interval holds."""
        self.latencies.merge(other.latencies)
        self.num_failed += other.num_failed


@dataclass(slots=True)
class Series:
    """Answers by the time at which they came.

    Attributes:
        width_s: of each interval: a power of two of seconds.
        intervals: by number, from the start of the measured time.
    """

    width_s: int = 1
    intervals: dict[int, Interval] = field(default_factory=dict)

    def add(self, at_s: float, seconds: float | None) -> None:
        """Count an answer.

        Args:
            at_s: when it came, after the start of the measured time.
            seconds: its latency; None if it failed.
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
        """Add what another one holds; the coarser of the two widths stays."""
        while self.width_s < other.width_s:
            self._widen()
        for number, interval in other.intervals.items():
            here = number * other.width_s // self.width_s
            self.intervals.setdefault(here, Interval()).merge(interval)

    def points(self, duration_s: float) -> Iterator[dict[str, Any]]:
        """One object for each interval that lies in the measured time.

        Args:
            duration_s: the measured time; what came after it (answers to late requests) is left out.
        """
        for number in range(MOST_INTERVALS):
            start_s = number * self.width_s
            width_s = min(self.width_s, duration_s - start_s)
            if width_s <= 0:
                return
            if width_s < self.width_s and number and width_s < self.width_s / 2:
                return  # A rest too short to say anything.
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
