"""Tables that are called as methods of dict or of modules: every collection takes them, or refuses them by name."""

from __future__ import annotations

import copy
import io
from typing import cast

import pytest
import torch
from torch import Tensor, fx, nn

from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.base.table_modules import TAKEN_NAMES, TableModules
from recsys.quant import QuantEmbeddingBagCollection
from tests.support.helpers import bag, kjt_of, sequence

#: Names of methods that tables may have.
METHODS = ("items", "keys", "values", "pop", "update", "clear", "type")
KJT = {f"of {name}": [[1, 2], [], [3]] for name in METHODS}


def collection() -> EmbeddingBagCollection:
    return EmbeddingBagCollection([bag(name, 10 + i, 4, [f"of {name}"]) for i, name in enumerate(METHODS)])


def plain() -> EmbeddingBagCollection:
    """The same tables under other names, with the same weights."""
    return EmbeddingBagCollection(
        [bag(f"t_{name}", 10 + i, 4, [f"of {name}"]) for i, name in enumerate(METHODS)]
    )


@pytest.fixture
def pair() -> tuple[EmbeddingBagCollection, EmbeddingBagCollection]:
    """A collection with such names, and one with other names and the same weights."""
    ebc, other = collection(), plain()
    other.load_state_dict(
        {name.replace("embedding_bags.", "embedding_bags.t_"): w for name, w in ebc.state_dict().items()}
    )
    return ebc, other


def test_tables_are_found_by_name_and_in_the_state_dict() -> None:
    ebc = collection()
    assert list(ebc.state_dict()) == [f"embedding_bags.{name}.weight" for name in METHODS]
    for i, name in enumerate(METHODS):
        assert isinstance(ebc.embedding_bags[name], nn.EmbeddingBag)
        assert ebc.get_parameter(f"embedding_bags.{name}.weight").shape == (10 + i, 4)
        assert ebc.get_submodule(f"embedding_bags.{name}") is ebc.embedding_bags[name]
    assert [path for path, _ in ebc.named_modules()][2:] == [f"embedding_bags.{name}" for name in METHODS]


def test_a_container_without_such_tables_is_a_dict_as_before() -> None:
    tables = EmbeddingBagCollection([bag("t", 4, 2, ["a"]), bag("u", 4, 2, ["b"])]).embedding_bags
    assert list(tables.keys()) == [name for name, _ in tables.items()] == ["t", "u"]
    assert len(list(tables.values())) == len(tables) == 2
    assert "t" in tables


def test_they_answer_as_tables_with_other_names(
    pair: tuple[EmbeddingBagCollection, EmbeddingBagCollection],
) -> None:
    kjt = kjt_of(KJT)
    expected = pair[1](kjt).values()
    assert torch.equal(pair[0](kjt).values(), expected)
    assert torch.equal(copy.deepcopy(pair[0])(kjt).values(), expected)
    file = io.BytesIO()
    torch.save(pair[0].state_dict(), file)
    file.seek(0)
    loaded = collection()
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(loaded(kjt).values(), expected)


def test_modules_with_them_are_moved_trained_and_frozen() -> None:
    ebc = collection()
    assert not any(part.training for part in ebc.eval().modules())
    assert all(part.training for part in ebc.train().modules())
    assert {w.dtype for w in ebc.to(torch.float64).parameters()} == {torch.float64}
    assert not any(w.requires_grad for w in ebc.requires_grad_(False).parameters())
    ebc.float().requires_grad_()(kjt_of(KJT)).values().sum().backward()
    assert all(w.grad is not None for w in ebc.parameters())


def test_they_are_quantized(pair: tuple[EmbeddingBagCollection, EmbeddingBagCollection]) -> None:
    one, other = (QuantEmbeddingBagCollection.from_float(ebc) for ebc in pair)
    assert torch.equal(one(kjt_of(KJT)).values(), other(kjt_of(KJT)).values())
    assert list(one.state_dict())[: len(METHODS)] == [f"embedding_bags.{name}.weight" for name in METHODS]


def test_single_rows() -> None:
    ec = EmbeddingCollection([sequence(name, 9, 4, [f"of {name}"]) for name in METHODS])
    answer = ec(kjt_of(KJT))
    for name in METHODS:
        weight = cast(Tensor, ec.embeddings[name].weight)
        assert torch.equal(answer[f"of {name}"].values(), weight[[1, 2, 3]])


def test_a_model_with_them_is_traced() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = TableModules({"items": nn.Linear(2, 2), "keys": nn.Linear(2, 1)})

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.tables["keys"](self.tables["items"](x)))

    model, x = Model(), torch.randn(3, 2)
    traced = fx.symbolic_trace(model)
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize("name", sorted(TAKEN_NAMES))
def test_other_names_of_modules_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"tables\['{name}'\]\.name: got '{name}', which torch\.nn\.Module uses"
    ):
        EmbeddingBagCollection([bag(name, 4, 2, ["a"])])


def test_every_attribute_of_a_container_is_a_free_or_a_taken_name() -> None:
    assert set(dir(TableModules())) == TAKEN_NAMES | set(METHODS)
    assert {"forward", "training", "train", "parameters", "_modules"} <= TAKEN_NAMES


def test_features_may_have_any_name() -> None:
    names = [*sorted(TAKEN_NAMES)[:5], "a.b", "items"]
    ebc = EmbeddingBagCollection([bag("t", 4, 2, names)])
    kjt = KeyedJaggedTensor.from_lengths(names, values=[1] * len(names), lengths=[1] * len(names))
    assert ebc(kjt).keys() == names
