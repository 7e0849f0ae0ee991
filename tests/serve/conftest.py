from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from serve.client import Client
from serve.model import ServedModel
from tests.serve.live import LiveServer
from tests.serve.models import ServedSmallModel


@pytest.fixture(scope="session")
def model() -> ServedModel:
    """Every kind of input that the wire knows."""
    return ServedSmallModel()


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
def served(model: ServedModel) -> ServedModel:
    """What ``server_command`` serves, to be called directly."""
    return model


@pytest.fixture(scope="session")
def server_command() -> list[str]:
    """Starts a server in a process of its own, on ports that the system chooses."""
    return [sys.executable, "-m", "tests.serve.serve_small"]
