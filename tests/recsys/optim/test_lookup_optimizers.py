"""Optimizers that run inside lookups only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recsys.optim import EmbOptimType, FusedConfig, apply_optimizer_in_backward, fused_config_of
from recsys.optim.lookup_optimizers import SGD, Adagrad, Adam


def test_they_name_fbgemms() -> None:
    found = [
        FusedConfig.from_in_backward(SGD, {"lr": 0.5}),
        FusedConfig.from_in_backward(Adagrad, {"lr": 0.5, "eps": 1e-3}),
        FusedConfig.from_in_backward(Adam, {"learning_rate": 0.5, "beta1": 0.8, "weight_decay": 0.1}),
    ]
    assert found == [
        FusedConfig(learning_rate=0.5),
        FusedConfig(optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=0.5, eps=1e-3),
        FusedConfig(optimizer=EmbOptimType.ADAM, learning_rate=0.5, beta1=0.8, weight_decay=0.1),
    ]
    with pytest.raises(ValueError, match=r"'momentum'\]: SGD has no such argument"):
        FusedConfig.from_in_backward(SGD, {"momentum": 0.9})


def test_marked_tables_have_them_and_other_parameters_cannot() -> None:
    weight = nn.Parameter(torch.ones(2, 4))
    apply_optimizer_in_backward(SGD, [weight], {"lr": 0.5})
    assert fused_config_of(weight) == FusedConfig(learning_rate=0.5)
    with pytest.raises(NotImplementedError, match="runs inside lookups of sharded tables only"):
        weight.sum().backward()
