"""Graphs and functions with the data types, compiled by TorchScript, against the same in Python."""

# Annotations are not deferred: TorchScript cannot read them as texts.

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recsys.configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from recsys.embedding import EmbeddingBagCollection, EmbeddingCollection
from recsys.jagged.keyed import KeyedTensor
from recsys.jagged.keyed_jagged import KeyedJaggedTensor
from recsys.jagged.tensor import JaggedTensor
from recsys.scripting.scripted import know_types
from recsys.scripting.tracer import symbolic_trace

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")  # of FX's graphs
know_types()
VALUES, LENGTHS = torch.tensor([3, 1, 4, 1, 5]), torch.tensor([2, 0, 1, 2])
WEIGHTS = torch.arange(5.0)
BATCH = KeyedJaggedTensor(["a", "b"], VALUES, WEIGHTS, lengths=LENGTHS)
BY_OFFSETS = KeyedJaggedTensor(["a", "b"], VALUES, offsets=torch.tensor([0, 2, 2, 3, 5]))


def bags() -> EmbeddingBagCollection:
    names = {"t1": ["a"], "t2": ["b", "a"]}
    return EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=name, embedding_dim=4, num_embeddings=9, feature_names=features)
            for name, features in names.items()
        ]
    )


def test_a_traced_collection_is_compiled_and_called_with_batches() -> None:
    collection = bags()
    compiled = torch.jit.script(symbolic_trace(collection))
    for batch in (BATCH, BY_OFFSETS):
        found, expected = compiled(batch), collection(batch)
        assert isinstance(found, KeyedTensor)
        assert (found.keys(), found.length_per_key()) == (expected.keys(), expected.length_per_key())
        assert torch.equal(found.values(), expected.values())
        assert torch.equal(found["a@t2"], expected["a@t2"])


class Parts(nn.Module):
    def forward(self, batch: KeyedJaggedTensor) -> dict[str, Tensor]:
        a = batch["a"]
        return {
            "values": batch.values(),
            "lengths": batch.lengths(),
            "offsets": batch.offsets(),
            "of a": a.values(),
            "lengths of a": a.lengths(),
            "offsets of b": batch.to_dict()["b"].offsets(),
            "lengths of b": batch.to_dict()["b"].lengths(),
        }


@pytest.mark.parametrize("batch", [BATCH, BY_OFFSETS], ids=["lengths", "offsets"])
@pytest.mark.parametrize("make", [lambda module: module, symbolic_trace], ids=["source", "graph"])
def test_parts_of_a_batch(make: Callable[[nn.Module], nn.Module], batch: KeyedJaggedTensor) -> None:
    found, expected = torch.jit.script(make(Parts()))(batch), Parts()(batch)
    assert {name: part.tolist() for name, part in found.items()} == {
        name: part.tolist() for name, part in expected.items()
    }


def test_batches_come_out_as_ours() -> None:
    def doubled(batch: KeyedJaggedTensor) -> tuple[KeyedJaggedTensor, JaggedTensor, int]:
        made = KeyedJaggedTensor(batch.keys(), batch.values() * 2, batch.weights(), batch.lengths())
        return made, JaggedTensor(batch.values(), lengths=batch.lengths()), made.stride()

    keyed, jagged, stride = torch.jit.script(doubled)(BATCH)
    assert isinstance(keyed, KeyedJaggedTensor)
    assert isinstance(jagged, JaggedTensor)
    assert stride == 2
    assert keyed["b"].values().tolist() == [8, 2, 10]
    assert keyed["b"].weights().tolist() == [2.0, 3.0, 4.0]
    assert not keyed.variable_stride_per_key()
    assert keyed.permute([1, 0]).keys() == ["b", "a"]
    assert [rows.tolist() for rows in jagged.to_dense()] == [[3, 1], [], [4], [1, 5]]


def test_batches_are_made() -> None:
    def made(values: Tensor, lengths: Tensor, offsets: Tensor) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
        return (
            KeyedJaggedTensor.from_lengths_sync(["a", "b"], values, lengths),
            KeyedJaggedTensor.from_offsets_sync(keys=["a", "b"], values=values, offsets=offsets),
        )

    for batch in torch.jit.script(made)(VALUES, LENGTHS, BATCH.offsets()):
        assert batch.stride() == 2
        assert batch["a"].values().tolist() == BATCH["a"].values().tolist()
        assert batch.length_per_key() == BATCH.length_per_key()


def test_columns_are_regrouped() -> None:
    def regrouped(keyed: list[KeyedTensor], groups: list[list[str]]) -> list[Tensor]:
        return KeyedTensor.regroup(keyed, groups)

    keyed = [KeyedTensor(["x", "y"], [1, 2], torch.rand(2, 3)), KeyedTensor(["z"], [2], torch.rand(2, 2))]
    groups = [["z", "x"], ["y"]]
    for found, expected in zip(
        torch.jit.script(regrouped)(keyed, groups), KeyedTensor.regroup(keyed, groups), strict=True
    ):
        assert torch.equal(found, expected)


def test_weights_that_are_not_there_are_an_error() -> None:
    def weights_of(batch: KeyedJaggedTensor) -> Tensor:
        return batch.weights()

    with pytest.raises(torch.jit.Error, match="weights: this KeyedJaggedTensor has none"):
        torch.jit.script(weights_of)(BY_OFFSETS)


@pytest.mark.parametrize("kind", ["bags", "rows"])
def test_the_device_of_a_collection_is_compiled(kind: str) -> None:
    class Moves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.collection = bags() if kind == "bags" else rows()

        def forward(self, x: Tensor) -> Tensor:
            return x.to(self.collection.device)

    assert torch.jit.script(Moves())(torch.ones(1)).device == torch.device("cpu")


def test_the_device_of_a_collection_without_tables_is_the_cpu() -> None:
    assert EmbeddingBagCollection([]).device == torch.device("cpu")
    assert EmbeddingBagCollection([table(PoolingType.SUM)], device=torch.device("meta")).device.type == "meta"


def table(pooling: PoolingType) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        name=pooling.value, embedding_dim=4, num_embeddings=9, feature_names=["b", "a"], pooling=pooling
    )


def rows(need_indices: bool = False) -> EmbeddingCollection:
    config = EmbeddingConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["b", "a"])
    return EmbeddingCollection([config], need_indices=need_indices)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("make", [lambda module: module, symbolic_trace], ids=["source", "graph"])
def test_bags_inside_of_a_model(make: Callable[[nn.Module], nn.Module], weighted: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            tables = [table(PoolingType.SUM), table(PoolingType.MEAN)]
            self.bags = EmbeddingBagCollection(tables, is_weighted=weighted)
            self.over = nn.Linear(16, 1)

        def forward(self, batch: KeyedJaggedTensor) -> Tensor:
            return self.over(self.bags(batch).values())

    model = Model()
    assert torch.equal(torch.jit.script(make(model))(BATCH), model(BATCH))


@pytest.mark.parametrize("need_indices", [False, True])
def test_rows_inside_of_a_model(need_indices: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = rows(need_indices)

        def forward(self, batch: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
            return self.rows(batch)

    model = Model()
    found, expected = torch.jit.script(model)(BATCH), model(BATCH)
    assert list(found) == list(expected)
    for name, jagged in expected.items():
        assert torch.equal(found[name].values(), jagged.values())
        assert torch.equal(found[name].weights(), jagged.weights())
        assert torch.equal(found[name].lengths(), jagged.lengths())
