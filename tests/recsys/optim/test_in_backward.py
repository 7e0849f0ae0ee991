"""Optimizers that step in the backward pass, and the marks they leave."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW

from recsys.optim import (
    EmbOptimType,
    FusedConfig,
    RowWiseAdagrad,
    apply_optimizer_in_backward,
    fused_config_of,
    in_backward_optimizer_filter,
    mark_in_backward,
)


def _model() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def _backward(model: nn.Module, seed: int) -> None:
    model(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))).square().sum().backward()


@pytest.mark.parametrize(
    ("optimizer_class", "kwargs"),
    [(SGD, {"lr": 0.1, "momentum": 0.9}), (Adagrad, {"lr": 0.1}), (Adam, {"lr": 0.1}), (AdamW, {})],
    ids=["sgd", "adagrad", "adam", "adamw"],
)
def test_it_steps_as_the_optimizer_does(optimizer_class: type[Any], kwargs: dict[str, Any]) -> None:
    ours, theirs = _model(), _model()
    apply_optimizer_in_backward(optimizer_class, ours.parameters(), kwargs)
    ordinary = optimizer_class(theirs.parameters(), **kwargs)
    for seed in range(3):
        _backward(ours, seed)
        assert all(param.grad is None for param in ours.parameters())
        ordinary.zero_grad()
        _backward(theirs, seed)
        ordinary.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_filter_parts_parameters() -> None:
    model = _model()
    apply_optimizer_in_backward(SGD, [model[0].weight], {"lr": 0.1})
    mark_in_backward(model[2].bias)
    inside = dict(in_backward_optimizer_filter(model.named_parameters(), include=True))
    outside = dict(in_backward_optimizer_filter(model.named_parameters()))
    assert list(inside) == ["0.weight", "2.bias"]
    assert list(outside) == ["0.bias", "2.weight"]
    assert inside["0.weight"] is model[0].weight


def test_the_optimizers_can_be_found() -> None:
    param = nn.Parameter(torch.zeros(2, 4))
    apply_optimizer_in_backward(RowWiseAdagrad, [param], {"lr": 0.5})
    (optimizer,) = param._in_backward_optimizers  # type: ignore[attr-defined]
    assert optimizer.param_groups[0]["lr"] == 0.5
    handle = SGD([param], lr=1.0)
    mark_in_backward(param, handle)
    assert param._in_backward_optimizers == [handle]  # type: ignore[attr-defined]


def test_marks_become_a_lookups_optimizer() -> None:
    param = nn.Parameter(torch.zeros(2, 4))
    assert fused_config_of(param) is None
    apply_optimizer_in_backward(RowWiseAdagrad, [param], {"lr": 0.02, "eps": 0.002})
    expected = FusedConfig(optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.02, eps=0.002)
    assert fused_config_of(param) == expected


def test_a_parameter_goes_with_its_module() -> None:
    model = _model()
    apply_optimizer_in_backward(Adagrad, model.parameters(), {"lr": 0.1})
    _backward(model, 0)
    left = [weakref.ref(param) for param in model.parameters()]
    del model
    gc.collect()
    assert [param() for param in left] == [None] * 4


def test_on_the_meta_device() -> None:
    with torch.device("meta"):
        param = nn.Parameter(torch.empty(10**9, 64))
    apply_optimizer_in_backward(RowWiseAdagrad, [param], {"lr": 0.1})
    config = fused_config_of(param)
    assert config is not None
    assert config.learning_rate == 0.1


def test_marks_of_torch_are_understood() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it compiles functions when it is imported
        from torch.distributed.optim import _apply_optimizer_in_backward
    param = nn.Parameter(torch.zeros(2, 4))
    _apply_optimizer_in_backward(Adagrad, [param], {"lr": 0.25})
    assert fused_config_of(param) == FusedConfig(
        optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.25, eps=1e-8
    )
    assert [name for name, _ in in_backward_optimizer_filter([("p", param)], include=True)] == ["p"]

    _apply_optimizer_in_backward(SGD, [param], {"lr": 0.25})
    with pytest.raises(ValueError, match=r"got 2 optimizers .*\['Adagrad', 'SGD'\]\), expected one"):
        fused_config_of(param)


def test_one_optimizer_for_parameters_that_train() -> None:
    param, frozen = nn.Parameter(torch.zeros(2, 4)), nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.raises(
        ValueError, match=r"params\[1\]: got a parameter of shape \[3\] that needs no gradient"
    ):
        apply_optimizer_in_backward(SGD, [param, frozen], {"lr": 0.1})
    assert fused_config_of(param) is None


def test_two_optimizers_step_one_after_the_other() -> None:
    ours, theirs = nn.Parameter(torch.ones(2, 4)), nn.Parameter(torch.ones(2, 4))
    apply_optimizer_in_backward(SGD, [ours], {"lr": 0.5})
    apply_optimizer_in_backward(Adagrad, [ours], {"lr": 0.25})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import _apply_optimizer_in_backward
    _apply_optimizer_in_backward(SGD, [theirs], {"lr": 0.5})
    _apply_optimizer_in_backward(Adagrad, [theirs], {"lr": 0.25})
    for param in (ours, theirs):
        param.square().sum().backward()
        assert param.grad is None
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, torch.full((2, 4), -0.25))
    with pytest.raises(ValueError, match=r"got 2 optimizers .*\['SGD', 'Adagrad'\]\), expected one"):
        fused_config_of(ours)


def test_what_no_lookup_has_is_named_when_it_is_read() -> None:
    param = nn.Parameter(torch.zeros(2, 4))
    apply_optimizer_in_backward(AdamW, [param], {})
    with pytest.raises(ValueError, match="got AdamW, which no lookup"):
        fused_config_of(param)
