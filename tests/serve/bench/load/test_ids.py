"""IDs by Zipf's law, against its own formula; seeds are fixed, so that no test fails by chance."""

from __future__ import annotations

import numpy as np
import pytest

from serve.bench.load.ids import Zipf, draw_ids, scatter

_DRAWS = 200_000


@pytest.mark.parametrize("exponent", [0.3, 0.8, 0.999_999_999, 1.0, 1.05, 2.0, 5.0])
@pytest.mark.parametrize("num_rows", [1, 2, 7, 100])
def test_ranks_follow_zipfs_law(num_rows: int, exponent: float) -> None:
    ranks = Zipf(num_rows, exponent).draw(_DRAWS, np.random.default_rng(0))
    counts = np.bincount(ranks, minlength=num_rows + 1)[1:]
    assert counts.sum() == _DRAWS
    weights = np.arange(1, num_rows + 1) ** -exponent
    expected = _DRAWS * weights / weights.sum()
    # Each count is binomial: five standard deviations, and one for counts near zero.
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1).all()


def test_large_tables_need_no_table_of_probabilities() -> None:
    num_rows, exponent = 1 << 31, 1.05
    ranks = Zipf(num_rows, exponent).draw(_DRAWS, np.random.default_rng(1))
    assert ranks.min() == 1
    assert ranks.max() <= num_rows
    # The sum of k ** -s over all ranks, by Euler and Maclaurin from the thousandth on.
    head = (np.arange(1, 1000) ** -exponent).sum()
    tail = (1000 ** (1 - exponent) - num_rows ** (1 - exponent)) / (exponent - 1) + 0.5 * 1000**-exponent
    for rank in (1, 2, 10):
        expected = _DRAWS * rank**-exponent / (head + tail)
        assert abs((ranks == rank).sum() - expected) <= 5 * np.sqrt(expected)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 10, 97, 1024, 99_991])
def test_scattering_is_a_permutation(num_rows: int) -> None:
    rows = scatter(np.arange(num_rows), num_rows)
    np.testing.assert_array_equal(np.sort(rows), np.arange(num_rows))


def test_the_most_wanted_rows_lie_far_apart() -> None:
    rows = np.sort(scatter(np.arange(100), 1_000_000))
    assert np.diff(rows).min() > 1000
    large = scatter(np.arange((1 << 31) - 5, 1 << 31), 1 << 31)
    assert ((large >= 0) & (large < 1 << 31)).all()


def test_ids_are_uniform_unless_asked_otherwise() -> None:
    ids = draw_ids(_DRAWS, 50, 0.0, np.random.default_rng(2))
    counts = np.bincount(ids, minlength=50)
    assert (np.abs(counts - _DRAWS / 50) <= 5 * np.sqrt(_DRAWS / 50)).all()


def test_skewed_ids_stay_in_the_table_and_ask_for_one_row_most() -> None:
    ids = draw_ids(_DRAWS, 1000, 1.05, np.random.default_rng(3))
    assert (ids >= 0).all()
    assert (ids < 1000).all()
    counts = np.sort(np.bincount(ids, minlength=1000))[::-1]
    assert counts[0] / counts[1] == pytest.approx(2**1.05, rel=0.05)


def test_a_table_without_rows_is_asked_for_row_zero() -> None:
    assert draw_ids(3, 0, 1.0, np.random.default_rng(0)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(("num_rows", "exponent"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, float("nan"))])
def test_what_is_no_law_is_refused(num_rows: int, exponent: float) -> None:
    with pytest.raises(ValueError, match="expected at least 1 row"):
        Zipf(num_rows, exponent)
