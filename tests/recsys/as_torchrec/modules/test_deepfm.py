from __future__ import annotations

import itertools

import pytest
import torch
from torch import fx, nn

from recsys.as_torchrec.modules.deepfm import DeepFM, FactorizationMachine
from recsys.scripting import torchscript

_VECTORS = [torch.randn(3, 2, 4), torch.randn(3, 5)]


def test_the_network_sees_all_numbers() -> None:
    network = nn.Linear(2 * 4 + 5, 2)
    expected = network(torch.cat([_VECTORS[0].reshape(3, -1), _VECTORS[1]], 1))
    assert torch.equal(DeepFM(network)(_VECTORS), expected)


def test_the_sum_over_all_pairs() -> None:
    numbers = torch.cat([_VECTORS[0].reshape(3, -1), _VECTORS[1]], 1)
    expected = sum(numbers[:, i] * numbers[:, j] for i, j in itertools.combinations(range(13), 2))
    torch.testing.assert_close(FactorizationMachine()(_VECTORS), expected[:, None], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("module", [DeepFM(nn.Linear(13, 2)), FactorizationMachine()])
def test_traced_with_the_list_as_input(module: nn.Module) -> None:
    traced = fx.symbolic_trace(module)
    for num_rows in (0, 1, 3):
        vectors = [v[:num_rows] for v in _VECTORS]
        assert torch.equal(traced(vectors), module(vectors))


def test_scripted() -> None:
    scripted = torchscript.script(fx.symbolic_trace(FactorizationMachine()))
    assert torch.equal(scripted(_VECTORS), FactorizationMachine()(_VECTORS))
