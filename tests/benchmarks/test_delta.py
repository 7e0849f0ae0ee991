"""The benchmark of deltas runs and finds its rows; nothing is said about speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import delta, touched

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_rows_arrive(report_of: Callable[..., dict[str, Any]]) -> None:
    results = report_of(delta.main, "--rows", "500", "--changed", "1,50", "--rounds", "2")["results"]
    assert [result["num_rows"] for result in results] == [1, 50]
    assert all(
        result[name] > 0 for result in results for name in ("prepare_s", "apply_s", "revert_s", "reload_s")
    )


def test_deltas_of_touched_rows_are_those_of_all(report_of: Callable[..., dict[str, Any]]) -> None:
    results = report_of(touched.main, "--rows", "3000", "--touched", "20")["results"]
    assert set(results) == {"touched", "all floats", "every row"}
