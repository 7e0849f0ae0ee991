"""What forward takes is never guessed: defaults, widths, names, numbers of rows, weights.

Shape letters: B batch, N number of IDs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Optional

import pytest
import torch
from torch import Tensor, nn

from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor, KeyedTensor
from recsys.artifact.load import LoadedArtifact
from recsys.configs import DataType
from recsys.errors import ExportError
from tests.support.helpers import bag
from tests.support.models.export_models import arguments, assert_close, batch_of, exported, predicted, rounded


class _Model(nn.Module):
    """One table of width 8."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(5, 8)

    def both(self, x: Tensor | None, features: KeyedJaggedTensor) -> Tensor:
        assert x is not None
        found: Tensor = self.ebc(features).values() + self.layer(x)
        return found


class _DefaultNone(_Model):
    def forward(self, features: KeyedJaggedTensor, x: torch.Tensor | None = None) -> Tensor:
        return self.ebc(features).values() if x is None else self.both(x, features)


class _DefaultOptional(_Model):
    def forward(self, features: KeyedJaggedTensor, x: Optional[Tensor] = None) -> Tensor:  # noqa: UP045
        return self.ebc(features).values() if x is None else self.both(x, features)


class _DefaultTensor(_Model):
    def forward(self, features: KeyedJaggedTensor, x: Tensor = torch.ones(1, 5)) -> Tensor:  # noqa: B008
        return self.both(x, features)


class _DefaultKjt(_Model):
    def forward(self, x: Tensor, features: KeyedJaggedTensor | None = None) -> Tensor:
        found: Tensor = self.layer(x)
        return found if features is None else self.both(x, features)


DEFAULTS = {
    "None": (_DefaultNone, "x"),
    "Optional": (_DefaultOptional, "x"),
    "tensor": (_DefaultTensor, "x"),
    "features": (_DefaultKjt, "features"),
}


