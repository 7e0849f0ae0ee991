"""What lies inside of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from recsys import DistributedModelParallel, EmbeddingBagCollection
from recsys.train.ranks import ONE_RANK, process_group
from recsys.wrapped import get_module, get_unsharded_module_names, get_unwrapped_module
from tests.support.helpers import bag


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    with process_group(ONE_RANK):
        yield


def _model() -> nn.ModuleDict:
    sparse = nn.ModuleDict(
        {"bags": EmbeddingBagCollection([bag("t", 9, 16, ["f"])]), "norm": nn.LayerNorm(16)}
    )
    over = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 1))
    return nn.ModuleDict({"sparse": sparse, "over": over})


def test_wrappers_are_taken_off() -> None:
    model = _model()
    parallel = DistributedModelParallel(model)
    assert list(get_unwrapped_module(parallel)._modules) == ["sparse", "over"]
    assert get_module(model) is get_unwrapped_module(model) is model
    copies = DistributedDataParallel(nn.Linear(1, 1))
    assert get_module(copies) is copies
    assert isinstance(get_unwrapped_module(copies), nn.Linear)


def test_what_holds_no_sharded_collection() -> None:
    assert get_unsharded_module_names(DistributedModelParallel(_model()).module) == ["over", "sparse.norm"]
    assert get_unsharded_module_names(_model()) == []
