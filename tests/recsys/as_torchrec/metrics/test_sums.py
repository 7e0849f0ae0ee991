"""The sums against numpy, over the lifetime and over the window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recsys.as_torchrec.metrics.computation import RecMetricException
from recsys.as_torchrec.metrics.config import RecTaskInfo
from recsys.as_torchrec.metrics.rec_metric import RecMetric
from recsys.as_torchrec.metrics.sums import CalibrationMetric, CTRMetric, MSEMetric, NEMetric
from recsys.metrics.exact import measure

_LOGITS = np.random.default_rng(0).normal(size=24)
_X = 1 / (1 + np.exp(-_LOGITS))
_Y = (np.random.default_rng(1).random(24) < _X).astype(np.float64)
_W = np.random.default_rng(2).random(24)


def _numbers(kind: type[RecMetric], **options: Any) -> dict[str, float]:
    """After three batches of 8, of which the window holds the last two."""
    metric = kind(
        world_size=1, my_rank=0, batch_size=8, tasks=[RecTaskInfo(name="t")], window_size=16, **options
    )
    for start in (0, 8, 16):
        columns = [torch.from_numpy(c[start : start + 8].copy()) for c in (_X, _Y, _W)]
        predictions, labels, weights = ({"t": column} for column in columns)
        metric.update(predictions=predictions, labels=labels, weights=weights)
    return {key.partition("|")[2]: value.item() for key, value in metric.compute().items()}


@pytest.mark.parametrize(("prefix", "rows"), [("lifetime", slice(None)), ("window", slice(8, None))])
def test_the_formulas(prefix: str, rows: slice) -> None:
    x, y, w = _X[rows], _Y[rows], _W[rows]
    exact = measure(_LOGITS[rows], y, w)
    ne = _numbers(NEMetric, include_logloss=True)
    assert ne[f"{prefix}_ne"] == pytest.approx(exact.ne)
    assert ne[f"{prefix}_logloss"] == pytest.approx(exact.loss / np.log(2))
    assert _numbers(CalibrationMetric)[f"{prefix}_calibration"] == pytest.approx(exact.calibration)
    assert _numbers(CTRMetric)[f"{prefix}_ctr"] == pytest.approx(np.average(y, weights=w))
    mse = _numbers(MSEMetric, include_r_squared=True)
    error = np.average((x - y) ** 2, weights=w)
    variance = np.average((y - np.average(y, weights=w)) ** 2, weights=w)
    assert mse[f"{prefix}_mse"] == pytest.approx(error)
    assert mse[f"{prefix}_rmse"] == pytest.approx(error**0.5)
    assert mse[f"{prefix}_r_squared"] == pytest.approx(1 - error / variance)


@pytest.mark.parametrize("kind", [NEMetric, MSEMetric, CTRMetric, CalibrationMetric])
def test_without_examples(kind: type[RecMetric]) -> None:
    metric = kind(world_size=1, my_rank=0, batch_size=8, tasks=[RecTaskInfo()])
    assert all(value.isnan() if kind is NEMetric else value == 0 for value in metric.compute().values())
    with pytest.raises(RecMetricException, match="weights: got None"):
        metric._metrics_computations[0].update(
            predictions=torch.ones(1, 1), labels=torch.ones(1, 1), weights=None
        )


def test_without_weights_the_value_may_be_small() -> None:
    metric = NEMetric(
        world_size=1,
        my_rank=0,
        batch_size=8,
        tasks=[RecTaskInfo()],
        allow_missing_label_with_zero_weight=True,
    )
    assert all(0 < value < 1e-9 for value in metric.compute().values())