@pytest.mark.parametrize(("model", "name"), DEFAULTS.values(), ids=DEFAULTS)
def test_inputs_with_defaults_are_named(tmp_path: Path, model: Callable[[], nn.Module], name: str) -> None:
    with pytest.raises(
        ExportError, match=rf"forward\({name}\): got an input with a default.*--default {name}"
    ):
        export_model(model(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("model", "name"), [DEFAULTS["None"], DEFAULTS["Optional"], DEFAULTS["tensor"]])
def test_an_input_with_a_default_is_taken_or_left(
    tmp_path: Path, model: Callable[[], nn.Module], name: str
) -> None:
    made = model()
    _, taken = exported(made, tmp_path / "taken", dense_widths={name: 5})
    _, left = exported(made, tmp_path / "left", defaults=(name,))
    assert [one.name for one in taken.signature.dense] == [name]
    assert not left.signature.dense
    for artifact in (taken, left):
        batch = batch_of(artifact.signature, 9)
        expected = predicted(rounded(made, DataType.INT8), arguments(artifact.signature, batch))
        assert_close(artifact.forward(*batch.inputs()), expected)


def test_features_with_a_default_are_taken(tmp_path: Path) -> None:
    made = _DefaultKjt()
    _, artifact = exported(made, tmp_path / "a", features={"features": ("f",)})
    batch = batch_of(artifact.signature, 9)
    expected = predicted(rounded(made, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


def test_a_default_of_no_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"defaults: got \['nothing'\], expected inputs .*\['x'\]"):
        exported(_DefaultNone(), tmp_path / "a", defaults=("nothing",))


class _Optionals(_Model):
    def forward(self, x: Tensor | None, features: KeyedJaggedTensor | None) -> Tensor:
        assert features is not None
        return self.both(x, features)


class _TypingOptionals(_Model):
    def forward(self, x: Optional[Tensor], features: Optional[KeyedJaggedTensor]) -> Tensor:  # noqa: UP045
        assert features is not None
        return self.both(x, features)


@pytest.mark.parametrize("model", [_Optionals, _TypingOptionals])
def test_optional_inputs_without_a_default_are_inputs(tmp_path: Path, model: Callable[[], nn.Module]) -> None:
    made = model()
    _, artifact = exported(made, tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 5)]
    assert [s.name for s in artifact.signature.sparse] == ["f"]
    batch = batch_of(artifact.signature, 9)
    expected = predicted(rounded(made, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


class _Reshaped(nn.Module):
    """A dense input on its way to a linear layer; how it goes is the case."""

    def __init__(self, width: int, go: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(width, 8)
        self.drop = nn.Dropout(0.5)
        self.go = go

    def forward(self, x: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return (
            self.layer(self.go(x)).flatten(1).sum(dim=1, keepdim=True) + self.ebc(features).values()
        ).sigmoid()


CHANGED: dict[str, tuple[int, Callable[[Tensor], Tensor], int]] = {
    "unsqueezed": (1, lambda x: x.unsqueeze(-1), 6),
    "sliced": (4, lambda x: x[:, :4], 6),
    "narrowed": (4, lambda x: x.narrow(1, 0, 4), 6),
    "summed": (1, lambda x: x.sum(dim=1, keepdim=True), 6),
}
TOLD: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "doubled": (12, lambda x: torch.cat([x, x], dim=1)),
    "reshaped": (3, lambda x: x.reshape(-1, 2, 3)),
}


@pytest.mark.parametrize(("layer", "go", "width"), CHANGED.values(), ids=CHANGED)
def test_a_width_is_not_told_by_a_layer_behind_another_shape(
    tmp_path: Path, layer: int, go: Callable[[Tensor], Tensor], width: int
) -> None:
    model = _Reshaped(layer, go)
    with pytest.raises(ExportError, match=r"forward\(x\): cannot tell its width .* --dense-width x=N"):
        export_model(model, tmp_path / "a")
    _, artifact = exported(model, tmp_path / "b", dense_widths={"x": width})
    batch = batch_of(artifact.signature, 9)
    assert [tuple(d.shape) for d in batch.dense] == [(9, width)]
    expected = predicted(rounded(model, DataType.INT8), arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), expected)


@pytest.mark.parametrize(("layer", "go"), TOLD.values(), ids=TOLD)
def test_a_width_is_told_by_a_layer_behind_another_shape(
    tmp_path: Path, layer: int, go: Callable[[Tensor], Tensor]
) -> None:
    _, artifact = exported(_Reshaped(layer, go), tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 6)]


KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda x: x,
    "relu": torch.relu,
    "functional relu": nn.functional.relu,
    "log1p": lambda x: torch.log1p(x.abs()),
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "dropout": lambda x: nn.functional.dropout(x, training=False),
    "scaled": lambda x: (x - 0.5) * 2.0,
    "signed": lambda x: torch.sign(x) * torch.log1p(torch.abs(x)),
    "finite": lambda x: torch.where(torch.isfinite(x), x, 0.0),
    "all": lambda x: torch.log1p(nn.functional.relu(x.clamp(min=-3.0))) / 2.0,
}


@pytest.mark.parametrize("go", KEPT.values(), ids=KEPT)
def test_a_width_is_told_through_what_keeps_the_shape(tmp_path: Path, go: Callable[[Tensor], Tensor]) -> None:
    _, artifact = exported(_Reshaped(6, go), tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 6)]


def test_a_width_is_told_through_layers_that_keep_the_shape(tmp_path: Path) -> None:
    model = _Reshaped(6, nn.Sequential(nn.Identity(), nn.ReLU(), nn.Dropout(0.5), nn.Sigmoid(), nn.Tanh()))
    _, artifact = exported(model, tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 6)]


