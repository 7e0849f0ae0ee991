"""The example of fresh rows: every new item reaches both servers, and what they answered can be trained on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_new_items_reach_all_servers(tmp_path: Path, programs: Path) -> None:
    command = [programs / "python", "examples/fresh.py", "--dir", str(tmp_path / "fresh"), "--json"]
    done = subprocess.run(
        [*command, "--seconds", "8", "--rows", "3000"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["served"] == result["new_items"] > 0
    assert result["trainer"]["published"]
    assert result["joined"]["auc"] > 0.5
