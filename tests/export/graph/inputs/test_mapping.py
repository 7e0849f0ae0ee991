"""What forward takes: told by annotations, by who looks up what, and by the layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, EmbeddingCollection, KeyedJaggedTensor
from recsys.configs import DataType
from recsys.errors import ExportError
from tests.support.helpers import bag, sequence
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted, rounded


class _Model(nn.Module):
    """One table and a linear layer of width 3."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 4, ["f"])])
        self.layer = nn.Linear(3, 4)


class _NoAnnotation(_Model):
    def forward(self, dense, features: KeyedJaggedTensor) -> Tensor:  # type: ignore[no-untyped-def]
        found: Tensor = self.layer(dense) + self.ebc(features).values()
        return found


class _ForeignArgument(_Model):
    def forward(self, dense: list[float], features: KeyedJaggedTensor) -> Tensor:
        del dense
        return self.ebc(features).values()


class _UnusedSparse(_Model):
    def forward(self, features: KeyedJaggedTensor, idle: KeyedJaggedTensor) -> Tensor:
        del idle
        return self.ebc(features).values()


class _NotReached(_Model):
    def forward(self, dense: Tensor) -> Tensor:
        found: Tensor = self.layer(dense)
        return found


class _UnknownWidth(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).values() * dense


class _UnknownWidths(_Model):
    def forward(self, dense: Tensor, other: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).values() * dense + other


class _Unannotated(_Model):
    """As much code is written: nothing says what the arguments are."""

    def forward(self, features, dense, other=None, scale=2.0):  # type: ignore[no-untyped-def]
        found = self.layer(dense) + self.ebc(features).values() * scale
        return found if other is None else found + other


class _WidthBehindNorms(_Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(7)
        self.act = nn.ReLU()
        self.deep = nn.Linear(7, 4)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return (
            torch.relu(self.deep(self.norm(self.act(torch.log1p(dense.abs()))))) + self.ebc(features).values()
        )


class _Default(_Model):
    def forward(self, features: KeyedJaggedTensor, scale: float = 2.0) -> Tensor:
        return self.ebc(features).values() * scale


class _DataDependent(_Model):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        if dense.sum() > 0:
            return self.ebc(features).values()
        found: Tensor = self.layer(dense)
        return found


class _IndexError(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).length_per_key()[7] * self.layer.weight


class _Assertion(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        raise AssertionError("the user's own words", len(features.keys()))


class _NotARow(_Model):
    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.ebc(features).values().sum()


class _Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ec = EmbeddingCollection([sequence("t", 20, 4, ["f"])])

    def forward(self, features: KeyedJaggedTensor) -> dict[str, object]:
        return dict(self.ec(features))


class _ForeignOutput(_Model):
    def forward(self, features: KeyedJaggedTensor) -> str:
        self.ebc(features)
        return "text"


class _NoCollection(nn.Module):
    def forward(self, dense: Tensor) -> Tensor:
        return dense


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            _NoAnnotation,
            r"forward\(dense\): got annotation None, expected torch.Tensor.*"
            r"At tests/export/graph/inputs/test_mapping.py:\d+ in _NoAnnotation.forward: "
            r".*--dense-width dense=N or --features dense=F1,F2",
        ),
        (_Unannotated, r"forward\(other\): got an input with a default.* --default other leaves it"),
        (_ForeignArgument, r"forward\(dense\): got annotation list\[float\]"),
        (_UnusedSparse, r"forward\(idle\): no collection looks these up"),
        (_NotReached, "collection 'ebc': no KeyedJaggedTensor argument of forward reaches it"),
        (_UnknownWidth, r"forward\(dense\): cannot tell its width .* --dense-width dense=N"),
        (
            _UnknownWidths,
            r"forward\(dense, other\): cannot tell their widths .* --dense-width dense=N --dense-width other=N",
        ),
        (_DataDependent, "cannot be traced by torch.fx: TraceError"),
        (_IndexError, "cannot be traced by torch.fx: IndexError"),
        (_Assertion, "cannot be traced by torch.fx: AssertionError: .*the user's own words"),
        (_NotARow, r"outputs\['default'\]: got shape \[\] for a batch of 256 rows"),
        (_Sequences, r"outputs\['f'\]: got JaggedTensor, expected a tensor .*to_padded_dense"),
        (_ForeignOutput, "outputs: got str, expected tensors"),
        (_NoCollection, "_NoCollection holds no recsys.EmbeddingBagCollection or recsys.EmbeddingCollection"),
    ],
)
def test_models_that_cannot_be_exported_say_why(
    tmp_path: Path, model: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        export_model(model(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_bare_sequence_collection_says_what_to_do(tmp_path: Path) -> None:
    collection = EmbeddingCollection([sequence("t", 20, 4, ["f"])])
    with pytest.raises(ExportError, match="to_padded_dense"):
        export_model(collection, tmp_path / "a")


def test_a_width_can_be_named(tmp_path: Path) -> None:
    model = _UnknownWidth()
    _, artifact = exported(model, tmp_path / "a", dense_widths={"dense": 4})
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("dense", 4)]
    batch = batch_of(artifact.signature, 6)
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


@pytest.mark.parametrize("other", [False, True])
def test_options_say_what_arguments_without_annotations_are(tmp_path: Path, other: bool) -> None:
    model = _Unannotated()
    widths = {"dense": 3, "other": 4} if other else {"dense": 3}
    left = () if other else ("other",)
    said = {"dense_widths": widths, "defaults": left, "features": {"features": ("f",)}}
    _, artifact = exported(model, tmp_path / "a", **said)
    assert [d.name for d in artifact.signature.dense] == (["dense", "other"] if other else ["dense"])
    batch = batch_of(artifact.signature, 6)
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


def test_a_wrong_width_is_an_export_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="forward failed on the samples"):
        export_model(_UnknownWidth(), tmp_path / "a", ExportConfig(dense_widths={"dense": 3}))


def test_an_unknown_dense_width_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"dense_widths: got unknown arguments \['danse'\]"):
        export_model(_UnknownWidth(), tmp_path / "a", ExportConfig(dense_widths={"dense": 4, "danse": 4}))


def test_a_width_is_told_by_the_first_layer_on_the_way(tmp_path: Path) -> None:
    _, artifact = exported(_WidthBehindNorms(), tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("dense", 7)]


def test_arguments_with_defaults_keep_them(tmp_path: Path) -> None:
    model = _Default()
    _, artifact = exported(model, tmp_path / "a")
    batch = batch_of(artifact.signature, 6)
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


def test_features_of_a_kjt_may_come_in_any_order(tmp_path: Path) -> None:
    """The signature's order is the tables'; the float model takes any, and predicts the same."""
    model = EmbeddingBagCollection([bag("a", 20, 4, ["x", "y"]), bag("b", 30, 8, ["z"])])
    _, artifact = exported(model, tmp_path / "a")
    assert [s.name for s in artifact.signature.sparse] == ["x", "y", "z"]
    batch = batch_of(artifact.signature, 6)
    call = arguments(artifact.signature, batch, {"features": {"z": "z", "x": "x", "y": "y"}})
    assert call["features"].keys() == ["z", "x", "y"]
    assert_close(artifact.forward(*batch.inputs()), predicted(rounded(model, DataType.INT8), call))
