"""LAMB and LARS against their papers' arithmetic, in float64 and one number at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from recsys.optim import KeyedOptimizerWrapper, apply_optimizer_in_backward
from recsys.optim.layerwise import LAMB, LarsSGD, PartialRowWiseAdam, PartialRowWiseLAMB

ALL = [LarsSGD, LAMB, PartialRowWiseAdam, PartialRowWiseLAMB]
GRADIENTS = [torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def table(rows: slice = slice(None)) -> nn.Parameter:
    return nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(9))[rows].clone())


def trained(
    kind: Callable[..., Optimizer], gradients: list[Tensor], rows: slice = slice(None), **numbers: Any
) -> Tensor:
    weight = table(rows)
    optimizer = kind([weight], **numbers)
    for gradient in gradients:
        weight.grad = gradient[rows].clone()
        optimizer.step()
    return weight.detach()


def test_lars_is_the_papers() -> None:
    weight, last = table().detach().double(), torch.zeros(3, 4, dtype=torch.float64)
    for gradient in GRADIENTS:
        rate = 0.5 * 0.02 * weight.norm() / (gradient.double().norm() + 0.1 * weight.norm())
        last = 0.8 * last + rate * (gradient.double() + 0.1 * weight)
        weight = weight - last
    found = trained(LarsSGD, GRADIENTS, lr=0.5, eta=0.02, momentum=0.8, weight_decay=0.1)
    torch.testing.assert_close(found.double(), weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [LAMB, PartialRowWiseLAMB])
def test_lamb_is_the_papers(kind: Callable[..., Optimizer]) -> None:
    weight = table().detach().double()
    first, second = torch.zeros_like(weight), torch.zeros_like(weight)
    for i, gradient in enumerate(GRADIENTS, 1):
        square = gradient.double().square()
        if kind is PartialRowWiseLAMB:
            square = square.mean(dim=1, keepdim=True).expand_as(square)
        first = 0.8 * first + 0.2 * gradient.double()
        second = 0.9 * second + 0.1 * square
        step = first / (1 - 0.8**i) / ((second / (1 - 0.9**i)).sqrt() + 1e-6) + 0.1 * weight
        weight = weight - 0.05 * weight.norm() / step.norm() * step
    found = trained(kind, GRADIENTS, lr=0.05, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    torch.testing.assert_close(found.double(), weight, rtol=1e-5, atol=1e-6)


def test_adam_with_a_moment_per_row_is_adam_where_rows_have_one_number() -> None:
    ours, theirs = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.ones(3, 1))
    optimizers = [
        PartialRowWiseAdam([ours], lr=0.1, weight_decay=0.01),
        AdamW([theirs], lr=0.1, weight_decay=0.01),
    ]
    for gradient in GRADIENTS:
        ours.grad, theirs.grad = gradient[:, :1].clone(), gradient[:, :1].clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [LarsSGD, LAMB, PartialRowWiseLAMB])
def test_by_row_each_row_is_trained_as_if_alone(kind: Callable[..., Optimizer]) -> None:
    numbers = {"lr": 0.1, "weight_decay": 0.1}
    alone = [trained(kind, GRADIENTS, slice(i, i + 1), **numbers) for i in range(3)]
    torch.testing.assert_close(trained(kind, GRADIENTS, by_row=True, **numbers), torch.cat(alone))
    assert not torch.allclose(trained(kind, GRADIENTS, **numbers), torch.cat(alone), rtol=1e-3)


@pytest.mark.parametrize("kind", ALL)
def test_weights_of_zeros_and_gradients_of_zeros_stay_finite(kind: Callable[..., Optimizer]) -> None:
    for weight in (
        nn.Parameter(torch.zeros(2, 3)),
        nn.Parameter(torch.ones(2, 3)),
        nn.Parameter(torch.ones(3)),
    ):
        optimizer = kind([weight], lr=0.1)
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        before = weight.detach().clone()
        assert before.isfinite().all()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert weight.isfinite().all()
        assert not torch.equal(weight, before)


@pytest.mark.parametrize("kind", ALL)
def test_sparse_gradients_and_half_weights_are_taken(kind: Callable[..., Optimizer]) -> None:
    dense, sparse = nn.EmbeddingBag(5, 4), nn.EmbeddingBag(5, 4, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    for bags in (dense, sparse):
        optimizer = kind(bags.parameters(), lr=0.1)
        bags(torch.tensor([[0, 3], [3, 1]])).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(dense.weight, sparse.weight)
    half = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    kind([half], lr=500.0 if kind is LarsSGD else 0.5).step()
    assert half.dtype == torch.bfloat16
    assert not half.eq(1).all()


@pytest.mark.parametrize("kind", ALL)
def test_training_goes_on_from_a_state_dict(kind: Callable[..., Optimizer]) -> None:
    def optimizer_of(weight: nn.Parameter) -> KeyedOptimizerWrapper:
        return KeyedOptimizerWrapper({"t": weight}, lambda params: kind(params, lr=0.1))

    straight, resumed = table(), table()
    first = optimizer_of(straight)
    for gradient in GRADIENTS[:2]:
        straight.grad = gradient.clone()
        first.step()
    resumed.data.copy_(straight.data)
    second = optimizer_of(resumed)
    second.init_state()
    assert torch.equal(resumed, straight)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for optimizer, weight in ((first, straight), (second, resumed)):
        weight.grad = GRADIENTS[2].clone()
        optimizer.step()
    assert torch.equal(resumed, straight)


def test_they_run_in_the_backward_pass_of_other_parameters() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    apply_optimizer_in_backward(LAMB, layer.parameters(), {"lr": 0.1})
    layer(torch.ones(1, 2)).sum().backward()
    assert not torch.equal(layer.weight, before)


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (LAMB, {"betas": (0.9, 1.0)}, r"beta2: got 1.0, expected a number in \[0, 1\)"),
        (LAMB, {"lr": -1.0}, "lr: got -1.0, expected a finite number of at least 0"),
        (LarsSGD, {"eta": float("inf")}, "eta: got inf, expected a finite"),
    ],
)
def test_wrong_numbers_are_named(
    kind: Callable[..., Optimizer], numbers: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind([nn.Parameter(torch.ones(1))], **numbers)
