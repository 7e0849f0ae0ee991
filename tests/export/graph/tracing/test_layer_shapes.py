"""Shapes that are told without running anything, against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from export.graph.tracing.layer_shapes import result_of, size_of
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


class _Sized(nn.Module):
    """Nodes that tell sizes of their results, and some that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.several = nn.Linear(6, 1), nn.Linear(6, 4)
        self.replaced, self.hooked = nn.Linear(6, 4), nn.Linear(6, 4)
        self.replaced.forward = torch.relu  # type: ignore[method-assign]
        self.hooked.register_forward_hook(lambda *told: told[2][:, :2])

    def forward(self, x: Tensor, offsets: Tensor) -> list[Tensor]:
        layers = (self.one, self.several, self.replaced, self.hooked)
        pad = torch.ops.fbgemm.jagged_to_padded_dense
        return [layer(x) for layer in layers] + [pad(x, [offsets], [most], 0.0) for most in (1, 3)]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def test_sizes_that_nodes_tell() -> None:
    model = _Sized()
    graph = _Tracer().trace(model)
    [results] = [node.args[0] for node in graph.nodes if node.op == "output"]
    assert isinstance(results, list)
    expected = model(torch.rand(4, 6), torch.tensor([0, 1, 4]))
    told = [[size_of(model, node, dim) for dim in (-1, 0, 1, 2)] for node in results]
    assert told == [[1, None, None, None], [4, None, None, None], *[[None] * 4] * 2] + [
        [None, None, most, None] for most in (1, 3)
    ]
    for sizes, result in zip(told, expected, strict=True):
        for dim, size in zip((-1, 0, 1, 2), sizes, strict=True):
            assert size is None or size == result.shape[dim]
