"""recsys-serve --native: which server takes this process's place, with which arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve import cli, native
from tests.serve.spawned import ROOT

_FAKE = """\
#!/bin/sh
echo "pid $$"
for word in "$@"; do echo "<$word>"; done
echo "config $RECSYS_SERVE_CONFIG"
exit 7
"""


def _fake(path: Path, text: str = _FAKE, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a native server; returns a folder that is empty."""
    (tmp_path / "bin").mkdir()
    monkeypatch.delenv(native.ENVIRONMENT, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
    monkeypatch.setattr(native, "_ROOT", tmp_path / "root")
    monkeypatch.setattr(native, "_BUILT", tmp_path / "root" / "build" / "native" / native.PROGRAM)
    return tmp_path


def test_the_native_server_takes_the_place_with_all_other_arguments_unchanged(tmp_path: Path) -> None:
    fake = _fake(tmp_path / "server")
    arguments = ["some artifact", "--port", "0", "--native", "--host=::1", "--prot", "--models", "", "--help"]
    with subprocess.Popen(
        [sys.executable, "-m", "serve.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, "RECSYS_SERVER": str(fake), "RECSYS_SERVE_CONFIG": "serve.toml"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        out, _ = process.communicate(timeout=120)
    words = [word for word in arguments if word != "--native"]
    assert out.splitlines() == [f"pid {process.pid}", *(f"<{word}>" for word in words), "config serve.toml"]
    assert process.returncode == 7


def test_it_is_looked_for_beside_python_then_on_the_path_then_in_the_checkout(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.find_server() is None
    built = _fake(nowhere / "root" / "build" / "native" / native.PROGRAM)
    assert native.find_server() is None  # An installed package has no checkout around it.
    (nowhere / "root" / "cpp_client").mkdir()
    assert native.find_server() == built
    on_path = _fake(nowhere / "bin" / native.PROGRAM)
    assert native.find_server() == on_path
    beside = _fake(nowhere / "python" / native.PROGRAM)
    assert native.find_server() == beside
    beside.chmod(0o644)
    assert native.find_server() == on_path
    monkeypatch.setenv(native.ENVIRONMENT, "/some/where")
    assert native.find_server() == Path("/some/where")


@pytest.mark.usefixtures("nowhere")
def test_where_there_is_none_one_line_says_how_to_build_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["artifact", "--native"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("recsys-serve: --native: found no recsys-server beside ")
    assert "`make native`" in err
    assert "RECSYS_SERVER" in err


@pytest.mark.parametrize(
    ("mode", "reason"), [(None, "No such file or directory"), (0o644, "Permission denied")]
)
def test_one_that_is_named_and_cannot_be_run_is_named_in_the_error(
    mode: int | None,
    reason: str,
    nowhere: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = nowhere / "server"
    if mode is not None:
        _fake(path, mode=mode)
    _fake(nowhere / "bin" / native.PROGRAM)  # What the environment names is meant, and nothing else.
    monkeypatch.setenv(native.ENVIRONMENT, str(path))
    assert cli.main(["--native"]) == 2
    err = capsys.readouterr().err
    assert f"recsys-serve: --native: cannot run {str(path)!r}: {reason}" in err
    assert "`make native`" in err
