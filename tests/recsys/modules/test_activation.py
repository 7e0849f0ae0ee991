from __future__ import annotations

import torch

from recsys.modules.activation import SwishLayerNorm


def test_swish_of_the_layer_norm() -> None:
    module = SwishLayerNorm(5)
    torch.nn.init.normal_(module.norm[0].weight)
    x = torch.randn(3, 5)
    normal = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(module(x), x * (normal * module.norm[0].weight).sigmoid())


def test_several_dimensions_on_the_meta_device() -> None:
    module = SwishLayerNorm(torch.Size([4, 5]), device=torch.device("meta"))
    assert module.norm[0].weight.shape == (4, 5)
    assert module(torch.empty(2, 4, 5, device="meta")).shape == (2, 4, 5)
