from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the same with little: the numbers are not for these tests to judge."""
    monkeypatch.setattr("serve.profiler.limits._READ_BYTES", 1 << 18)
    monkeypatch.setattr("serve.profiler.limits._PRODUCT_SHAPES", ((8, 32, 16),))
    monkeypatch.setattr("serve.profiler.limits._NUM_RANDOM_ROWS", 1 << 14)
    monkeypatch.setattr("serve.profiler.run.ROWS_OF_CALL", 1 << 8)
    monkeypatch.setattr("serve.profiler.run.num_batches", lambda _: 8)
