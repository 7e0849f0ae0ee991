"""PLE, MaskNet, FinalMLP and WuKong against their papers' formulas, row by row.

Shape letters: B batch, D embedding dimension, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from recsys.models.networks.final_mlp import BilinearFusion, FeatureGate
from recsys.models.networks.masknet import MaskBlock
from recsys.models.networks.ple import Extraction, ProgressiveExtraction
from recsys.models.networks.wukong import InteractionLayer


def test_a_label_mixes_its_own_experts_and_the_shared_ones() -> None:
    torch.manual_seed(0)
    level = Extraction(5, 2, 3, [4], has_shared=True)
    states = [torch.randn(2, 5) for _ in range(3)]
    found = level(states)
    experts = [[one(state) for one in group] for group, state in zip(level.groups, states, strict=True)]  # type: ignore[attr-defined]
    for i, seen in enumerate(
        ([*experts[0], *experts[2]], [*experts[1], *experts[2]], [one for group in experts for one in group])
    ):
        shares = functional.softmax(level.gates[i](states[i]), dim=1)
        expected = sum((shares[:, k : k + 1] * one for k, one in enumerate(seen)), torch.zeros(2, 4))
        torch.testing.assert_close(found[i], expected)


def test_the_last_level_has_no_shared_gate() -> None:
    model = ProgressiveExtraction(5, 2, 2, 3, [4], [3])
    assert [len(level.gates) for level in model.levels] == [3, 2]  # type: ignore[arg-type]
    assert model(torch.randn(7, 5)).shape == (7, 2)


def test_a_mask_of_the_instance_multiplies_the_vectors() -> None:
    torch.manual_seed(0)
    block = MaskBlock(6, 4, 3)
    vectors, instance = torch.randn(2, 6), torch.randn(2, 4)
    hidden, out = block.mask[0], block.mask[2]
    mask = functional.relu(instance @ hidden.weight.T + hidden.bias) @ out.weight.T + out.bias
    assert hidden.weight.shape == (12, 4)
    linear = block.hidden[0]
    expected = functional.layer_norm((vectors * mask) @ linear.weight.T + linear.bias, (3,)).relu()
    torch.testing.assert_close(block(vectors, instance), expected)


def test_streams_meet_in_a_bilinear_form_of_heads() -> None:
    torch.manual_seed(0)
    fusion = BilinearFusion(6, 3, 2)
    first, second = torch.randn(4, 6), torch.randn(4, 6)
    expected = fusion.first(first) + fusion.second(second)
    for label in range(2):
        for head in range(3):
            matrix = fusion.heads[head].weight[2 * label : 2 * label + 2]
            a, b = first[:, 2 * head : 2 * head + 2], second[:, 2 * head : 2 * head + 2]
            expected[:, label] += torch.einsum("bi,ji,bj->b", a, matrix, b)
    torch.testing.assert_close(fusion(first, second), expected)


def test_a_gate_is_between_0_and_2() -> None:
    torch.manual_seed(0)
    gate, ones = FeatureGate(3, 5), torch.ones(4, 5)
    found: Tensor = gate(ones, 100 * torch.randn(4, 3))
    assert found.min() >= 0
    assert found.max() <= 2
    torch.testing.assert_close(gate(ones, torch.zeros(4, 3)), 2 * gate.layers(torch.zeros(4, 3)).sigmoid())


def test_a_layer_of_wukong_is_the_papers() -> None:
    torch.manual_seed(0)
    layer = InteractionLayer(5, 4, 3, 2, [6])
    x = torch.randn(2, 5, 4)
    # FMB: the MLP of norm(flatten(X X^T Y)); LCB: W X; what came in is added by a linear map to as many vectors.
    products = torch.einsum("bfd,bgd,gr->bfr", x, x, layer.mixture).reshape(2, 10)
    machine = layer.machine(functional.layer_norm(products, (10,))).reshape(2, 3, 4)
    compressed = torch.einsum("cf,bfd->bcd", layer.compression, x)
    residual = torch.einsum("of,bfd->bod", layer.residual, x)
    expected = functional.layer_norm(torch.cat((machine, compressed), dim=1) + residual, (4,))
    torch.testing.assert_close(layer(x), expected)
