"""The search for the highest rate, on servers that are formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from serve.bench.figures import Verdict
from serve.bench.search import find_rate


def _limited(limit_per_s: float, asked: list[float]) -> Callable[[float], Verdict]:
    def measure(rate_per_s: float) -> Verdict:
        asked.append(rate_per_s)
        return Verdict.OK if rate_per_s <= limit_per_s else Verdict.SLOW

    return measure


@pytest.mark.parametrize("limit_per_s", [3.0, 77.0, 100.0, 1234.5, 90_000.0])
@pytest.mark.parametrize("precision", [0.02, 0.1])
def test_the_limit_is_found(limit_per_s: float, precision: float) -> None:
    asked: list[float] = []
    found = find_rate(_limited(limit_per_s, asked), 100.0, precision=precision)
    assert found.rate_per_s is not None
    assert found.failing_per_s is not None
    assert found.rate_per_s <= limit_per_s < found.failing_per_s
    assert found.failing_per_s - found.rate_per_s <= precision * found.rate_per_s
    assert (found.limit, found.is_settled) == (Verdict.SLOW, True)
    # Both sides of the border were looked at twice: with the same result there is no need of a third time.
    assert asked.count(found.rate_per_s) == asked.count(found.failing_per_s) == 2
    assert len(asked) <= 40


def test_a_server_that_fails_at_any_rate_ends_the_search() -> None:
    asked: list[float] = []
    found = find_rate(_limited(0.0, asked), 100.0)
    assert (found.rate_per_s, found.limit) == (None, Verdict.SLOW)
    assert not found.is_settled
    assert len(asked) == 7


def test_a_limit_that_is_never_reached_is_said_to_be_unknown() -> None:
    found = find_rate(_limited(float("inf"), []), 1.0, most_steps=10)
    assert (found.rate_per_s, found.failing_per_s, found.is_settled) == (2.0**9, None, False)


def test_one_slow_measurement_does_not_decide() -> None:
    asked: list[float] = []
    steady = _limited(1000.0, asked)

    def once_slow(rate_per_s: float) -> Verdict:
        verdict = steady(rate_per_s)
        return Verdict.SLOW if len(asked) == 2 else verdict

    found = find_rate(once_slow, 100.0, precision=0.05)
    assert found.rate_per_s is not None
    assert found.rate_per_s == pytest.approx(1000.0, rel=0.06)


def test_one_lucky_measurement_does_not_decide() -> None:
    asked: list[float] = []
    steady = _limited(130.0, asked)

    def once_lucky(rate_per_s: float) -> Verdict:
        verdict = steady(rate_per_s)
        return Verdict.OK if len(asked) == 2 else verdict

    found = find_rate(once_lucky, 100.0, precision=0.05)
    assert found.rate_per_s == pytest.approx(130.0, rel=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_noise_at_the_border_moves_the_answer_by_little(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def noisy(rate_per_s: float) -> Verdict:
        return Verdict.OK if rate_per_s <= 500.0 * rng.normal(1.0, 0.03) else Verdict.SLOW

    found = find_rate(noisy, 40.0, precision=0.05)
    assert found.rate_per_s == pytest.approx(500.0, rel=0.15)


def test_the_reason_is_the_failing_sides() -> None:
    def measure(rate_per_s: float) -> Verdict:
        return Verdict.OK if rate_per_s < 300 else Verdict.LATE if rate_per_s < 350 else Verdict.FAILED

    assert find_rate(measure, 100.0, precision=0.05).limit is Verdict.LATE
