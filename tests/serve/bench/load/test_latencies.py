"""Histograms of latencies against numpy on the same values."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.bench.load.latencies import QUANTILES, Latencies, bucket, bucket_bounds

_WIDEST = 1 / 128


def _filled(seconds: np.ndarray) -> Latencies:
    made = Latencies()
    for value in seconds.tolist():
        made.add(value)
    return made


@given(st.integers(0, 1 << 62))
def test_a_value_lies_in_its_bucket_which_is_narrow(value_ns: int) -> None:
    least, end = bucket_bounds(bucket(value_ns))
    assert least <= value_ns < end
    assert end - least == 1 or (end - least) / least <= _WIDEST


def test_buckets_follow_each_other_without_gaps() -> None:
    bounds = [bucket_bounds(index) for index in range(6000)]
    assert bounds[0][0] == 0
    assert all(end == next_least for (_, end), (next_least, _) in pairwise(bounds))
    assert [bucket(least) for least, _ in bounds] == list(range(6000))


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_numpys_to_half_a_percent(seed: int) -> None:
    seconds = np.random.default_rng(seed).lognormal(-6, 1.5, 20_000)
    quantiles = list(QUANTILES.values())
    expected = np.quantile(seconds, quantiles, method="inverted_cdf")
    np.testing.assert_allclose(
        _filled(seconds).quantiles_ns(quantiles), np.multiply(expected, 1e9), rtol=0.004
    )


def test_mean_and_maximum_are_exact() -> None:
    figures = _filled(np.array([0.001, 0.002, 0.006])).figures_ms()
    assert figures["mean"] == pytest.approx(3.0, abs=1e-6)
    assert figures["max"] == pytest.approx(6.0, abs=1e-6)
    assert figures["p99.9"] <= figures["max"]


def test_a_million_latencies_take_no_more_than_their_buckets() -> None:
    made = _filled(np.random.default_rng(0).uniform(1e-6, 1e-3, 100_000))
    assert len(made) == 100_000
    assert len(made.counts) < 1500


def test_merging_loses_nothing() -> None:
    seconds = np.random.default_rng(1).exponential(0.01, 3000)
    together, parts = _filled(seconds), [_filled(part) for part in np.array_split(seconds, 3)]
    merged = Latencies()
    for part in parts:
        merged.merge(part)
    assert merged == together


def test_what_is_above_a_bound_is_counted() -> None:
    made = _filled(np.array([0.001] * 90 + [0.1] * 10))
    assert made.share_above(0.01) == pytest.approx(0.1)
    assert made.share_above(0.2) == 0.0
    assert Latencies().share_above(0.0) == 0.0


def test_nothing_has_no_figures() -> None:
    assert math.isnan(Latencies().quantiles_ns([0.5])[0])
    assert set(Latencies().figures_ms().values()) == {None}
    assert Latencies().to_json() == []


def test_a_clock_that_went_back_counts_as_zero() -> None:
    made = Latencies()
    made.add(-1.0)
    assert made.figures_ms()["max"] == 0.0


def test_json_has_each_bucket_once_and_in_order() -> None:
    data = _filled(np.random.default_rng(2).exponential(0.01, 500)).to_json()
    assert sum(count for _, count in data) == 500
    assert [upper for upper, _ in data] == sorted({upper for upper, _ in data})
