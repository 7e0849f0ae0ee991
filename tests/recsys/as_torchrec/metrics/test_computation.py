from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recsys.as_torchrec.metrics.computation import RecMetricComputation, RecMetricException, WindowBuffer
from recsys.as_torchrec.metrics.config import RecTaskInfo
from recsys.as_torchrec.metrics.names import MetricName, MetricNamespace
from recsys.as_torchrec.metrics.rec_metric import RecMetric
from tests.support.ranks import live_pool


class Highest(RecMetricComputation):
    """A metric of a user's: the highest prediction, and the number of examples."""

    highest: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        lowest = torch.full((self._n_tasks,), -1.0)
        highest = {"dist_reduce_fx": lambda of_ranks: of_ranks.amax(dim=0), "persistent": True}
        self._add_state("highest", lowest, add_window_state=False, **highest)
        self._add_sums("num")

    def update(self, *, predictions: Any, labels: Any, weights: Any, **kwargs: Any) -> None:
        self.highest = torch.maximum(self.highest, predictions.amax(dim=-1))
        self._add_up({"num": weights.double().sum(dim=-1)}, predictions.shape[-1])

    def _compute(self) -> Any:
        return self._reports(MetricName.DEFAULT, lambda num: num + self.highest, "num")


class HighestMetric(RecMetric):
    _namespace = MetricNamespace.DEFAULT
    _computation_class = Highest


def _metric(rank: int = 0, world_size: int = 1, **options: Any) -> HighestMetric:
    return HighestMetric(
        world_size=world_size,
        my_rank=rank,
        batch_size=2,
        tasks=[RecTaskInfo(name="t")],
        window_size=8,
        **options,
    )


def _update(metric: RecMetric, *predictions: float) -> None:
    x = torch.tensor(predictions)
    metric.update(predictions={"t": x}, labels={"t": x}, weights=None)


def test_windows_forget_whole_batches() -> None:
    window, state = WindowBuffer(5, 3), torch.zeros(1)
    for size, expected in ((2, 2), (3, 5), (1, 4), (4, 5), (1, 5)):
        window.aggregate_state(state, torch.tensor([float(size)]), size)
        assert state.tolist() == [expected]
    few, state = WindowBuffer(100, 2), torch.zeros(1)
    for expected in (1, 2, 2):
        few.aggregate_state(state, torch.ones(1), 1)
        assert state.tolist() == [expected]


def test_a_metric_of_ones_own() -> None:
    metric = _metric()
    for _ in range(5):
        _update(metric, 3.0, 7.0)
    assert {key: value.tolist() for key, value in metric.compute().items()} == {
        "-t|lifetime_": [17.0],
        "-t|window_": [15.0],
    }
    assert metric.local_compute()["-t|local_lifetime_"].tolist() == [17.0]
    assert set(metric.state_dict()) == {"_metrics_computations.0.highest", "_metrics_computations.0.num"}
    metric.reset()
    assert metric.compute()["-t|lifetime_"].tolist() == [-1.0]


def _of_ranks(rank: int, world_size: int) -> list[Any]:
    metric = _metric(rank, world_size, compute_on_all_ranks=True)
    _update(metric, 1.0 + rank, 0.0)
    of_all = {key: value.tolist() for key, value in metric.compute().items()}
    metric.sync()
    with pytest.raises(RecMetricException, match="call unsync first"):
        metric.sync()
    in_sync = metric.local_compute()["-t|local_lifetime_"].tolist()
    metric.unsync()
    leader = _metric(rank, world_size)
    _update(leader, 1.0)
    return [of_all, in_sync, metric.local_compute()["-t|local_lifetime_"].tolist(), len(leader.compute())]


def test_states_of_all_ranks() -> None:
    numbers = {"-t|lifetime_": [6.0], "-t|window_": [6.0]}
    assert live_pool(2).run(_of_ranks) == [
        [numbers, [6.0], [3.0], 2],
        [numbers, [6.0], [4.0], 0],
    ]


def test_keywords_that_are_not_known() -> None:
    with pytest.raises(ValueError, match=r"arguments of Highest: got unknown \['include_logloss'\]"):
        _metric(include_logloss=True)
