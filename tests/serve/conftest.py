from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.client import Client
from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer
from tests.support.serve.models import export_small
from tests.support.serve.repositories import add_version


@pytest.fixture(scope="session")
def artifact_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of the small model, made by the exporter."""
    path = tmp_path_factory.mktemp("artifacts") / "small"
    export_small(path)
    return path


@pytest.fixture(scope="session")
def model(artifact_path: Path) -> LoadedArtifact:
    """The small artifact: every kind of input that the wire knows."""
    return load_artifact(artifact_path)


@pytest.fixture(scope="session")
def artifacts(artifact_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Versions 1 to 4 of one model, each with weights of its own."""
    folder = tmp_path_factory.mktemp("versions")
    paths = {"1": artifact_path}
    for seed in (2, 3, 4):
        paths[str(seed)] = folder / str(seed)
        export_small(folder / str(seed), seed)
    return paths


@pytest.fixture
def root(tmp_path: Path, artifacts: dict[str, Path]) -> Path:
    """A repository with the first version."""
    add_version(tmp_path / "models", "small", "1", artifacts["1"])
    return tmp_path / "models"


@pytest.fixture(scope="module")
def live(model: ServedModel) -> Iterator[LiveServer]:
    """A server with default limits, shared by the tests of a file."""
    with LiveServer(model) as server:
        yield server


@pytest.fixture(scope="module")
def client(live: LiveServer) -> Iterator[Client]:
    with Client(live.address, timeout_s=30) as made:
        yield made


@pytest.fixture(scope="session")
def server_command(artifact_path: Path) -> list[str]:
    """Starts recsys-serve on the small artifact, on ports that the system chooses."""
    ports = ["--port", "0", "--metrics-port", "0"]
    return [sys.executable, "-m", "serve.app.cli", str(artifact_path), *ports, "--json"]
