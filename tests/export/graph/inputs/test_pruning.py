"""A model that is exported for some of its outputs keeps only what these need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import (
    DataType,
    EmbeddingBagCollection,
    EmbeddingCollection,
    KeyedJaggedTensor,
    KeyedTensor,
)
from recsys.artifact.load import LoadedArtifact
from recsys.errors import ExportError
from recsys.managed import (
    LFU_EvictionPolicy,
    ManagedCollisionCollection,
    ManagedCollisionEmbeddingBagCollection,
    MCHManagedCollisionModule,
)
from recsys.modules.feature_processors import (
    FeatureProcessedEmbeddingBagCollection,
    PositionWeightedModule,
)
from recsys.scripting import torchscript
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted

TARGETS = (("cpu",), ("cpu", "cpu"), ("cuda:0", "cuda:1"))


class _Tower(nn.Module):
    """Pooled tables and a sequence, dense numbers, and a layer."""

    def __init__(self, side: str, dense: int, *, need_indices: bool) -> None:
        super().__init__()
        self.side = side
        items = [sequence(f"{side}_seq", 30, 8, [f"{side}_seq"])]
        self.ebc = EmbeddingBagCollection([bag(f"{side}s", 20, 8, [f"{side}_id", f"{side}_tag"], "MEAN")])
        self.ec = EmbeddingCollection(items, need_indices=need_indices)
        self.layers = nn.Sequential(nn.Linear(16 + 8 + dense, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        rows = self.ec(features)[f"{self.side}_seq"].to_padded_dense(3).sum(dim=1)
        return self.layers(torch.cat([dense, self.ebc(features).values(), rows], dim=1))


class _Towers(nn.Module):
    need_indices = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.user = _Tower("user", 3, need_indices=self.need_indices)
        self.item = _Tower("item", 5, need_indices=self.need_indices)
        self.user_norm, self.item_norm = nn.LayerNorm(3), nn.LayerNorm(5)


class _OneArgument(_Towers):
    """Both towers look their features up in one argument."""

    need_indices = True

    def forward(self, age: Tensor, price: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        user = self.user(self.user_norm(age), features)
        item = self.item(self.item_norm(price), features)
        return {"user": user, "item": item, "score": (user * item).sum(dim=1)}


class _TwoArguments(_Towers):
    """Each tower has an argument of its own."""

    def forward(
        self, age: Tensor, user: KeyedJaggedTensor, price: Tensor, item: KeyedJaggedTensor
    ) -> dict[str, Tensor]:
        of_user = self.user(self.user_norm(age), user)
        of_item = self.item(self.item_norm(price), item)
        return {"user": of_user, "item": of_item, "score": (of_user * of_item).sum(dim=1)}


SIDES = {
    "user": (["users", "user_seq"], ["user_id", "user_tag", "user_seq"], ["age"]),
    "item": (["items", "item_seq"], ["item_id", "item_tag", "item_seq"], ["price"]),
}


def tables_of(artifact: LoadedArtifact) -> list[str]:
    return [info.table.name.rsplit(".", 1)[-1] for info in artifact.manifest.tables]


def inputs_of(artifact: LoadedArtifact) -> list[str]:
    signature = artifact.signature
    return [*(one.name for one in signature.dense), *(one.name for one in signature.sparse)]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("make", [_OneArgument, _TwoArguments])
def test_one_tower_of_two(tmp_path: Path, make: type[_Towers], side: str) -> None:
    model = make().eval()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32, targets=TARGETS, outputs=(side,))
    tables, features, dense = SIDES[side]
    assert tables_of(artifact) == tables
    assert inputs_of(artifact) == [*dense, *features]
    # The other tower's layers are not there either.
    [other] = {*SIDES} - {side}
    for target in artifact.manifest.targets:
        assert target.skeleton is not None
        names = [name for name, _ in torchscript.load(tmp_path / "a" / target.skeleton).named_parameters()]
        assert f"model.{side}.layers.0.weight" in names
        assert not [name for name in names if f".{other}" in name]
    batch = batch_of(artifact.signature, 9)
    tower, norm = getattr(model, side), getattr(model, f"{side}_norm")
    call = arguments(artifact.signature, batch)
    with torch.no_grad():
        expected = tower(norm(call[dense[0]]), call["features"])
    assert_close(artifact.forward(*batch.inputs()), {side: expected})


def test_an_output_that_needs_all_keeps_all(tmp_path: Path) -> None:
    _, artifact = exported(_OneArgument(), tmp_path / "a", outputs=("score",))
    assert tables_of(artifact) == ["users", "user_seq", "items", "item_seq"]


class _OneCollection(nn.Module):
    """One collection for both sides; how its columns are taken is the case."""

    def __init__(self, how: str = "key") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.ebc = EmbeddingBagCollection(
            [bag("users", 20, 8, ["user", "age"]), bag("items", 20, 4, ["item"]), bag("both", 9, 4, ["item"])]
        )

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        rows: KeyedTensor = self.ebc(features)
        if self.how == "key":
            return rows["user"] * 2, rows["item@items"] + rows["item@both"]
        if self.how == "group":
            user, item = KeyedTensor.regroup([rows], [["user"], ["item@both", "item@items"]])
            return user * 2, item[:, :4] + item[:, 4:]
        user, _, item, both = torch.split(rows.values(), [8, 8, 4, 4], dim=1)
        return user * 2, item + both


@pytest.mark.parametrize("how", ["key", "group", "columns"])
def test_columns_of_one_collection(tmp_path: Path, how: str) -> None:
    model = _OneCollection(how)
    for output, tables, features in (
        ("output_0", ["users"], ["user"]),
        ("output_1", ["items", "both"], ["item"]),
    ):
        _, artifact = exported(
            model, tmp_path / output, data_type=DataType.FP32, targets=TARGETS, outputs=(output,)
        )
        assert tables_of(artifact) == tables
        assert inputs_of(artifact) == features
        batch = batch_of(artifact.signature, 9)
        given = arguments(artifact.signature, batch)["features"]
        empty = KeyedJaggedTensor(["user", "age", "item"], [], lengths=torch.zeros(27, dtype=torch.int64))
        jagged = {**empty.to_dict(), **given.to_dict()}
        expected = predicted(model, {"features": KeyedJaggedTensor.from_jt_dict(jagged)})[output]
        assert_close(artifact.forward(*batch.inputs()), {output: expected})


def test_all_columns_at_once_keep_all_tables(tmp_path: Path) -> None:
    class Summed(_OneCollection):
        def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
            rows = self.ebc(features)
            return rows.values().sum(dim=1), rows["user"]

    _, artifact = exported(Summed(), tmp_path / "a", outputs=("output_0",))
    assert inputs_of(artifact) == ["user", "age", "item"]


class _Wrapped(nn.Module):
    """Mapped raw IDs on one side, weighted positions on the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [bag("raw", 8, 4, ["raw"])]
        managed = MCHManagedCollisionModule(
            zch_size=8,
            device=torch.device("cpu"),
            eviction_policy=LFU_EvictionPolicy(),
            eviction_interval=1,
            input_hash_size=2**40,
        )
        self.mapped = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables), ManagedCollisionCollection({"raw": managed}, tables)
        )
        self.placed = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection([bag("placed", 9, 4, ["placed"])], is_weighted=True),
            {"placed": PositionWeightedModule(3)},
        )

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return {"mapped": self.mapped(features)[0]["raw"], "placed": self.placed(features)["placed"]}


