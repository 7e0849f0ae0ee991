from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.as_torchrec.metrics.computation import RecMetricException
from recsys.as_torchrec.metrics.config import RecComputeMode, RecTaskInfo
from recsys.as_torchrec.metrics.rec_metric import RecMetric, RecMetricList
from recsys.as_torchrec.metrics.sums import CTRMetric, NEMetric

_TASKS = [RecTaskInfo(name="click"), RecTaskInfo(name="buy")]


def _metric(**options: Any) -> RecMetric:
    return CTRMetric(world_size=1, my_rank=0, batch_size=4, tasks=_TASKS, **options)


def _batch(click: list[float], buy: list[float], weight: float = 1.0) -> dict[str, dict[str, Tensor]]:
    labels = {"click": torch.tensor(click), "buy": torch.tensor(buy)}
    weights = {name: torch.full_like(tensor, weight) for name, tensor in labels.items()}
    return {"predictions": dict(labels), "labels": labels, "weights": weights}


def _ctr(metric: RecMetric) -> list[float]:
    numbers = metric.compute()
    return [numbers[f"ctr-{task.name}|lifetime_ctr"].item() for task in _TASKS]


@pytest.mark.parametrize("mode", list(RecComputeMode))
def test_tasks_apart_and_at_once(mode: RecComputeMode) -> None:
    metric = _metric(compute_mode=mode)
    metric.update(**_batch([1, 1, 0, 0], [0, 0, 0, 1]))
    metric.update(**_batch([1, 1, 1, 1], [0, 0, 0, 0]))
    assert _ctr(metric) == [0.75, 0.125]


def test_tensors_of_all_tasks() -> None:
    metric = _metric(compute_mode=RecComputeMode.FUSED_TASKS_COMPUTATION)
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    metric.update(predictions=labels, labels=labels, weights=None)
    assert _ctr(metric) == [0.5, 0.0]
    with pytest.raises(RecMetricException, match="expected one for each task, by name"):
        _metric().update(predictions=labels, labels=labels, weights=None)


def test_a_task_without_rows_waits() -> None:
    metric = _metric()
    metric.update(**_batch([1.0], []))
    metric.update(**_batch([0.0], [1.0]))
    assert _ctr(metric) == [0.5, 1.0]


def test_batches_are_collected() -> None:
    metric = _metric(fused_update_limit=3)
    for click in (1.0, 0.0, 1.0, 1.0):
        metric.update(**_batch([click], [0.0]))
    (sums, _) = metric._metrics_computations
    assert sums.ctr_denom.item() == 3
    assert _ctr(metric) == [0.75, 0.0]
    assert sums.ctr_denom.item() == 4


def test_batches_without_weight_are_left_out() -> None:
    metric = _metric(should_validate_update=True)
    metric.update(**_batch([1.0], [1.0], weight=0.0))
    assert metric._metrics_computations[0].has_valid_update.tolist() == [0]
    assert _ctr(metric) == [0.0, 0.0]
    metric.update(**_batch([1.0], [0.0]))
    assert _ctr(metric) == [1.0, 0.0]


def test_inputs_are_copied() -> None:
    metric = _metric(fused_update_limit=2, should_clone_update_inputs=True)
    batch = _batch([1.0], [1.0])
    metric.update(**batch)
    batch["labels"]["click"].zero_()
    assert _ctr(metric) == [1.0, 1.0]


def test_bytes_and_lists() -> None:
    metrics = RecMetricList([_metric(), NEMetric(world_size=1, my_rank=0, batch_size=4, tasks=_TASKS)])
    metrics.update(**_batch([1.0], [0.0]))
    # Two sums of two tasks, each of the lifetime, of the window, and one part of the window.
    assert sum(metrics[0].get_memory_usage().values()) == 2 * 2 * 3 * 8
    assert len(metrics) == 2
    assert metrics.get_required_inputs() is None
    assert {key.partition("-")[0] for key in metrics.compute()} == {"ctr", "ne"}
    metrics.reset()
    assert metrics.local_compute()["ctr-click|local_lifetime_ctr"].item() == 0


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"window_size: got 6, 3 on each of 2 ranks, expected 4"):
        CTRMetric(world_size=2, my_rank=0, batch_size=4, tasks=_TASKS, window_size=6)
    with pytest.raises(
        ValueError, match="fused_update_limit: got 2 with compute_mode FUSED_TASKS_COMPUTATION"
    ):
        _metric(fused_update_limit=2, compute_mode=RecComputeMode.FUSED_TASKS_COMPUTATION)
