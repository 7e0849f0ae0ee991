"""Each sparse argument holds exactly its own features; those that no table reads, and numbers, can be inputs too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys import DataType, EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor, KeyedTensor
from recsys.artifact.batches.samples import Batch
from recsys.artifact.load import LoadedArtifact
from recsys.errors import ExportError
from recsys.jagged.tensor import JaggedTensor
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import assert_close, batch_of, exported, predicted

TARGETS = (("cpu",), ("cpu", "cpu"), ("cuda:0", "cuda:1"))


class _Items(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.items = EmbeddingBagCollection([bag("i", 30, 4, ["item"])])


class _Walk(_Items):
    """Walks over the keys of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.users = EmbeddingBagCollection([bag("u", 20, 4, ["user", "history"])])

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        users: KeyedTensor = self.users(user)
        found = torch.cat([users[key] for key in user.keys()], dim=1)  # noqa: SIM118
        items: KeyedTensor = self.items(item)
        return torch.cat([found, *[items[key] for key in item.keys()]], dim=1)  # noqa: SIM118


class _Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = EmbeddingBagCollection([bag("b", 30, 4, ["user", "item"])])

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.both(KeyedJaggedTensor.concat([user, item])).values()
        return found


class _Unlooked(_Items):
    """Reads a feature that no table holds."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        times = features["time"].to_padded_dense(3).to(torch.float32)
        found: Tensor = self.items(features).values()
        return found + times.sum(dim=1, keepdim=True) / 1e6


class _Crossed(_Items):
    """Looks up IDs that it computes."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        raw: JaggedTensor = features["raw"]
        made = KeyedJaggedTensor(["item"], (raw.values() * 7) % 30, lengths=raw.lengths())
        found: Tensor = self.items(made).values()
        return found


