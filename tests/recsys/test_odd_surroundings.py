"""Commands under a small limit of address space, and paths that are not UTF-8: one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ODD = os.fsdecode(b"\xff")


def run(*words: str, limit_kb: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    if limit_kb is not None:
        command = ["bash", "-c", f'ulimit -v {limit_kb}; exec "$@"', "bash", *command]
    return subprocess.run(
        command, capture_output=True, text=True, errors="surrogateescape", timeout=300, check=False
    )


@pytest.mark.parametrize("limit_kb", [200_000, 500_000, 700_000])
@pytest.mark.parametrize("module", ["serve.app", "serve.profiler", "export", "recsys.data"])
def test_too_little_address_space_is_one_line(module: str, limit_kb: int) -> None:
    ended = run(module, "missing", limit_kb=limit_kb)
    (line,) = ended.stderr.splitlines()
    assert "of address space; raise it (ulimit -v unlimited)" in line
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("serve.app", f"{_ODD}.artifact"),
        ("serve.profiler", f"{_ODD}.artifact"),
        ("serve.tools.predict", f"{_ODD}.artifact", "--input", "t.csv", "--output", "o.csv"),
        ("serve.tools.predict", f"{_ODD}:1", "--random"),
        ("serve.app", "--config", f"{_ODD}.toml"),
    ],
)
def test_paths_that_are_not_utf8_are_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / f"{_ODD}.artifact").mkdir()
    (tmp_path / f"{_ODD}.toml").write_text("port = 0\n")
    words = tuple(
        str(tmp_path / word) if word.startswith(_ODD) and ":" not in word else word for word in words
    )
    ended = run(*words)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("recsys-")
    assert ended.returncode in (1, 2)