class _Filled(nn.Module):
    """What is no number becomes a buffer's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fill", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.isfinite(x), x, self.fill)


class _Product(nn.Module):
    """A product with a weight, in place of a layer."""

    def __init__(self, multiply: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.multiply = multiply

    def forward(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight)


@pytest.mark.parametrize(
    "go", [_Filled(), _Product(torch.matmul), _Product(nn.functional.linear), _Product(lambda x, w: x @ w)]
)
def test_a_width_is_told_by_products_and_through_buffers(tmp_path: Path, go: nn.Module) -> None:
    _, artifact = exported(_Reshaped(6, go), tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 6)]


class _Columns(nn.Module):
    """Names the columns of a dense input, and takes them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(3, 8)

    def forward(self, x: Tensor, features: KeyedJaggedTensor) -> Tensor:
        named = KeyedTensor(keys=["price", "counts"], length_per_key=[1, 3], values=x)
        counts, price = KeyedTensor.regroup([named], [["counts"], ["price"]])
        found: Tensor = self.layer(counts) * price + self.ebc(features).values()
        return found


def test_a_width_is_told_by_names_of_columns(tmp_path: Path) -> None:
    _, artifact = exported(_Columns(), tmp_path / "a")
    assert [(d.name, d.width) for d in artifact.signature.dense] == [("x", 4)]


class _SameName(_Model):
    def forward(self, f: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return self.both(f, features)


def test_a_dense_argument_and_a_feature_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"model: .*'f'.*rename the argument, the feature or the output"):
        export_model(_SameName(), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


class _Plain(_Model):
    def forward(self, x: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return self.both(x, features)


class _Broadcasts(_Model):
    """Takes a dense row for all bags, or a bag for all dense rows, as addition does."""

    def forward(self, x: Tensor, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.ebc(features).values()


@pytest.fixture(scope="module", params=[_Plain, _Broadcasts], ids=["added", "apart"])
def rows_artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    return exported(request.param(), tmp_path_factory.mktemp("rows") / "a")[1]


@pytest.mark.parametrize(("num_dense", "num_bags"), [(1, 3), (3, 1), (2, 3), (4, 3), (0, 3), (3, 0), (6, 3)])
def test_dense_rows_must_be_as_many_as_bags(
    rows_artifact: LoadedArtifact, num_dense: int, num_bags: int
) -> None:
    lengths = torch.ones(num_bags, dtype=torch.int64)
    with pytest.raises(RuntimeError):
        rows_artifact.forward(torch.randn(num_dense, 5), lengths, torch.zeros(num_bags, dtype=torch.int64))


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_as_many_dense_rows_as_bags_are_answered(rows_artifact: LoadedArtifact, num_rows: int) -> None:
    batch = batch_of(rows_artifact.signature, num_rows)
    assert {tuple(o.shape) for o in rows_artifact.forward(*batch.inputs()).values()} == {(num_rows, 8)}


class _PartlyWeighted(nn.Module):
    """One argument for a weighted and for a plain collection."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = EmbeddingBagCollection([bag("p", 20, 8, ["plain", "shared"])])
        self.scored = EmbeddingBagCollection([bag("s", 20, 8, ["scored", "shared"])], is_weighted=True)

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        return self.plain(features).values(), self.scored(features).values()


def test_weights_are_wanted_feature_by_feature(tmp_path: Path) -> None:
    model = _PartlyWeighted()
    _, artifact = exported(model, tmp_path / "a")
    weighted = {s.name: s.weighted for s in artifact.signature.sparse}
    assert weighted == {"plain": False, "shared": True, "scored": True}
    batch = batch_of(artifact.signature, 9)
    assert batch.weights is not None
    kjt = KeyedJaggedTensor(
        [s.name for s in artifact.signature.sparse], batch.values, batch.weights, batch.lengths
    )
    found = artifact.forward(*batch.inputs())
    assert_close(found, predicted(rounded(model, DataType.INT8), {"features": kjt}))
    # The weights of what is not weighted are not read.
    plain_ids = int(batch.lengths[:9].sum())
    assert artifact.signature.sparse[0].name == "plain"
    other = batch.weights.clone()
    other[:plain_ids] = float("nan")
    again = artifact.forward(batch.lengths, batch.values, other)
    assert all(torch.equal(again[name], found[name]) for name in found)
