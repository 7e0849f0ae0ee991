"""The hourly example: a delta under load, no failed request, and a better AUC after it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_hours(tmp_path: Path, programs: Path) -> None:
    command = [programs / "python", "examples/hourly.py", "--dir", str(tmp_path / "hourly"), "--json"]
    done = subprocess.run(
        [*command, "--hours", "2", "--rows", "6000", "--pause-s", "0.02"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert [hour["hour"] for hour in result["hours"]] == [1, 2]
    assert all(hour["after"] > hour["before"] for hour in result["hours"])
    assert result["failed"] == 0
    assert result["answered"] > 0
