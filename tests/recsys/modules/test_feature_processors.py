"""Feature processors: positions' weights, feature by feature, and embeddings of what they weighted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from recsys import EmbeddingBagCollection, JaggedTensor, KeyedJaggedTensor
from recsys.modules import position_weighted
from recsys.modules.feature_processors import (
    FeatureProcessedEmbeddingBagCollection,
    FeatureProcessor,
    FeatureProcessorsCollection,
    PositionWeightedModule,
    PositionWeightedModuleCollection,
)
from recsys.scripting.tracer import symbolic_trace
from tests.support.helpers import bag, kjt_of, scripted
from tests.support.reads import CountReads

BATCH = kjt_of({"a": [[1, 2, 3, 4], []], "b": [[5], [6, 7]]})
TABLES = [bag("t", 9, 4, ["a"]), bag("u", 9, 4, ["b"])]


def counted(module: nn.Module) -> nn.Module:
    """With weights 1, 2, 3 and so on."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.arange(1.0, weight.numel() + 1))
    return module


def processed() -> FeatureProcessedEmbeddingBagCollection:
    torch.manual_seed(0)
    processors: dict[str, FeatureProcessor] = {name: PositionWeightedModule(3) for name in "ab"}
    for processor in processors.values():
        counted(processor)
    return FeatureProcessedEmbeddingBagCollection(
        EmbeddingBagCollection(TABLES, is_weighted=True), processors
    )


def test_a_position_has_a_weight() -> None:
    module = PositionWeightedModule(3)
    rows = JaggedTensor([5, 6, 7, 8, 9], lengths=[4, 1])
    assert module(rows).weights().tolist() == [1.0] * 5
    # Positions after the last have the last one's weight.
    assert counted(module)(rows).weights().tolist() == [1.0, 2.0, 3.0, 3.0, 1.0]
    module.reset_parameters()
    assert module(rows).weights().tolist() == [1.0] * 5
    assert list(module.state_dict()) == ["position_weight"]


def test_a_batch_is_weighted_by_feature() -> None:
    module = counted(PositionWeightedModuleCollection({"b": 2}))
    found = module(BATCH)
    assert found["a"].weights().tolist() == [1.0] * 4
    assert found["b"].weights().tolist() == [1.0, 1.0, 2.0]
    assert found.lengths().tolist() == BATCH.lengths().tolist()
    assert list(module.state_dict()) == ["position_weights.b"]
    assert module.copy(torch.device("cpu")) is module


def test_batches_of_different_sizes() -> None:
    inverse = (["a", "b"], torch.tensor([[0, 0], [1, 0]]))
    batch = KeyedJaggedTensor(
        ["a", "b"], [1, 2, 3], lengths=[2, 0, 1], stride_per_key_per_rank=[[1], [2]], inverse_indices=inverse
    )
    found = counted(PositionWeightedModuleCollection({"a": 2, "b": 2}))(batch)
    assert found.weights().tolist() == [1.0, 2.0, 1.0]
    assert found.stride_per_key_per_rank() == [[1], [2]]
    assert found.inverse_indices()[1].tolist() == [[0, 0], [1, 0]]


def test_embeddings_are_weighted_sums() -> None:
    module = processed()
    table = module.state_dict()["_embedding_bag_collection.embedding_bags.t.weight"]
    expected = torch.tensor([1.0, 2.0, 3.0, 3.0]) @ table[1:5]
    torch.testing.assert_close(module(BATCH)["a"][0], expected)
    assert "_feature_processors.a.position_weight" in module.state_dict()
    module(BATCH).values().sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())


def test_a_collection_of_processors_does_the_same() -> None:
    module = processed()
    together = counted(PositionWeightedModuleCollection({"a": 3, "b": 3}))
    assert isinstance(together, FeatureProcessorsCollection)
    other = FeatureProcessedEmbeddingBagCollection(module.split()[1], together)
    assert torch.equal(other(BATCH).values(), module(BATCH).values())
    processors, tables = module.split()
    assert torch.equal(tables(processors(BATCH)).values(), module(BATCH).values())
    assert other.split()[0] is together


def test_it_is_traced_and_scripted() -> None:
    module = processed()
    graph = scripted(module, ["a", "b"])
    for batch in (BATCH, kjt_of({"a": [], "b": []}), kjt_of({"a": [[1], [2, 3]], "b": [[], []]})):
        expected = module(batch)
        found = graph(batch.lengths(), batch.values(), torch.empty(0))
        assert all(torch.equal(found[name], expected[name]) for name in expected.keys())  # noqa: SIM118


def test_older_processors() -> None:
    by_name = counted(position_weighted.PositionWeightedModule({"b": 2}))
    found = by_name(BATCH.to_dict().copy())
    assert found["b"].weights().tolist() == [1.0, 1.0, 2.0]
    assert found["a"].weights_or_none() is None
    of_batches = counted(position_weighted.PositionWeightedProcessor({"b": 2}))
    weighted = of_batches(BATCH)
    assert (weighted.keys(), weighted.weights().tolist()) == (["b"], [1.0, 1.0, 2.0])
    plain = kjt_of({"a": [[1]]})
    assert of_batches(plain) is plain
    assert list(by_name.state_dict()) == list(of_batches.state_dict()) == ["position_weights.b"]


def test_nothing_is_read() -> None:
    module, together = processed(), counted(PositionWeightedModuleCollection({"a": 3, "b": 3}))
    batch = KeyedJaggedTensor.from_jt_dict(BATCH.to_dict())
    with CountReads() as reads:
        module(batch), together(batch)
    assert reads.found == []


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"max_feature_lengths: got {'b': 0}, expected at least 1"):
        PositionWeightedModuleCollection({"a": 1, "b": 0})
    tables = EmbeddingBagCollection(TABLES, is_weighted=True)
    with pytest.raises(ValueError, match=r"feature_processors: got \['a'\], expected one for each of"):
        FeatureProcessedEmbeddingBagCollection(tables, {"a": PositionWeightedModule(3)})
    with pytest.raises(ValueError, match="got unweighted tables, expected is_weighted=True"):
        FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(TABLES), PositionWeightedModuleCollection({})
        )


@pytest.mark.parametrize(
    "module",
    [
        counted(PositionWeightedModuleCollection({"b": 2, "a": 3})),
        counted(position_weighted.PositionWeightedProcessor({"b": 2, "a": 3})),
        counted(position_weighted.PositionWeightedProcessor({"b": 2})),
    ],
    ids=["collection", "processor", "one feature"],
)
@pytest.mark.parametrize("trace", [symbolic_trace, fx.symbolic_trace], ids=["ours", "torch's"])
def test_processors_are_traced_with_a_batch_as_the_graphs_input(
    trace: Callable[[nn.Module], fx.GraphModule], module: nn.Module
) -> None:
    graph = trace(module)
    for batch in (BATCH, kjt_of({"b": [[8]], "a": [[1, 2]]})):
        found, expected = graph(batch), module(batch)
        assert found.keys() == expected.keys()
        assert torch.equal(found.values(), expected.values())
        assert torch.equal(found.weights(), expected.weights())


def test_the_processor_of_a_dict_is_traced() -> None:
    module = counted(position_weighted.PositionWeightedModule({"a": 3}))
    found, expected = symbolic_trace(module)(BATCH.to_dict().copy()), module(BATCH.to_dict().copy())
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"].weights(), expected["a"].weights())
    assert found["b"].weights_or_none() is None


def test_a_collection_behind_processors_is_traced() -> None:
    module = processed()
    assert torch.equal(symbolic_trace(module)(BATCH).values(), module(BATCH).values())