class _Numbers(_Items):
    """A sequence of numbers beside IDs."""

    def forward(self, prices: KeyedJaggedTensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.items(features).values()
        price: JaggedTensor = prices["price"]
        return found * price.to_padded_dense(4).sum(dim=1, keepdim=True)


class _OwnWeights(_Items):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        item: JaggedTensor = features["item"]
        scores = JaggedTensor(item.weights(), lengths=item.lengths()).to_padded_dense(4)
        found: Tensor = self.items(features).values()
        return found * scores.sum(dim=1, keepdim=True)


class _Bucketed(_Items):
    """Looks up IDs that it makes of dense numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, dense: Tensor) -> Tensor:
        ids = (dense[:, 0].abs() * 10).to(torch.int64) % 30
        made = KeyedJaggedTensor(["item"], ids, lengths=torch.ones_like(ids))
        found: Tensor = self.items(made).values() + self.layer(dense)
        return found


class _Weighing(nn.Module):
    """Computes the weights of its IDs."""

    def __init__(self) -> None:
        super().__init__()
        self.items = EmbeddingBagCollection([bag("i", 30, 4, ["item"])], is_weighted=True)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        ids = features.values()
        made = KeyedJaggedTensor(
            features.keys(), ids, weights=ids.to(torch.float32) / 30, lengths=features.lengths()
        )
        found: Tensor = self.items(made).values()
        return found


class _Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 4, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ec(features)["f"].to_padded_dense(3).sum(dim=1) + features.lengths().view(-1, 1)


def checked(
    model: nn.Module, path: Path, given: dict[str, list[str]], **options: Any
) -> tuple[LoadedArtifact, Batch]:
    """Export; compare with the model called with arguments that hold the given features."""
    _, artifact = exported(model, path, data_type=DataType.FP32, **options)
    batch = batch_of(artifact.signature, 9)
    parts: dict[str, JaggedTensor] = {}
    at = 0
    for i, feature in enumerate(artifact.signature.sparse):
        lengths = batch.lengths[i * 9 : i * 9 + 9]
        end = at + int(lengths.sum())
        weights = batch.weights[at:end] if batch.weights is not None and feature.weighted else None
        values = weights if feature.name == "price" else batch.values[at:end]
        parts[feature.name] = JaggedTensor(values, lengths=lengths, weights=weights)
        at = end
    call = {
        name: KeyedJaggedTensor.from_jt_dict({f: parts[f] for f in features})
        for name, features in given.items()
    }
    assert_close(artifact.forward(*batch.inputs()), predicted(model, call))
    return artifact, batch


def names_of(artifact: LoadedArtifact) -> list[str]:
    return [feature.name for feature in artifact.signature.sparse]


def test_a_walk_over_keys(tmp_path: Path) -> None:
    artifact, _ = checked(_Walk(), tmp_path / "a", {"user": ["user", "history"], "item": ["item"]})
    assert names_of(artifact) == ["user", "history", "item"]


def test_arguments_put_together(tmp_path: Path) -> None:
    artifact, _ = checked(_Concat(), tmp_path / "a", {"user": ["user"], "item": ["item"]}, targets=TARGETS)
    assert names_of(artifact) == ["user", "item"]
    declared = {"user": ("item",), "item": ("user",)}
    artifact, _ = checked(_Concat(), tmp_path / "b", {"user": ["item"], "item": ["user"]}, features=declared)
    assert names_of(artifact) == ["item", "user"]


def test_weighted_arguments_put_together(tmp_path: Path) -> None:
    model = _Concat()
    model.both = EmbeddingBagCollection([bag("b", 30, 4, ["user", "item"], "MEAN")], is_weighted=True)
    artifact, _ = checked(model, tmp_path / "a", {"user": ["user"], "item": ["item"]})
    assert [one.weighted for one in artifact.signature.sparse] == [True, True]


class _ConcatFirst(nn.Module):
    """Puts together arguments of which each has its own tables too, and one a feature that only the whole reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all = EmbeddingBagCollection([bag("b", 30, 4, ["user", "item", "query"])])
        self.user = EmbeddingBagCollection([bag("u", 30, 4, ["user"])])
        self.item = EmbeddingBagCollection([bag("i", 30, 4, ["item"])])

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        rows = self.all(KeyedJaggedTensor.concat([user, item])).values()
        return torch.cat([rows, self.user(user).values() * self.item(item).values()], dim=1)


def test_arguments_put_together_and_looked_up_apart(tmp_path: Path) -> None:
    artifact, _ = checked(_ConcatFirst(), tmp_path / "a", {"user": ["user", "query"], "item": ["item"]})
    assert names_of(artifact) == ["user", "query", "item"]


class _ConcatRead(_Concat):
    """Which argument holds a feature changes the answer."""

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        return super().forward(user, item) + user.lengths().view(len(user.keys()), -1).sum(dim=0).unsqueeze(1)


def test_arguments_put_together_and_read_apart_need_to_be_declared(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError,
        match=r"forward\(user, item\): cannot tell which of them holds which of the features user, item: .*"
        "Say it: --features user=F1,F2 --features item=F1,F2",
    ):
        exported(_ConcatRead(), tmp_path / "a")
    declared = {"user": ("user",), "item": ("item",)}
    checked(_ConcatRead(), tmp_path / "a", {"user": ["user"], "item": ["item"]}, features=declared)


class _WalkFirst(nn.Module):
    """Walks over the keys of both arguments; a collection for each feature."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        names = ("user", "history", "item")
        self.of = nn.ModuleDict({name: EmbeddingBagCollection([bag(name, 20, 4, [name])]) for name in names})

    def forward(self, user: KeyedJaggedTensor, item: KeyedJaggedTensor) -> Tensor:
        users = [self.of[key](user).values() for key in user.keys() if key != "item"]  # noqa: SIM118
        return torch.cat([*users, *[self.item(key, item) for key in item.keys()]], dim=1)  # noqa: SIM118

    def item(self, key: str, item: KeyedJaggedTensor) -> Tensor:
        if key != "item":
            raise KeyError(key)
        found: Tensor = self.of[key](item).values()
        return found


def test_a_walk_that_does_not_know_foreign_features(tmp_path: Path) -> None:
    artifact, _ = checked(_WalkFirst(), tmp_path / "a", {"user": ["user", "history"], "item": ["item"]})
    assert names_of(artifact) == ["user", "history", "item"]


def test_one_of_two_arguments_declared_tells_the_other(tmp_path: Path) -> None:
    declared = {"user": ("user",)}
    artifact, _ = checked(_Concat(), tmp_path / "a", {"user": ["user"], "item": ["item"]}, features=declared)
    assert names_of(artifact) == ["user", "item"]


def test_a_feature_that_no_table_reads(tmp_path: Path) -> None:
    model = _Unlooked()
    artifact, _ = checked(model, tmp_path / "a", {"features": ["item", "time"]})
    assert names_of(artifact) == ["item", "time"]
    time = artifact.signature.sparse[1]
    assert not time.tables
    assert time.id_limit is None


def test_ids_that_the_model_computes_are_no_inputs(tmp_path: Path) -> None:
    model = _Crossed()
    artifact, _ = checked(model, tmp_path / "a", {"features": ["raw"]})
    assert names_of(artifact) == ["raw"]


def test_ids_made_of_dense_numbers(tmp_path: Path) -> None:
    model = _Bucketed()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    assert not artifact.signature.sparse
    batch = batch_of(artifact.signature, 9)
    assert_close(artifact.forward(*batch.inputs()), predicted(model, {"dense": batch.dense[0]}))


def test_numbers_as_an_argument(tmp_path: Path) -> None:
    model = _Numbers()
    declared = {"prices": ("price",)}
    artifact, _ = checked(
        model,
        tmp_path / "a",
        {"prices": ["price"], "features": ["item"]},
        features=declared,
        float_features=("prices",),
    )
    assert {f.name: f.weighted for f in artifact.signature.sparse} == {"price": True, "item": False}


def test_weights_that_the_model_itself_reads(tmp_path: Path) -> None:
    model = _OwnWeights()
    artifact, _ = checked(model, tmp_path / "a", {"features": ["item"]})
    assert artifact.signature.sparse[0].weighted


def test_weights_that_the_model_computes_are_no_inputs(tmp_path: Path) -> None:
    artifact, _ = checked(_Weighing(), tmp_path / "a", {"features": ["item"]})
    assert not artifact.signature.sparse[0].weighted


def test_unknown_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"features: got unknown arguments \['x'\], expected some of \['features'\]"
    ):
        exported(_Sequences(), tmp_path / "a", features={"x": ("f",)})
    with pytest.raises(
        ExportError, match=r"features\['features'\]: got \['f', 'f'\], expected different names"
    ):
        exported(_Sequences(), tmp_path / "a", features={"features": ("f", "f")})
    with pytest.raises(
        ExportError, match=r"float_features: got \['x'\], expected only arguments of features"
    ):
        exported(_Sequences(), tmp_path / "a", float_features=("x",))
