"""An export's peak memory: the float model and one table, not a second copy of the model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recsys.artifact.parts import ROWS_NAME
from tests.support.children.memory import LARGEST_TABLE_BYTES, MODEL_BYTES, NUM_ROWS
from tests.support.fork_server import run_python

ROOT = Path(__file__).resolve().parents[3]


def _peak_bytes(mode: str, path: Path) -> int:
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.children.memory", mode, str(path)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(told or 0)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory_stays_under_the_float_model_and_one_table(tmp_path: Path) -> None:
    assert run_python("-m", "tests.support.children.memory", "write", str(tmp_path)).returncode == 0
    whole_model = _peak_bytes("load", tmp_path)
    assert whole_model > MODEL_BYTES
    peak = _peak_bytes("export", tmp_path)
    assert (tmp_path / "export" / ROWS_NAME).stat().st_size >= sum(NUM_ROWS) * 68
    assert peak < whole_model + LARGEST_TABLE_BYTES
