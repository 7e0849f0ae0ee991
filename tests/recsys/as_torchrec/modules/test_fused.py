"""Collections whose tables are updated in the backward pass from the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from recsys import EmbeddingBagCollection, EmbeddingCollection
from recsys.as_torchrec.modules.fused import (
    FusedEmbeddingBagCollection,
    FusedEmbeddingCollection,
    fuse_embedding_optimizer,
)
from tests.support.helpers import bag, kjt_of, sequence

TABLES = [bag("t", 9, 4, ["a"]), bag("u", 9, 4, ["b"])]
BATCH = kjt_of({"a": [[1, 2], [2]], "b": [[3], []]})


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_the_backward_pass_updates_as_the_optimizer_would(kind: Any) -> None:
    module = FusedEmbeddingBagCollection(TABLES, kind, {"lr": 0.5})
    plain = EmbeddingBagCollection(TABLES)
    plain.load_state_dict(module.state_dict())
    optimizer = kind(plain.parameters(), lr=0.5)
    for _ in range(2):
        module(BATCH).values().square().sum().backward()
        optimizer.zero_grad()
        plain(BATCH).values().square().sum().backward()
        optimizer.step()
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), weight)
        assert module.get_parameter(name).grad is None


def test_its_optimizer_has_names_and_a_learning_rate() -> None:
    module = FusedEmbeddingBagCollection(TABLES, torch.optim.SGD, {"lr": 0.5})
    optimizer: Any = module.fused_optimizer()
    assert list(optimizer.params) == ["embedding_bags.t.weight", "embedding_bags.u.weight"]
    assert (module.optimizer_type(), module.optimizer_kwargs()) == (torch.optim.SGD, {"lr": 0.5})
    before = weights_of(module)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    module(BATCH).values().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert all(torch.equal(weight, before[name]) for name, weight in module.named_parameters())


def test_sequences() -> None:
    module = FusedEmbeddingCollection([sequence("t", 9, 4, ["a"])], torch.optim.SGD, {"lr": 1.0})
    before = weights_of(module)["embeddings.t.weight"]
    module(BATCH)["a"].values().sum().backward()
    changed = (module.get_parameter("embeddings.t.weight") != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [1, 2]


def test_a_model_is_changed_in_place() -> None:
    model = nn.ModuleDict(
        {
            "bags": EmbeddingBagCollection(TABLES, is_weighted=True),
            "rows": nn.Sequential(EmbeddingCollection([sequence("t", 9, 4, ["a"])], need_indices=True)),
        }
    )
    arguments: Any = (torch.optim.SGD, {"lr": 0.5}, torch.device("cpu"))
    assert fuse_embedding_optimizer(model, *arguments) is model
    assert isinstance(model["bags"], FusedEmbeddingBagCollection)
    assert model["bags"].is_weighted()
    assert isinstance(model["rows"][0], FusedEmbeddingCollection)
    assert model["rows"][0].need_indices()
    assert isinstance(fuse_embedding_optimizer(EmbeddingBagCollection(TABLES), *arguments), nn.Module)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match="LBFGS"):
        FusedEmbeddingBagCollection(TABLES, torch.optim.LBFGS, {})
    with pytest.raises(ValueError, match="location: got 1, expected None"):
        FusedEmbeddingBagCollection(TABLES, torch.optim.SGD, {"lr": 0.5}, location=1)
