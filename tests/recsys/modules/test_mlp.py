from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from recsys.modules.mlp import MLP, Perceptron, extract_module_or_tensor_callable


def test_layers_are_linear_and_an_activation() -> None:
    mlp = MLP(5, [4, 3], activation="sigmoid")
    x = torch.randn(7, 5)
    state = mlp.state_dict()
    expected = x
    for i in range(2):
        expected = (
            expected @ state[f"_mlp.{i}._linear.weight"].T + state[f"_mlp.{i}._linear.bias"]
        ).sigmoid()
    torch.testing.assert_close(mlp(x), expected)


@pytest.mark.parametrize("activation", ["relu", torch.relu, nn.ReLU, nn.ReLU(), partial(nn.ReLU)])
def test_the_last_layer_may_stay_linear(activation: object) -> None:
    x = torch.randn(50, 5)
    mlp = MLP(5, [4, 3], activation=activation, activation_on_last=False)
    assert bool((mlp(x) < 0).any())
    assert bool((mlp._mlp[0](x) >= 0).all())
    assert bool((MLP(5, [4, 3], activation=activation)(x) >= 0).all())


def test_what_makes_modules_makes_one_for_each_layer() -> None:
    own, shared = MLP(5, [4, 4], activation=nn.PReLU), MLP(5, [4, 4], activation=nn.PReLU())
    assert own._mlp[0]._activation_fn is not own._mlp[1]._activation_fn
    assert shared._mlp[0]._activation_fn is shared._mlp[1]._activation_fn


@pytest.mark.parametrize("activation", ["relu", "swish_layernorm"])
def test_bias_and_dtype_hold_for_every_activation(activation: str) -> None:
    mlp = MLP(5, [4, 3], bias=False, activation=activation, dtype=torch.float64)
    assert not any("_linear.bias" in name for name in mlp.state_dict())
    assert mlp(torch.randn(2, 5, dtype=torch.float64)).dtype == torch.float64


def test_on_the_meta_device() -> None:
    mlp = MLP(5, [4], activation="swish_layernorm", device=torch.device("meta"))
    assert all(parameter.is_meta for parameter in mlp.parameters())


def test_activations_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"activation: got 'gelu', expected one of .'relu', 'sigmoid'"):
        MLP(5, [4], activation="gelu")
    with pytest.raises(ValueError, match=r"activation: got int from .*expected a torch.nn.Module"):
        MLP(5, [4], activation=lambda: 3)


def test_functions_stay_as_they_are() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    assert extract_module_or_tensor_callable(twice) is twice
    perceptron = Perceptron(3, 2, activation=twice)
    x = torch.randn(4, 3)
    torch.testing.assert_close(perceptron(x), 2 * perceptron._linear(x))


@pytest.mark.parametrize("trains", [True, False])
def test_torchscript_compiles_it_while_it_trains_or_not(trains: bool) -> None:
    x = torch.randn(7, 5)
    mlp = MLP(5, [4, 3]).train(trains)
    compiled = torch.jit.script(mlp)
    torch.testing.assert_close(compiled(x), mlp(x))
    assert "relu_" not in str(compiled.inlined_graph)
