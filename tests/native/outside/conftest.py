"""An artifact with deltas, and Redis nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from export.config import ExportConfig
from export.delta.delta import DeltaConfig, export_delta
from export.pipeline import export_model
from tests.native.outside.items import NUM_DELTAS, Items, moved
from tests.support.services.redis_nodes import RedisNode, redis_nodes


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An artifact, and deltas behind it."""
    folder = tmp_path_factory.mktemp("chain")
    model = Items()
    export_model(model, folder / "a", ExportConfig())
    deltas: list[Path] = []
    for seed in range(NUM_DELTAS):
        new, path = moved(model, seed + 1), folder / f"{seed}.delta"
        export_delta(model, new, path, DeltaConfig(artifact=folder / "a", after=tuple(deltas)))
        deltas.append(path)
        model = new
    return [folder / "a", *deltas]


@pytest.fixture(scope="session")
def servers() -> Iterator[list[RedisNode]]:
    with redis_nodes(3) as nodes:
        yield nodes


@pytest.fixture
def nodes(servers: list[RedisNode]) -> list[RedisNode]:
    """Three nodes without rows."""
    for node in servers:
        with node.client as client:
            client.flushall()
    return servers
