"""Ratios of turns have an interval, which is narrow where the turns agree."""

from __future__ import annotations

from benchmarks.measure.ratios import Ratio


def test_turns_that_agree_leave_nothing_open() -> None:
    assert Ratio.of([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]) == (2.0, 2.0, 2.0)


def test_turns_that_differ_leave_their_spread_open() -> None:
    found = Ratio.of([1.0, 1.1, 0.9, 1.3, 0.8], [1.0] * 5)
    assert found.median == 1.0
    assert 0.8 <= found.least < 1.0 < found.most <= 1.3
    assert str(found) == f"1.000 (90 %: {found.least:.3f} to {found.most:.3f})"
