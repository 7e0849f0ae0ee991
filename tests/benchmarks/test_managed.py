"""The benchmarks of mappings run and compare equals; nothing is said about speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import managed
from benchmarks.trainers import mappings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_the_lookups_agree(report_of: Callable[..., dict[str, Any]]) -> None:
    sizes = ["--tables", "3", "--ids", "50", "--batch-sizes", "1,4"]
    results = report_of(managed.main, *sizes, "--rounds", "2", "--turn-s", "0.01")["results"]
    assert [result["batch_size"] for result in results] == [1, 4]
    assert all(result[f"{name}, us"] > 0 for result in results for name in ("hash table", "searches"))


def test_a_sharded_mapping_takes_a_part_of_the_memory(report_of: Callable[..., dict[str, Any]]) -> None:
    sizes = ["--rows", "6400", "--batch-size", "8", "--interval", "2", "--intervals", "1", "--buckets", "4"]
    replicated, sharded = report_of(mappings.main, "--ranks", "2", *sizes)["results"]
    column = "mapping of a rank, MB"
    assert (replicated["mapping"], sharded["mapping"]) == ("replicated", "sharded")
    assert (replicated[column], sharded[column]) == (0.2, 0.1)
