"""Stages of a schedule: what is wrong with them is said; their values are held against TorchRec's in tests/peer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from recsys.optim import KeyedOptimizerWrapper, WarmupOptimizer, WarmupPolicy, WarmupStage


def _optimizer(stages: list[WarmupStage]) -> WarmupOptimizer:
    weight = nn.Parameter(torch.ones(2))
    wrapped = KeyedOptimizerWrapper({"weight": weight}, lambda params: SGD(params, lr=1.0))
    return WarmupOptimizer(wrapped, stages, lr=0.5)


def test_the_rate_of_the_first_step_is_set_at_once() -> None:
    optimizer = _optimizer([WarmupStage(WarmupPolicy.LINEAR, 4, 0.5)])
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(6):
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.25, 0.3125, 0.375, 0.4375, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (
            [WarmupStage(max_iters=3), WarmupStage(max_iters=3)],
            r"stages\[1\]\.max_iters: got 3, expected above 3",
        ),
        ([WarmupStage(WarmupPolicy.INTERPOLATE, 3)], r"stages\[0\]: got start_interpolating_iters None"),
        (
            [WarmupStage(WarmupPolicy.INTERPOLATE, 3, start_interpolating_iters=3, end_value=1.0)],
            "a start below max_iters",
        ),
    ],
    ids=["order", "nothing to interpolate", "no steps"],
)
def test_stages_that_cannot_be(stages: list[WarmupStage], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _optimizer(stages)
