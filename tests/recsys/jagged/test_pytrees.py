"""The data types as nodes of pytrees: tree_map, torch.export with batches as arguments."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export, load, save
from torch.utils._pytree import tree_flatten, tree_map, tree_map_with_path

from recsys import EmbeddingBagCollection, EmbeddingCollection, JaggedTensor, KeyedJaggedTensor, KeyedTensor
from tests.support.helpers import bag, kjt_of, sequence


def test_tree_map_reaches_every_tensor() -> None:
    inverse = (["a", "b"], torch.tensor([[1, 0], [0, 0]]))
    variable = KeyedJaggedTensor(
        ["a", "b"],
        [1, 2, 3],
        [0.5, 1.0, 1.5],
        [1, 1, 1],
        stride_per_key_per_rank=[[2], [1]],
        inverse_indices=inverse,
    )
    batch: Any = {
        "kjt": kjt_of({"a": [[1], []], "b": [[2, 3], [4]]}),
        "variable": variable,
        "rows": [JaggedTensor([1.0, 2.0], offsets=[0, 0, 2])],
        "pooled": KeyedTensor(["x", "y"], [1, 2], torch.ones(2, 3)),
    }
    doubled = tree_map(lambda t: t * 2, batch)
    assert doubled["kjt"].values().tolist() == [2, 4, 6, 8]
    assert doubled["kjt"].keys() == ["a", "b"]
    assert doubled["kjt"].stride() == 2
    assert doubled["variable"].weights().tolist() == [1.0, 2.0, 3.0]
    assert doubled["variable"].inverse_indices()[1].tolist() == [[2, 0], [0, 0]]
    assert doubled["variable"].stride_per_key_per_rank() == [[2], [1]]
    assert doubled["rows"][0].values().tolist() == [2.0, 4.0]
    assert doubled["pooled"]["y"].tolist() == [[2.0, 2.0]] * 2
    moved = tree_map(lambda t: t.to("meta"), batch)
    assert {t.device.type for t in tree_flatten(moved)[0]} == {"meta"}


def test_a_batch_is_put_together_from_what_a_function_returns() -> None:
    named = tree_map_with_path(lambda path, _: str(path[-1]), kjt_of({"a": [[1]]}))
    assert (named.values(), named.lengths()) == ("._values", "._lengths")
    dtypes = tree_map(lambda t: t.dtype, KeyedTensor(["a"], [2], torch.ones(1, 2)))
    assert dtypes.values() == torch.float32


def test_batches_of_the_same_features_have_the_same_structure() -> None:
    used, fresh = kjt_of({"a": [[1], []]}).sync(), kjt_of({"a": [[1, 2, 3]]})
    used.offsets(), used.to_dict()
    specs = [tree_flatten(batch)[1] for batch in (used, fresh)]
    assert specs[0] == specs[1]
    assert tree_flatten(kjt_of({"b": [[1]]}))[1] != specs[0]


def test_a_batch_without_features_keeps_its_size() -> None:
    made = KeyedJaggedTensor([], torch.empty(0), lengths=torch.empty(0, dtype=torch.int32), stride=4)
    assert tree_map(torch.clone, made).stride() == 4


class Model(nn.Module):
    def __init__(self, weighted: bool = False) -> None:
        super().__init__()
        tables = [bag("t", 20, 4, ["a"]), bag("u", 20, 4, ["b"], "MEAN")]
        self.pooled = EmbeddingBagCollection(tables, is_weighted=weighted)
        self.rows = EmbeddingCollection([sequence("t", 20, 4, ["a"])])
        self.over = nn.Linear(8, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> tuple[Tensor, KeyedTensor, JaggedTensor]:
        pooled = self.pooled(features)
        return self.over(pooled.values()) + dense, pooled, self.rows(features)["a"]


def batch_of(num_rows: int, weighted: bool = False) -> tuple[Tensor, KeyedJaggedTensor]:
    bags = {key: [list(range(i % 3)) for i in range(num_rows)] for key in "ab"}
    num_ids = sum(len(ids) for rows in bags.values() for ids in rows)
    return torch.rand(num_rows, 1), kjt_of(bags, [0.5] * num_ids if weighted else None)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.filterwarnings("ignore")
def test_torch_export_takes_a_model_of_a_batch(strict: bool, weighted: bool) -> None:
    model = Model(weighted)
    sizes = ({0: Dim.DYNAMIC}, [{0: Dim.DYNAMIC}] * (3 if weighted else 2))
    program = export(model, batch_of(5, weighted), dynamic_shapes=sizes, strict=strict)
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    for made in (program.module(), load(file).module()):
        for num_rows in (5, 2, 9):
            given = batch_of(num_rows, weighted)
            got, expected = made(*given), model(*given)
            assert isinstance(got[1], KeyedTensor)
            torch.testing.assert_close(got[0], expected[0])
            torch.testing.assert_close(got[1].values(), expected[1].values())
            torch.testing.assert_close(got[2].values(), expected[2].values())
            assert torch.equal(got[2].lengths(), expected[2].lengths())


def test_torch_export_takes_a_batch_made_inside() -> None:
    class Inside(Model):
        def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
            return self.pooled(KeyedJaggedTensor.from_lengths_sync(["a", "b"], ids, lengths)).values()

    model, batch = Inside(), batch_of(4)[1]
    program = export(model, (batch.values(), batch.lengths()))
    torch.testing.assert_close(
        program.module()(batch.values(), batch.lengths()), model(batch.values(), batch.lengths())
    )
