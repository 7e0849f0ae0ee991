"""The tracer: collections are leaves, awaitables are waited for, annotations that are texts can be compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, KeyedJaggedTensor, LazyAwaitable
from recsys.inputs.schema import DenseColumn
from recsys.models.dcn import CrossAndDeep
from recsys.models.dense import DenseTransforms
from recsys.models.factorization import FactorizedNetwork
from recsys.models.mmoe import MultiGateExperts
from recsys.models.two_tower import TwoTowers
from recsys.scripting.torchscript import script
from recsys.scripting.tracer import Tracer, is_fx_tracing, symbolic_trace
from recsys.sharding.transport.awaitable import NoWait
from tests.support.helpers import bag, kjt_of


class Dense(nn.Module):
    def forward(self, first: Tensor, second: list[Tensor], scale: float = 2.0) -> Tensor:
        return first * scale + second[0]


def test_annotations_that_are_texts_are_compiled() -> None:
    graph = symbolic_trace(Dense())
    assert [node.type for node in graph.graph.nodes if node.op == "placeholder"] == [
        Tensor,
        list[Tensor],
        float,
    ]
    compiled = script(graph)
    assert compiled(torch.ones(1), [torch.ones(1)]).tolist() == [3.0]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection([bag("t", 9, 4, ["a"])])
        self.over = Dense()

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(features).values()
        assert is_fx_tracing() or isinstance(pooled, Tensor)
        return self.over(LazyAwaitable(lambda: pooled), [NoWait(pooled).wait()])


def test_collections_are_called_as_they_are() -> None:
    model = Model()
    graph = symbolic_trace(model, leaf_modules=["Dense"])
    called = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert called == ["bags", "over"]
    batch = kjt_of({"a": [[1, 2], [3]]})
    assert torch.equal(graph(batch), model(batch))
    assert not is_fx_tracing()


def test_constants() -> None:
    graph = torch.fx.GraphModule(nn.Module(), Tracer().trace(Dense(), {"scale": 3.0}))
    assert "3.0" in graph.code


PARTS: dict[str, Callable[[], nn.Module]] = {
    "cross and deep": lambda: CrossAndDeep(4, 1, 1, 2, [3]),
    "factorized": lambda: FactorizedNetwork(4, 2, 1, [3]),
    "experts": lambda: MultiGateExperts(4, 2, 2, [3], [3]),
    "towers": lambda: TwoTowers(4, 3, [3, 2]),
    "dense": lambda: DenseTransforms([DenseColumn(name="x", log1p=True)]),
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_layers_of_plain_tensors_are_compiled_after_any_tracer(make: Callable[[], nn.Module]) -> None:
    assert script(torch.fx.symbolic_trace(make()))
