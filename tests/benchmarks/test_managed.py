"""The benchmark of mappings runs and compares equals; nothing is said about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.managed", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["batch_size"] for result in results] == [1, 4]
    assert all(result[f"{name}, us"] > 0 for result in results for name in ("hash table", "searches"))