@pytest.mark.parametrize(("output", "feature"), [("mapped", "raw"), ("placed", "placed")])
def test_modules_around_collections_go_with_them(tmp_path: Path, output: str, feature: str) -> None:
    _, artifact = exported(_Wrapped().eval(), tmp_path / "a", outputs=(output,))
    assert tables_of(artifact) == [feature]
    assert inputs_of(artifact) == [feature]


@dataclass
class _Batch:
    features: KeyedJaggedTensor
    labels: KeyedJaggedTensor
    weight: Tensor


class _Loss(nn.Module):
    """Reads a feature and a number for its loss alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])

    def forward(self, batch: _Batch) -> tuple[Tensor, Tensor]:
        scores: Tensor = self.ebc(batch.features).values()
        labels = batch.labels["label"].to_padded_dense(1).to(torch.float32)
        return ((scores - labels) * batch.weight).mean(), scores


def test_what_the_loss_alone_reads_is_no_input(tmp_path: Path) -> None:
    _, artifact = exported(_Loss(), tmp_path / "a", outputs=("output_1",))
    assert inputs_of(artifact) == ["f"]


@pytest.mark.parametrize("context", [("user_id",), ("age", "user_seq")])
def test_a_ranking_form(tmp_path: Path, context: tuple[str, ...]) -> None:
    options: dict[str, Any] = {"context": context, "outputs": ("user",), "targets": TARGETS}
    _, artifact = exported(_TwoArguments(), tmp_path / "a", **options)
    assert inputs_of(artifact) == ["age", "user_id", "user_tag", "user_seq"]


class _NoTable(_OneArgument):
    def forward(self, age: Tensor, price: Tensor, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        return {"age": self.user_norm(age) * 2, **super().forward(age, price, features)}


def test_an_output_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="outputs: got only some that no table reaches"):
        export_model(_NoTable(), tmp_path / "a", ExportConfig(outputs=("age",)))
