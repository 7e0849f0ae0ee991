"""What all tests share."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked_programs import forked_programs


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let processes that share the tests begin with files that take long: at the end none waits for another.

    Those with a slow test come first, then those with most tests. ``--no-loadscope-reorder`` keeps that order.
    """
    if not hasattr(config, "workerinput"):
        return
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collector from visiting modules and tests, again and again, for as long as these run.

    It need not come as often either: what tests make holds little memory, and a traced graph has many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the project's programs and ``python``, which are forked."""
    with forked_programs(tmp_path_factory.mktemp("bin")) as folder:
        yield folder
