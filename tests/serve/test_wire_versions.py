"""The generated code works with the oldest protobuf and grpcio that pyproject.toml admits, and with the newest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serve.client import Client
from tests.support.serve.children.wire import PACKAGES, messages
from tests.support.serve.spawned import Spawned, spawned

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
_DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
# What pip says where no package index can be reached.
_OFFLINE = ("No matching distribution found", "Could not find a version", "Connection", "Temporary failure")


def _requirements(end: str) -> list[str]:
    found = {line: re.fullmatch(r"([a-z-]+)>=([0-9.]+)(,<[0-9]+)?", line) for line in _DEPENDENCIES}
    bounds = {match[1]: match for match in found.values() if match is not None and match[1] in PACKAGES}
    assert set(bounds) == set(PACKAGES)
    if end == "oldest":
        return [f"{name}=={match[2]}" for name, match in bounds.items()]
    return [line for line, match in found.items() if match is not None and match[1] in PACKAGES]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Packages of other versions, before those of this environment.

    Attributes:
        versions: what was asked for: ``oldest`` or ``newest``.
        folder: where they are installed.
    """

    versions: str
    folder: Path

    @property
    def path(self) -> str:
        return os.pathsep.join([str(self.folder), str(ROOT)])

    def run(self, *words: str) -> str:
        """Return what ``python -m`` prints with these packages."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": self.path},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=["oldest", "newest"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--target", str(folder)]
    done = subprocess.run(
        [*command, *_requirements(request.param)], capture_output=True, text=True, check=False
    )
    if done.returncode and any(text in done.stderr for text in _OFFLINE):
        pytest.skip(f"pip finds no packages: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return Environment(versions=request.param, folder=folder)


@pytest.fixture(scope="module")
def server(
    environment: Environment, server_command: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Spawned]:
    command = ["env", f"PYTHONPATH={environment.path}", *server_command]
    with spawned(command, tmp_path_factory.mktemp("server") / "log") as started:
        yield started


def test_messages_are_the_same_bytes(environment: Environment) -> None:
    said: dict[str, Any] = json.loads(environment.run("tests.support.serve.children.wire"))
    installed = {f"{name}=={number}" for name, number in said["versions"].items()}
    if environment.versions == "oldest":
        assert installed == set(_requirements("oldest"))
    else:
        assert installed.isdisjoint(_requirements("oldest"))
    assert said["messages"] == messages()
    assert len(said["messages"]) > 60


def test_calls_are_answered_and_sent(environment: Environment, server: Spawned) -> None:
    outputs = json.loads(environment.run("serve.tools.predict", server.address, "--random", "--json"))
    with Client(server.address, timeout_s=30) as client:
        signature = client.metadata()
    assert set(outputs) == {output.name for output in signature.outputs}
    service = "recsys.v1.PredictionService"
    assert environment.run("serve.probe", server.address, "--service", service) == "SERVING\n"
