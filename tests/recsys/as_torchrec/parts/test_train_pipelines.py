"""Pipelines by TorchRec's names: what they train, what they leave out, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from recsys.as_torchrec.parts.train_pipelines import (
    EvalPipelineSparseDist,
    PrefetchTrainPipelineSparseDist,
    TrainPipelineBase,
)
from recsys.train.stepping.pipeline import TrainPipelineSparseDist

CPU = torch.device("cpu")


class _Model(nn.Module):
    """A weight that follows its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Tensor) -> tuple[Tensor, float]:
        return (self.weight - batch).square(), float(batch)


def _batches(count: int) -> Iterator[Tensor]:
    return iter(torch.arange(1.0, count + 1))


def _run(pipeline: Any, batches: Iterator[Tensor]) -> list[float]:
    found = []
    while True:
        try:
            found.append(pipeline.progress(batches))
        except StopIteration:
            return found


def _made(kind: Any, **arguments: Any) -> tuple[_Model, Any]:
    model = _Model()
    return model, kind(model, SGD(model.parameters(), lr=0.25), CPU, **arguments)


KINDS = [TrainPipelineBase, TrainPipelineSparseDist, PrefetchTrainPipelineSparseDist]


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_trained_once(kind: Any) -> None:
    model, pipeline = _made(kind)
    assert _run(pipeline, _batches(4)) == [1.0, 2.0, 3.0, 4.0]
    expected = 0.0
    for batch in range(1, 5):
        expected -= 0.5 * (expected - batch)
    assert float(model.weight.detach()) == expected
    assert _run(pipeline, _batches(2)) == [1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_another_forward_pass(kind: Any) -> None:
    model = _Model()

    def forward(batch: Tensor) -> tuple[Tensor, Tensor]:
        return (model.weight + batch).square(), batch

    _run(kind(model, SGD(model.parameters(), lr=0.25), CPU, custom_model_fwd=forward), _batches(1))
    assert float(model.weight.detach()) == -0.5


def test_the_last_two_batches_are_left_out_on_request() -> None:
    _, pipeline = _made(TrainPipelineSparseDist, execute_all_batches=False)
    assert _run(pipeline, _batches(5)) == [1.0, 2.0, 3.0]


def test_evaluation_trains_nothing() -> None:
    model, pipeline = _made(EvalPipelineSparseDist)
    assert model.training
    assert _run(pipeline, _batches(3)) == [1.0, 2.0, 3.0]
    assert float(model.weight.detach()) == 0.0


def test_a_pipeline_is_detached_attached_and_reset() -> None:
    model, pipeline = _made(TrainPipelineSparseDist)
    batches = _batches(6)
    assert pipeline.progress(batches) == 1.0
    assert pipeline.detach() is model
    other = _Model()
    pipeline.attach(other)
    assert pipeline.progress(batches) == 2.0
    assert pipeline.detach() is other
    pipeline.reset()
    assert _run(pipeline, batches) == [4.0, 5.0, 6.0]


def test_types_in_brackets_and_what_is_refused() -> None:
    with_types: Any = TrainPipelineSparseDist[Tensor, float]
    assert with_types.__args__ == (Tensor, float)
    with pytest.raises(ValueError, match="apply_jit: got True"):
        _made(TrainPipelineSparseDist, apply_jit=True)
