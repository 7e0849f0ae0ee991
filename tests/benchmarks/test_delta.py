"""The benchmark of deltas runs and finds its rows; nothing is said about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_rows_arrive() -> None:
    options = ["--rows", "500", "--changed", "1,50", "--rounds", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.delta", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [result["num_rows"] for result in results] == [1, 50]
    assert all(
        result[name] > 0 for result in results for name in ("prepare_s", "apply_s", "revert_s", "reload_s")
    )


def test_deltas_of_touched_rows_are_those_of_all() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.touched",
            "--rows",
            "3000",
            "--touched",
            "20",
            "--json",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["results"]) == {"touched", "all floats", "every row"}
