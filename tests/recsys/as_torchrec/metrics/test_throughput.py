from __future__ import annotations

import pytest

from recsys.as_torchrec.metrics.config import BatchSizeStage
from recsys.as_torchrec.metrics.throughput import ThroughputMetric


def _numbers(metric: ThroughputMetric) -> dict[str, float]:
    return {key.partition("|")[2]: value.item() for key, value in metric.compute().items()}


def test_examples_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("recsys.as_torchrec.metrics.throughput.time.monotonic", lambda: now)
    metric = ThroughputMetric(batch_size=10, world_size=2, window_seconds=5, warmup_steps=2)
    for lapse in (1.0, 50.0):
        now += lapse
        metric.update()
    assert _numbers(metric) == {"total_examples": 40, "attempt_examples": 40}
    for lapse in (10.0, 2.0, 2.0):
        now += lapse
        metric.update()
    # The step of 10 seconds is longer than the window, which holds the last two.
    assert _numbers(metric) == {
        "total_examples": 100,
        "attempt_examples": 100,
        "lifetime_throughput": pytest.approx(60 / 14),
        "attempt_throughput": pytest.approx(60 / 14),
        "window_throughput": pytest.approx(40 / 4),
    }
    resumed = ThroughputMetric(batch_size=10, world_size=2, window_seconds=5, warmup_steps=1)
    resumed.load_state_dict(metric.state_dict())
    resumed.update()
    now += 1
    resumed.update()
    numbers = _numbers(resumed)
    assert (numbers["total_examples"], numbers["attempt_examples"]) == (140, 40)
    assert numbers["lifetime_throughput"] == pytest.approx(80 / 15)
    assert numbers["attempt_throughput"] == pytest.approx(20)


def test_batch_sizes_change() -> None:
    metric = ThroughputMetric(
        batch_size=1,
        world_size=2,
        window_seconds=5,
        batch_size_stages=[BatchSizeStage(10, 2), BatchSizeStage(20, None)],
    )
    for _ in range(3):
        metric.update()
    assert _numbers(metric) == {"total_examples": 80, "attempt_examples": 80, "batch_size": 20}


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="warmup_steps: got 0"):
        ThroughputMetric(batch_size=1, world_size=1, window_seconds=1, warmup_steps=0)
    with pytest.raises(ValueError, match="batch_size_stages: got max_iters 3 of the last one"):
        ThroughputMetric(
            batch_size=1, world_size=1, window_seconds=1, batch_size_stages=[BatchSizeStage(1, 3)]
        )
