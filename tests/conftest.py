"""What all tests share."""

from __future__ import annotations

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collector from visiting modules and tests, again and again, for as long as these run."""
    gc.collect()
    gc.freeze()
