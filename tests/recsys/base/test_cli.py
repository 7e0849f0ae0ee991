"""Long steps of commands say what they do."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recsys.base.terminal import announced


class _Lines(io.StringIO):
    """Knows when two lines have been written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two = threading.Event()

    def flush(self) -> None:
        super().flush()
        if self.getvalue().count("\n") >= 2:
            self.has_two.set()


def test_a_long_step_is_announced_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines()
    monkeypatch.setattr("sys.stderr", lines)
    with announced("recsys-data", "looking at a.csv", after_s=0.001, every_s=0.001):
        assert lines.has_two.wait(timeout=30)
    written = lines.getvalue().splitlines()
    assert set(written) == {"recsys-data: looking at a.csv (0 s)"}


def test_a_short_step_is_silent_and_its_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines()
    monkeypatch.setattr("sys.stderr", lines)
    with pytest.raises(ValueError, match="wrong"), announced("recsys-data", "looking at a.csv", after_s=60):
        raise ValueError("wrong")
    assert lines.getvalue() == ""


def test_a_command_says_warnings_of_data_in_a_line(tmp_path: Path) -> None:
    rows = "".join(f"{i % 2},s{i % 3},\"['a{i % 2}', 'b']\"\n" for i in range(60))
    (tmp_path / "a.csv").write_text(f"click,site,tags\n{rows}")
    table = {"name": "t", "features": ["tags"], "rows": 9, "ids": "hash", "strings": "xxh64"}
    (tmp_path / "s.json").write_text(json.dumps({"label": "click", "tables": [table]}))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "recsys.train",
            "--data",
            "a.csv",
            "--schema",
            "s.json",
            "--out",
            "m.pt",
            "--json",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    warned = [line for line in done.stderr.splitlines() if "warning" in line]
    assert len(warned) == 1
    assert warned[0].startswith("recsys-train: warning: column 'tags': got texts such as \"['a0', 'b']\"")
