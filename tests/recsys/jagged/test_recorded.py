"""Models of the data types under FX: as inputs, as outputs, put together and made on the way."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from recsys import (
    EmbeddingBagCollection,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    LazyAwaitable,
)
from recsys.jagged.conversions import ComputeJTDictToKJT, ComputeKJTToJTDict
from recsys.scripting.tracer import symbolic_trace
from recsys.sharding.transport.awaitable import NoWait
from tests.support.helpers import bag, kjt_of

IDS, FLOATS = torch.arange(4), torch.arange(4.0)
LENGTHS = torch.tensor([1, 0, 2, 1])
BATCH = kjt_of({"a": [[1, 2], []], "b": [[3], [4, 5]]})
OTHER = kjt_of({"c": [[6], [7]]})
JAGGED = JaggedTensor(IDS, FLOATS, LENGTHS)
KEYED = KeyedTensor(["a", "b"], [1, 2], torch.arange(6.0).view(2, 3))
OTHER_KEYED = KeyedTensor(["c"], [1], torch.ones(2, 1))
VARIABLE = KeyedJaggedTensor(
    ["a", "b"],
    IDS,
    lengths=LENGTHS,
    stride_per_key_per_rank=[[3], [1]],
    inverse_indices=(["a", "b"], torch.tensor([[0, 2, 1], [0, 0, 0]])),
)


def again(batch: Any) -> Any:
    """Take a batch apart and make it again."""
    tensors = (batch.values(), batch.weights_or_none(), batch.lengths(), batch.offsets())
    made = KeyedJaggedTensor(batch.keys(), *tensors)
    return made, made.stride()


# A function, and its arguments.
MODELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "jagged in": (lambda jt: jt.values().numel() + jt.lengths().sum(), (JAGGED,)),
    "jagged out": (lambda v, w, n: JaggedTensor(v, w, n), (IDS, FLOATS, LENGTHS)),
    "jagged in and out": (
        lambda jt: JaggedTensor(jt.values(), jt.weights(), offsets=jt.offsets()),
        (JAGGED,),
    ),
    "empty like jagged": (lambda jt: JaggedTensor.empty_like(jt).weights(), (JAGGED,)),
    "from dense lengths": (
        lambda x, n: JaggedTensor.from_dense_lengths(x, n, x),
        (FLOATS.view(2, 2), torch.tensor([1, 2])),
    ),
    "batch in": (lambda batch: [batch["a"].values(), batch.to_dict()["b"].offsets()], (BATCH,)),
    "batch out": (lambda v, n: KeyedJaggedTensor.from_lengths_sync(["a", "b"], v, n), (IDS, LENGTHS)),
    "batch of weights out": (lambda v, w, n: KeyedJaggedTensor(["a", "b"], v, w, n), (IDS, FLOATS, LENGTHS)),
    "batch of given keys": (
        lambda k, v, n: KeyedJaggedTensor(keys=k, values=v, lengths=n),
        (["a"], IDS, LENGTHS),
    ),
    "batch in and out": (again, (BATCH,)),
    "batch made": (lambda x: x + len(KeyedJaggedTensor(["a"], [1], lengths=[1]).keys()), (3,)),
    "constant batch out": (lambda x: (x, VARIABLE), (IDS,)),
    "parts": (lambda batch: batch.split([1, 1])[1].permute([0]), (BATCH,)),
    "empty like batch": (lambda batch: KeyedJaggedTensor.empty_like(batch).lengths(), (BATCH,)),
    "joined": (lambda batches: KeyedJaggedTensor.concat(batches), ([BATCH, OTHER],)),
    "joined with a constant": (lambda batch: KeyedJaggedTensor.concat([batch, OTHER]), (BATCH,)),
    "to jagged": (ComputeKJTToJTDict(), (BATCH,)),
    "from jagged": (ComputeJTDictToKJT(), ({"x": JAGGED, "y": JAGGED},)),
    "columns out": (lambda x: KeyedTensor(["a", "b"], [1, 2], x), (torch.ones(2, 3),)),
    "columns in and out": (lambda kt: KeyedTensor(kt.keys(), kt.length_per_key(), kt.values()), (KEYED,)),
    "regrouped": (lambda kts: KeyedTensor.regroup(kts, [["b", "c"], ["a"]]), ([KEYED, OTHER_KEYED],)),
    "regrouped as asked": (KeyedTensor.regroup, ([KEYED, OTHER_KEYED], [["b", "c"], ["a"]])),
    "regrouped by name": (
        lambda one, other: KeyedTensor.regroup_as_dict([one, other], [["b", "c"]], ["x"]),
        (KEYED, OTHER_KEYED),
    ),
    "awaitable": (lambda x: LazyAwaitable(lambda: x + 1) * 2 + LazyAwaitable(lambda: x), (FLOATS,)),
    "awaitable out": (lambda x: [LazyAwaitable(lambda: x + 1), NoWait(x)], (FLOATS,)),
}


def assert_same(answer: Any, expected: Any) -> None:
    found, wanted = (
        tree_leaves(each, is_leaf=lambda a: isinstance(a, NoWait)) for each in (answer, expected)
    )
    for one, other in zip(found, wanted, strict=True):
        result = other.wait() if isinstance(other, (LazyAwaitable, NoWait)) else other
        assert type(one) is type(result)
        assert torch.equal(one, result) if isinstance(one, torch.Tensor) else one == result


@pytest.mark.parametrize("trace", [symbolic_trace, fx.symbolic_trace], ids=["ours", "torch's"])
@pytest.mark.parametrize(("function", "inputs"), MODELS.values(), ids=MODELS)
def test_a_graph_answers_as_the_model(
    trace: Any, function: Callable[..., Any], inputs: tuple[Any, ...]
) -> None:
    assert_same(trace(function)(*inputs), function(*inputs))


@pytest.mark.parametrize("name", ["batch in and out", "joined", "regrouped", "from jagged"])
def test_graphs_are_pickled(name: str) -> None:
    function, inputs = MODELS[name]
    graph = symbolic_trace(function)
    assert_same(pickle.loads(pickle.dumps(graph))(*inputs), graph(*inputs))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection([bag("t", 9, 4, ["a", "b"]), bag("u", 9, 4, ["b"])])

    def forward(self, batch: KeyedJaggedTensor) -> torch.Tensor:
        first, second = KeyedTensor.regroup([self.bags(batch)], [["a"], ["b@u", "a"]])
        return first.sum() + second


@pytest.mark.parametrize("trace", [symbolic_trace, fx.symbolic_trace], ids=["ours", "torch's"])
@pytest.mark.parametrize(
    "make", [Bags, lambda: Bags().bags, lambda: row_collection(True)], ids=["in a model", "bags", "rows"]
)
def test_collections_are_traced(trace: Any, make: Callable[[], nn.Module]) -> None:
    module = make()
    graph = trace(module)
    for batch in (BATCH, BATCH.permute([1, 0])):
        assert_same(graph(batch), module(batch))


def row_collection(need_indices: bool) -> EmbeddingCollection:
    table = EmbeddingConfig(name="t", num_embeddings=9, embedding_dim=4, feature_names=["a", "b"])
    return EmbeddingCollection([table], need_indices=need_indices)


def test_a_traced_collection_spreads_bags_that_are_stored_once() -> None:
    collection = Bags().bags
    assert_same(fx.symbolic_trace(collection)(VARIABLE), collection(VARIABLE))
