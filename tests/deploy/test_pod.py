"""The pod's container as far as a process goes: its arguments, its settings, its probes, its end."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import BASE, ROOT, load
from tests.support.serve.models import export_small
from tests.support.serve.spawned import Spawned, spawned


@pytest.fixture(scope="module")
def container() -> dict[str, Any]:
    (only,) = load(BASE / "deployment.yaml")["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.fixture
def running(container: dict[str, Any], tmp_path: Path) -> Iterator[Spawned]:
    """The server with the Deployment's arguments, where volumes are folders and ports are free ones."""
    export_small(tmp_path / "models" / "small" / "1")
    token = tmp_path / "token"
    token.write_text("x" * 64)
    token.chmod(0o440)
    mounted = [argument.replace("/etc/recsys-serve/config", str(BASE)) for argument in container["args"]]
    here = [f"--repository={tmp_path / 'models'}", f"--admin-token-file={token}"]
    ports = ["--host=127.0.0.1", "--admin-host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-port=0"]
    command = [sys.executable, "-m", "serve.app.cli", *mounted, *here, *ports, "--json"]
    with spawned(command, tmp_path / "log") as server:
        yield server


def ask(server: Spawned, *arguments: str) -> int:
    command = [sys.executable, "-m", "serve.probe", server.address, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=60, stdout=subprocess.DEVNULL).returncode


def test_probes_find_it_ready_and_it_drains_on_sigterm(container: dict[str, Any], running: Spawned) -> None:
    service = container["readinessProbe"]["grpc"]["service"]
    assert ask(running, f"--service={service}") == 0
    assert ask(running, *container["livenessProbe"]["exec"]["command"][4:]) == 0
    running.process.send_signal(signal.SIGTERM)
    code, last = running.finish()
    assert (code, last["event"], last["in_time"]) == (0, "stopped", True)
    assert ask(running, "--alive") == 1
