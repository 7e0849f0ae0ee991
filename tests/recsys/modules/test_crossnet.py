"""Cross networks held against the papers' formulas, written as plain products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from recsys.modules.crossnet import CrossNet, LowRankCrossNet, LowRankMixtureCrossNet, VectorCrossNet
from recsys.scripting import torchscript

_N = 6


def _random(net: nn.Module) -> nn.Module:
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    return net


def test_full_rank() -> None:
    net = _random(CrossNet(_N, 2))
    x = torch.randn(5, _N)
    crossed = x
    for kernel, bias in zip(net.kernels, net.bias, strict=True):
        crossed = x * (crossed @ kernel.T + bias[:, 0]) + crossed
    torch.testing.assert_close(net(x), crossed)


def test_low_rank() -> None:
    net = _random(LowRankCrossNet(_N, 2, 3))
    x = torch.randn(5, _N)
    crossed = x
    for w, v, bias in zip(net.W_kernels, net.V_kernels, net.bias, strict=True):
        crossed = x * (crossed @ v.T @ w.T + bias) + crossed
    torch.testing.assert_close(net(x), crossed)


def test_vectors() -> None:
    net = _random(VectorCrossNet(_N, 2))
    x = torch.randn(5, _N)
    crossed = x
    for kernel, bias in zip(net.kernels, net.bias, strict=True):
        crossed = x * (crossed * kernel[:, 0]).sum(1, keepdim=True) + bias[:, 0] + crossed
    torch.testing.assert_close(net(x), crossed)


@pytest.mark.parametrize("num_experts", [1, 3])
def test_mixture(num_experts: int) -> None:
    net = _random(LowRankMixtureCrossNet(_N, 2, num_experts, 2, activation=torch.tanh))
    x = torch.randn(5, _N)
    crossed = x
    for i in range(2):

        def expert(k: int, of: Tensor, i: int = i) -> Tensor:
            inner = (of @ net.V_kernels[i][k].T).tanh() @ net.C_kernels[i][k].T
            return x * (inner.tanh() @ net.U_kernels[i][k].T + net.bias[i][:, 0])

        gates = [torch.zeros(5)] if net.gates is None else [g(crossed)[:, 0] for g in net.gates]
        shares = torch.stack(gates).softmax(0)
        crossed = sum(shares[k][:, None] * expert(k, crossed) for k in range(num_experts)) + crossed
    torch.testing.assert_close(net(x), crossed)
    assert (net.gates is None) == (num_experts == 1)


@pytest.mark.parametrize(
    "net",
    [CrossNet(_N, 2), LowRankCrossNet(_N, 2, 2), VectorCrossNet(_N, 2), LowRankMixtureCrossNet(_N, 2, 2, 2)],
    ids=lambda net: type(net).__name__,
)
def test_traced_and_scripted_for_every_batch_size(net: nn.Module) -> None:
    scripted = torchscript.script(fx.symbolic_trace(net))
    for num_rows in (0, 1, 5):
        x = torch.randn(num_rows, _N)
        assert torch.equal(scripted(x), net(x))


def test_sizes_below_one() -> None:
    with pytest.raises(ValueError, match="low_rank: got 0, expected 1 at least"):
        LowRankCrossNet(_N, 2, 0)
    with pytest.raises(ValueError, match="num_experts: got 0, expected 1 at least"):
        LowRankMixtureCrossNet(_N, 2, 0)


@pytest.mark.parametrize(
    "kind",
    [CrossNet, LowRankCrossNet, VectorCrossNet, LowRankMixtureCrossNet],
    ids=lambda kind: kind.__name__,
)
def test_made_on_the_meta_device_they_are_drawn_later(kind: type[nn.Module]) -> None:
    with torch.device("meta"):
        net = kind(_N, 2)
    net.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(torch.nan)
    net.reset_parameters()
    for name, parameter in net.named_parameters():
        assert bool(parameter.any()) != name.startswith("bias"), name
        assert torch.isfinite(parameter).all(), name
