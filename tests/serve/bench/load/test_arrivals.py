"""When requests are due."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from serve.bench.load.drive import poisson, replayed


def _times(rate_per_s: float, seed: int, count: int) -> np.ndarray:
    return np.array(list(islice(poisson(rate_per_s, np.random.default_rng(seed)), count)))


def test_gaps_are_exponential() -> None:
    gaps = np.diff(_times(200.0, 0, 50_001))
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.03)
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(gaps, quantile) == pytest.approx(-np.log(1 - quantile) / 200, rel=0.05)


def test_counts_of_a_second_vary_as_a_poisson_process_does() -> None:
    times = _times(100.0, 1, 100_000)
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.mean() == pytest.approx(100, rel=0.02)
    assert counts.var() == pytest.approx(100, rel=0.15)


def test_processes_add_up_to_the_whole_rate() -> None:
    both = np.sort(np.concatenate([_times(50.0, seed, 20_000) for seed in (2, 3)]))
    gaps = np.diff(both[both < 390])
    assert gaps.mean() == pytest.approx(1 / 100, rel=0.02)
    assert gaps.std() == pytest.approx(1 / 100, rel=0.03)


def test_the_same_seed_gives_the_same_times() -> None:
    np.testing.assert_array_equal(_times(10.0, 4, 3000), _times(10.0, 4, 3000))
    assert (_times(10.0, 4, 3000) != _times(10.0, 5, 3000)).all()


def test_a_recording_is_played_at_its_speed() -> None:
    assert list(replayed([0.0, 1.0, 4.0], 2.0)) == [0.0, 0.5, 2.0]
