"""The results of layers for symbolic sizes, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from export.graph.tracing.layer_shapes import result_of
from export.graph.tracing.sizes import BatchSizes

_LAYERS = (nn.Linear(6, 4), nn.LayerNorm(6), nn.ReLU(), nn.GELU(), nn.Sigmoid(), nn.Softplus())


@pytest.mark.parametrize("layer", _LAYERS, ids=lambda layer: type(layer).__name__)
@pytest.mark.parametrize("is_turned", [False, True])
def test_results_are_like_torchs(layer: nn.Module, is_turned: bool) -> None:
    sizes = BatchSizes({})
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes.symbols), torch.no_grad():
        x = torch.empty(3, sizes.rows, 6).transpose(0, 1) if is_turned else torch.empty(sizes.rows, 6)
        found, expected = result_of(layer, x), layer(x)
    assert isinstance(found, Tensor)
    assert found.dtype is expected.dtype
    assert [str(size) for size in found.shape] == [str(size) for size in expected.shape]
    assert found.is_contiguous() == expected.is_contiguous()


def test_what_a_layer_may_not_take_is_left_to_it() -> None:
    sizes = BatchSizes({})
    with FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes.symbols):
        open_width = torch.empty(2, sizes.width("dense"))
    for layer in (nn.Linear(6, 4), nn.LayerNorm(6)):
        for x in (torch.empty(2, 5), torch.empty(2, 6, dtype=torch.int64), open_width, None):
            assert result_of(layer, x) is None
    assert result_of(nn.ReLU(inplace=True), torch.empty(2)) is None
    assert result_of(nn.Linear(6, 4).double(), torch.empty(2, 6)) is None
