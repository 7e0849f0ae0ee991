"""Regrouping, towers, copies and widths of modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedTensor
from recsys.as_torchrec.modules.embedding_tower import (
    EmbeddingTower,
    EmbeddingTowerCollection,
    tower_input_params,
)
from recsys.as_torchrec.modules.outputs import (
    check_module_output_dimension,
    construct_modulelist_from_single_module,
    convert_list_of_modules_to_modulelist,
    get_module_output_dimension,
)
from recsys.configs import DataType
from recsys.modules.copying import ModuleCopyMixin, ModuleNoCopyMixin
from recsys.modules.regroup import KTRegroupAsDict
from tests.support.helpers import bag, kjt_of, sequence

KEYED = [
    KeyedTensor(["a", "b"], [1, 2], torch.arange(6.0).view(2, 3)),
    KeyedTensor(["c"], [1], torch.tensor([[6.0], [7.0]])),
]


def test_columns_are_regrouped() -> None:
    module = KTRegroupAsDict([["c", "a"], ["b"]], ["x", "y"])
    found = module(KEYED)
    assert {name: columns.tolist() for name, columns in found.items()} == {
        "x": [[6.0, 0.0], [7.0, 3.0]],
        "y": [[1.0, 2.0], [4.0, 5.0]],
    }
    module.clear_cache()
    halves = KTRegroupAsDict([["c"]], ["x"], emb_dtype=DataType.FP16)(KEYED)
    assert halves["x"].dtype == torch.float16
    with pytest.raises(ValueError, match="keys: got 1 for 2 groups"):
        KTRegroupAsDict([["a"], ["b"]], ["x"])


class Values(nn.Module):
    def forward(self, embeddings: KeyedTensor) -> Tensor:
        return embeddings.values()


def test_towers_stand_side_by_side() -> None:
    plain = EmbeddingBagCollection([bag("t", 9, 4, ["a"])])
    weighted = EmbeddingBagCollection([bag("u", 9, 2, ["b"])], is_weighted=True)
    towers = EmbeddingTowerCollection([EmbeddingTower(plain, Values()), EmbeddingTower(weighted, Values())])
    batches = kjt_of({"a": [[1], [2]]}), kjt_of({"b": [[3], [4]]}, [0.5, 2.0])
    expected = torch.cat([plain(batches[0]).values(), weighted(batches[1]).values()], dim=1)
    assert torch.equal(towers(*batches), expected)
    with pytest.raises(ValueError, match="weighted_features: got None, expected a batch"):
        towers(batches[0])
    assert tower_input_params(EmbeddingCollection([sequence("t", 9, 4, ["a"])])) == (True, False)
    assert tower_input_params(nn.Linear(1, 1)) == (True, True)


def test_modules_say_how_they_are_copied() -> None:
    class Moved(nn.Linear, ModuleCopyMixin): ...

    class Kept(nn.Linear, ModuleNoCopyMixin): ...

    device = torch.device("meta")
    assert Moved(1, 1).copy(device).weight.is_meta
    assert not Kept(1, 1).copy(device).weight.is_meta


def test_widths_are_checked() -> None:
    layers = nn.ModuleList([nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))])
    assert get_module_output_dimension(layers[1], 3) == 2
    assert check_module_output_dimension(layers, 3, 2)
    assert not check_module_output_dimension([layers, nn.Linear(3, 1)], 3, 2)


def test_lists_of_modules() -> None:
    made: Any = construct_modulelist_from_single_module(nn.Linear(3, 2), (2, 3))
    assert [len(inner) for inner in made] == [3, 3]
    weights = list(made.parameters())
    assert len(weights) == 12
    assert not torch.equal(weights[0], weights[2])
    again = convert_list_of_modules_to_modulelist([list(inner) for inner in made], (2, 3))
    assert isinstance(again[1], nn.ModuleList)
    with pytest.raises(ValueError, match="modules: got 2, expected 3"):
        convert_list_of_modules_to_modulelist(made, (3, 3))
