"""The same training with FBGEMM's fused optimizers and with ordinary ones.

Shape letters: D embedding dimension, R rows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Optimizer

from recsys.optim import (
    LAMB,
    EmbOptimType,
    FusedConfig,
    LarsSGD,
    PartialRowWiseAdam,
    PartialRowWiseLAMB,
    RowWiseAdagrad,
)
from tests.recsys.optim.lookups import NUM_ROWS, Batch, TbeLookup, batches, table
from tests.support.helpers import needs_gpu

# What the same states are called by the optimizer class for dense gradients.
DENSE_STATE_NAMES: dict[EmbOptimType, dict[str, str]] = {
    EmbOptimType.EXACT_SGD: {},
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: {"momentum1": "sum"},
    EmbOptimType.EXACT_ADAGRAD: {"momentum1": "sum"},
    EmbOptimType.ADAM: {"momentum1": "exp_avg", "momentum2": "exp_avg_sq"},
}


NUM_STEPS = 6
# Sums in another order, and FBGEMM's reciprocals: a few float32 roundings per step.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def _trained(optimizer: Optimizer, weight: nn.Parameter, steps: list[Batch]) -> Tensor:
    for batch in steps:
        weight.grad = batch.dense_gradient(len(weight))
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize(
    ("optimizer_class", "kwargs"),
    [
        pytest.param(SGD, {"lr": 0.1}, id="sgd"),
        pytest.param(Adagrad, {"lr": 0.1}, id="adagrad"),
        pytest.param(Adagrad, {"lr": 0.1, "eps": 0.5}, id="adagrad eps"),
        pytest.param(RowWiseAdagrad, {"lr": 0.1}, id="row-wise adagrad"),
        pytest.param(RowWiseAdagrad, {"lr": 0.02, "eps": 0.002}, id="row-wise adagrad of the tutorial"),
    ],
)
def test_the_class_and_what_fbgemm_makes_of_it(optimizer_class: type[Any], kwargs: dict[str, Any]) -> None:
    config = FusedConfig.from_in_backward(optimizer_class, kwargs)
    fused = TbeLookup(config)
    weight = nn.Parameter(table())
    dense = optimizer_class([weight], **kwargs)
    _trained(dense, weight, batches(NUM_STEPS))
    for batch in batches(NUM_STEPS):
        fused.train(batch)
    torch.testing.assert_close(fused.weight.detach(), weight.detach(), **CLOSE)
    assert not torch.equal(weight, table())
    states = fused.fused_states()["embedding_bags.t1.weight"]
    assert len(states) == len(DENSE_STATE_NAMES[config.optimizer])
    state = dense.state[weight]
    for name, dense_name in DENSE_STATE_NAMES[config.optimizer].items():
        torch.testing.assert_close(
            states[f"t1.{name}"].view_as(state[dense_name]), state[dense_name], **CLOSE
        )


def test_rowwise_adagrad_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([[1.0, -1.0], [2.0, 4.0], [5.0, 5.0]]))
    optimizer = RowWiseAdagrad([weight], lr=0.5, eps=0.25, weight_decay=0.5)
    weight.grad = torch.tensor([[0.5, 0.5], [2.0, 1.0], [0.0, 0.0]])
    optimizer.step()
    # gradient + 0.5 weight: [1, 0] and [3, 3]; mean squares 0.5 and 9; the last row was not touched.
    assert torch.equal(optimizer.state[weight]["sum"], torch.tensor([[0.5], [9.0], [0.0]]))
    expected = torch.tensor(
        [[1 - 0.5 / (0.5**0.5 + 0.25), -1.0], [2 - 1.5 / 3.25, 4 - 1.5 / 3.25], [5.0, 5.0]]
    )
    torch.testing.assert_close(weight.detach(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rowwise_adagrad_of_sparse_gradients(weight_decay: float, dtype: torch.dtype) -> None:
    weights = [nn.Parameter(table().to(dtype)) for _ in range(2)]
    optimizers = [RowWiseAdagrad([weight], lr=0.1, weight_decay=weight_decay) for weight in weights]
    for batch in batches(NUM_STEPS):
        gradient = batch.dense_gradient(NUM_ROWS).to(dtype)
        weights[0].grad = gradient
        # Half of it twice, and each half not in order: sparse gradients need not be coalesced.
        rows = batch.ids.unique().flip(0)
        values = gradient[rows] / 2
        weights[1].grad = torch.sparse_coo_tensor(
            torch.cat([rows, rows]).unsqueeze(0),
            torch.cat([values, values]),
            weights[1].shape,
            check_invariants=True,
        )
        for optimizer in optimizers:
            optimizer.step()
    close = CLOSE if dtype is torch.float32 else {"rtol": 2e-3, "atol": 2e-3}
    torch.testing.assert_close(weights[1], weights[0], **close)
    assert torch.equal(weights[1][-3:], table().to(dtype)[-3:])


def test_rowwise_adagrad_without_eps_leaves_untouched_rows() -> None:
    weight = nn.Parameter(table())
    _trained(RowWiseAdagrad([weight], eps=0.0), weight, batches(2))
    assert torch.isfinite(weight).all()
    assert torch.equal(weight[-3:], table()[-3:])


def test_rowwise_adagrad_takes_torchrecs_arguments() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    optimizer = RowWiseAdagrad([weight], 1.0, 0.5, 0.0, 4.0, 0.0, maximize=True, foreach=None)
    for _ in range(2):
        weight.grad = torch.tensor([[2.0, 2.0], [0.0, 0.0]])
        optimizer.step()
    # sums 8 and 12, rates 1 and 1 / 1.5, upwards
    up = 2 / 8**0.5 + 2 / 12**0.5 / 1.5
    torch.testing.assert_close(weight.detach(), torch.tensor([[up, up], [0.0, 0.0]]))
    assert torch.equal(optimizer.state[weight]["sum"], torch.tensor([[12.0], [4.0]]))
    with pytest.raises(TypeError, match=r"unknown arguments \['momentum'\]"):
        RowWiseAdagrad([weight], momentum=0.9)


def test_rowwise_adagrad_takes_a_closure_and_skips_what_has_no_gradient() -> None:
    weight, other = nn.Parameter(table()), nn.Parameter(table())
    optimizer = RowWiseAdagrad([weight, other])

    def closure() -> float:
        loss = weight.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == pytest.approx(float(table().square().sum()))
    assert not torch.equal(weight, table())
    assert torch.equal(other, table())


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"lr": -1.0}, "lr: got -1.0"),
        ({"eps": float("inf")}, "eps: got inf"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
    ids=["lr", "eps", "decay"],
)
def test_rowwise_adagrad_checks_its_numbers(kwargs: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RowWiseAdagrad([nn.Parameter(table())], **kwargs)


def test_rowwise_adagrad_is_for_tables() -> None:
    with pytest.raises(ValueError, match=r"shape \[3\], expected tables.*torch\.optim\.Adagrad"):
        RowWiseAdagrad([nn.Parameter(torch.zeros(3))])


class TestOnCuda:
    pytestmark = needs_gpu

    @pytest.mark.parametrize(
        ("optimizer_class", "kwargs"),
        [
            pytest.param(Adam, {"lr": 0.1, "betas": (0.8, 0.99)}, id="adam"),
            pytest.param(RowWiseAdagrad, {"lr": 0.1, "weight_decay": 0.1}, id="row-wise adagrad with decay"),
            pytest.param(LAMB, {"lr": 0.1, "betas": (0.8, 0.99), "by_row": True}, id="lamb"),
            pytest.param(PartialRowWiseAdam, {"lr": 0.1, "weight_decay": 0.1}, id="partial row-wise adam"),
            pytest.param(PartialRowWiseLAMB, {"lr": 0.1, "by_row": True}, id="partial row-wise lamb"),
            pytest.param(LarsSGD, {"lr": 0.1, "eta": 0.1, "by_row": True}, id="lars"),
        ],
    )
    def test_what_fbgemm_has_on_cuda_only(self, optimizer_class: type[Any], kwargs: dict[str, Any]) -> None:
        # Every row in every batch: fused Adam leaves the moments of other rows alone.
        steps = [
            Batch(torch.arange(NUM_ROWS), torch.arange(NUM_ROWS + 1), table(seed=seed))
            for seed in range(1, 7)
        ]
        fused = TbeLookup(FusedConfig.from_in_backward(optimizer_class, kwargs), device="cuda")
        weight = nn.Parameter(table())
        _trained(optimizer_class([weight], **kwargs), weight, steps)
        for batch in steps:
            fused.train(batch)
        torch.testing.assert_close(fused.weight.detach().cpu(), weight.detach(), rtol=1e-4, atol=1e-5)
