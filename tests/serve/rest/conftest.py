from __future__ import annotations

from collections.abc import Iterator

import pytest

from serve.engine.reference.executor import ServedModel
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import CONFIG


@pytest.fixture(scope="module")
def rest(model: ServedModel) -> Iterator[LiveServer]:
    """A server of the small model with an HTTP port."""
    with LiveServer(model, CONFIG) as made:
        yield made
