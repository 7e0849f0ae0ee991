from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recsys.as_torchrec.metrics.auc import AUCMetric, compute_auc
from recsys.as_torchrec.metrics.config import RecTaskInfo
from recsys.metrics.exact import auc
from tests.support.ranks import live_pool

_SCORES = np.random.default_rng(0).normal(size=30).round(1)
_LABELS = (np.random.default_rng(1).random(30) < 0.4).astype(np.float64)
_WEIGHTS = np.random.default_rng(2).random(30)


def _metric(rank: int = 0, world_size: int = 1, **options: Any) -> AUCMetric:
    return AUCMetric(
        world_size=world_size,
        my_rank=rank,
        batch_size=7,
        tasks=[RecTaskInfo(name="t")],
        window_size=20 * world_size,
        **options,
    )


def _update(metric: AUCMetric, rows: slice) -> None:
    columns = ({"t": torch.from_numpy(c[rows].astype(np.float32))} for c in (_SCORES, _LABELS, _WEIGHTS))
    predictions, labels, weights = columns
    metric.update(predictions=predictions, labels=labels, weights=weights)


def test_the_window_is_the_latest_examples() -> None:
    metric = _metric()
    assert metric.compute()["auc-t|window_auc"].tolist() == [0.5]
    for start in range(0, 28, 7):
        _update(metric, slice(start, start + 7))
    rows = slice(8, 28)
    expected = auc(_SCORES[rows], _LABELS[rows], _WEIGHTS[rows])
    assert metric.compute()["auc-t|window_auc"].item() == pytest.approx(expected, rel=1e-5)
    metric.reset()
    assert metric.compute()["auc-t|window_auc"].tolist() == [0.5]


def _of_ranks(rank: int, world_size: int) -> list[float]:
    metric = _metric(rank, world_size)
    _update(metric, slice(0, 7) if rank else slice(7, 20))
    return [value.item() for value in metric.compute().values()]


def test_the_examples_of_all_ranks() -> None:
    expected = auc(_SCORES[:20], _LABELS[:20], _WEIGHTS[:20])
    assert live_pool(2).run(_of_ranks) == [[pytest.approx(expected, rel=1e-5)], []]


def test_labels_may_be_made_of_rates() -> None:
    scores, labels = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.0, 0.03, 0.04]])
    assert compute_auc(1, [scores], [labels], [torch.ones(1, 3)], apply_bin=True).tolist() == [1.0]


def test_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="grouped_auc: got True"):
        _metric(grouped_auc=True)
