"""Commands under a small limit of address space, and paths that are not UTF-8: one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ODD = os.fsdecode(b"\xff")


#: A command line of each program whose module imports no torch.
_LIGHT = {
    "predict": ("127.0.0.1:1", "--random"),
    "admin": ("127.0.0.1:1", "list"),
    "bench": ("127.0.0.1:1",),
}


def run(*words: str, limit_kb: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *words]
    if words[0] in _LIGHT:
        code = f"import sys; from serve.commands import {words[0]} as run; sys.exit(run(sys.argv[1:]))"
        command = [sys.executable, "-c", code, *words[1:]]
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


@pytest.mark.parametrize("limit_kb", [100_000, 130_000, 180_000, 300_000])
@pytest.mark.parametrize("program", _LIGHT)
def test_too_little_for_a_client_is_one_line(program: str, limit_kb: int) -> None:
    ended = run(program, *_LIGHT[program], limit_kb=limit_kb)
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"recsys-{program}: out of memory: this process may have")
    assert ended.returncode == 2


def test_scoring_a_table_needs_room_for_torch(tmp_path: Path) -> None:
    ended = run("predict", str(tmp_path), "--data", "t.csv", "--out", "o.csv", limit_kb=600_000)
    (line,) = ended.stderr.splitlines()
    assert line.startswith("recsys-predict: out of memory: this process may have")
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("serve.app", f"{_ODD}.artifact"),
        ("serve.profiler", f"{_ODD}.artifact"),
        ("serve.tools.predict", f"{_ODD}.artifact", "--data", "t.csv", "--out", "o.csv"),
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
