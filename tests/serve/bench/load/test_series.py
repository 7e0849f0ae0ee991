"""Counts over time, in bounded memory."""

from __future__ import annotations

import pytest

from serve.bench.load.latencies import MOST_INTERVALS, Series


def test_answers_are_counted_by_the_second() -> None:
    series = Series()
    for at_s in (0.1, 0.9, 1.5, 2.0):
        series.add(at_s, 0.01)
    series.add(1.6, None)
    points = list(series.points(3.0))
    assert [point["requests_per_s"] for point in points] == [2, 1, 1]
    assert [point["failed_per_s"] for point in points] == [0, 1, 0]
    assert points[0]["p50_ms"] == pytest.approx(10, rel=0.004)


def test_an_interval_without_answers_says_so() -> None:
    series = Series()
    series.add(2.5, 0.01)
    points = list(series.points(3.0))
    assert [point["requests_per_s"] for point in points] == [0, 0, 1]
    assert points[0]["p99_ms"] is None


def test_a_last_interval_that_is_cut_counts_by_its_length() -> None:
    series = Series()
    series.add(1.2, 0.01)
    assert [point["requests_per_s"] for point in series.points(1.5)] == [0, 2]
    assert len(list(series.points(1.25))) == 1


def test_long_runs_take_as_much_memory_as_short_ones() -> None:
    series = Series()
    for second in range(9_600):
        series.add(second + 0.5, 0.01)
    assert len(series.intervals) <= MOST_INTERVALS
    points = list(series.points(9_600.0))
    assert sum(point["requests_per_s"] * point["width_s"] for point in points) == pytest.approx(9_600)


def test_series_of_processes_add_up_whatever_their_widths() -> None:
    fine, coarse = Series(), Series()
    for second in range(100):
        fine.add(second + 0.5, 0.01)
    for second in range(MOST_INTERVALS + 60):
        coarse.add(second + 0.5, 0.01)
    for first, second in ((fine, coarse), (coarse, fine)):
        merged = Series()
        merged.merge(first)
        merged.merge(second)
        assert merged.width_s == 2
        counts = {number: len(interval.latencies) for number, interval in merged.intervals.items()}
        assert counts[0] == 4
        assert sum(counts.values()) == 100 + MOST_INTERVALS + 60
