"""Signals to commands that still import packages, and a server whose standard output cannot be written to."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import recsys
from serve.client import Client
from serve.client.errors import UnavailableError

ROOT = Path(recsys.__file__).resolve().parent.parent
# In place of torch: says that it is being imported, and takes its time.
SLOW_TORCH = """
import pathlib, time
pathlib.Path(__file__).with_name("importing").touch()
time.sleep(120)
"""

ARGUMENTS = {
    "serve.app": ["model.artifact"],
    "export": ["model.pt"],
    "recsys.train": ["--data", "synthetic", "--out", "model.pt"],
}


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder with a torch whose import does not end, and what looks like an artifact until torch reads it."""
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    (tmp_path / "model.artifact").mkdir()
    (tmp_path / "model.artifact" / "manifest.json").write_text("{}")
    return tmp_path


def started(slow: Path, module: str, *before: str) -> subprocess.Popen[str]:
    """A command whose arguments are right, so that it imports torch."""
    process = subprocess.Popen(
        [*before, sys.executable, "-m", module, *ARGUMENTS[module]],
        cwd=slow,
        env={**os.environ, "PYTHONPATH": f"{slow}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(3000):
        if (slow / "importing").exists():
            return process
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.kill()
    raise AssertionError("torch was not imported")


@pytest.mark.parametrize("module", ARGUMENTS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_commands_that_start_end_at_once(slow: Path, module: str, number: signal.Signals) -> None:
    process = started(slow, module)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert errors.endswith(f": ended by {number.name} while it started\n")
    assert "Traceback" not in errors


def test_a_server_that_starts_outlives_sighup(slow: Path) -> None:
    process = started(slow, "serve.app")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def _child_of(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def test_the_first_process_of_a_container_ends_too(slow: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-p", "-f", "true"], check=False).returncode
    ):
        pytest.skip("this system lets us make no namespace of processes")
    process = started(slow, "serve.app", "unshare", "-p", "-f")
    os.kill(_child_of(process), signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors == "recsys-serve: ended by SIGTERM while it started\n"


def _version(client: Client, process: subprocess.Popen[str]) -> str:
    while process.poll() is None:
        try:
            return client.metadata().version
        except UnavailableError:
            time.sleep(0.1)
    return ""


@pytest.fixture(params=["closed", "a full disk", "a pipe that nobody reads"])
def output(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """A standard output that cannot be written to; None for none."""
    if request.param == "closed":
        yield None
    elif request.param == "a full disk":
        with Path("/dev/full").open("wb") as full:
            yield full.fileno()
    else:
        reading, writing = os.pipe()
        os.close(reading)
        yield writing
        os.close(writing)


def test_the_ready_line_is_not_worth_the_service(
    output: int | None, artifacts: dict[str, Path], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "serve.app", str(artifacts["1"]), "--port", str(port), "--no-metrics"]
    if output is None:
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    log = tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "--engine", "reference"], cwd=ROOT, stdout=output, stderr=errors, text=True
        ) as process,
    ):
        try:
            with Client(f"127.0.0.1:{port}", timeout_s=60) as client:
                assert _version(client, process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    text = log.read_text()
    assert "Traceback" not in text
    assert text.count("cannot write to standard output") == 2
    assert "ready: model=small version=1 target=cpu" in text
