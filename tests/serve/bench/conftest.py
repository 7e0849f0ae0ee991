"""A server that load is sent to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve.config.settings import ServerConfig
from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer


@pytest.fixture(scope="module")
def live(model: ServedModel) -> Iterator[LiveServer]:
    """A server with every port."""
    with LiveServer(model, ServerConfig(port=0, metrics_port=0, http_port=0)) as server:
        yield server
