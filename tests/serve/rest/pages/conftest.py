from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve.config.models import ModelSettings, Routing
from serve.config.settings import ServerConfig
from tests.conformance.support.artifacts import export_small
from tests.support.serve.live import LiveServer
from tests.support.serve.repositories import add_version, break_version


@pytest.fixture(scope="package")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Three models: one with a context, in two versions that both answer, and one that is broken."""
    folder = tmp_path_factory.mktemp("many")
    paths = {
        "plain": export_small(folder / "plain", context=()).path,
        "ranking": export_small(folder / "ranking", seed=1).path,
    }
    root = folder / "models"
    for model, version, path in (
        ("eu-west.clicks_1", "7", "plain"),
        ("ranker", "1", "plain"),
        ("ranker", "2", "ranking"),
    ):
        add_version(root, model, version, paths[path])
    break_version(add_version(root, "broken", "3", paths["plain"]))
    routing = Routing(serve="2", canary="1", canary_percent=5.0)
    config = ServerConfig(
        port=0, metrics_port=None, http_port=0, models={"ranker": ModelSettings(routing=routing)}
    )
    with LiveServer(root, config) as made:
        yield made
