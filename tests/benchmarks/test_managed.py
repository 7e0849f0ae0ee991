"""The benchmarks of mappings run and compare equals; nothing is said about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def _run(module: str, *options: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return results


def test_the_lookups_agree() -> None:
    options = [
        "--tables",
        "3",
        "--ids",
        "50",
        "--batch-sizes",
        "1,4",
        "--rounds",
        "2",
        "--turn-s",
        "0.01",
        "--json",
    ]
    results = _run("benchmarks.managed", *options)
    assert [result["batch_size"] for result in results] == [1, 4]
    assert all(result[f"{name}, us"] > 0 for result in results for name in ("hash table", "searches"))


def test_a_sharded_mapping_takes_a_part_of_the_memory() -> None:
    sizes = ["--rows", "6400", "--batch-size", "8", "--interval", "2", "--intervals", "1", "--buckets", "4"]
    replicated, sharded = _run("benchmarks.trainers.mappings", "--ranks", "2", *sizes, "--json")
    column = "mapping of a rank, MB"
    assert (replicated["mapping"], sharded["mapping"]) == ("replicated", "sharded")
    assert (replicated[column], sharded[column]) == (0.2, 0.1)
