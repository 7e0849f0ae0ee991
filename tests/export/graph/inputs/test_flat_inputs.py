"""Dense inputs that forward takes as ``[B]``, and samples that hold more than the model reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.batches.samples import read_samples
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError, VerificationError
from tests.export.delta.test_dense import check
from tests.support.helpers import bag
from tests.support.models.export_models import batch_of, exported


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.over = nn.Linear(8, 4)

    def of(self, features: KeyedJaggedTensor, price: Tensor, age: Tensor) -> Tensor:
        assert price.dim() == age.dim() == 1
        gain: Tensor = self.over(self.ebc(features).values() + price.unsqueeze(1))
        return torch.stack([price, age], dim=1).sum(1) * gain.sum(dim=1)


class Flat(Base):
    def forward(self, features: KeyedJaggedTensor, price: Tensor, age: Tensor) -> Tensor:
        return self.of(features, price, age)


@dataclass
class Inputs:
    features: KeyedJaggedTensor
    price: Tensor
    age: Tensor


class FlatFields(Base):
    """Fields of a batch object."""

    def forward(self, batch: Inputs) -> Tensor:
        return self.of(batch.features, batch.price, batch.age)


class Broadcasting(Base):
    """Takes ``[B]``, and ``[B, 1]`` too: then rows depend on each other."""

    def forward(self, features: KeyedJaggedTensor, price: Tensor) -> Tensor:
        found: Tensor = self.over(self.ebc(features).values() + price.unsqueeze(1))
        return found.sum(dim=-1)


@pytest.mark.parametrize("make", [Flat, FlatFields])
def test_dense_inputs_without_columns(tmp_path: Path, make: type[Flat | FlatFields]) -> None:
    model: Any = make().eval()
    widths = {"price": 0, "age": 0}
    targets = (("cpu",), ("cpu", "cpu"))
    _, artifact = exported(
        model, tmp_path / "a", dense_widths=widths, data_type=DataType.FP32, targets=targets
    )
    assert [(one.name, one.width) for one in artifact.signature.dense] == [("price", 1), ("age", 1)]
    batch = batch_of(artifact.signature, 7)
    features = KeyedJaggedTensor(["f"], batch.values, lengths=batch.lengths)
    with torch.no_grad():
        expected = model.of(features, *(one.squeeze(1) for one in batch.dense))
    torch.testing.assert_close(artifact.forward(*batch.inputs())["default"], expected)


def test_deltas_of_such_models(tmp_path: Path) -> None:
    old, new = Flat(), Flat()
    with torch.no_grad():
        new.over.bias += 1
        new.ebc.embedding_bags["t"].weight[3] += 1
    check(old, new, tmp_path, ExportConfig(dense_widths={"price": 0, "age": 0}))


def test_what_to_say_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"--dense-width price=N, with 0 for one that forward takes as \[B\]"
    ):
        export_model(Broadcasting(), tmp_path / "a")
    with pytest.raises(
        VerificationError, match=r"If forward takes 'price' as \[B\], say so: --dense-width price=0$"
    ):
        export_model(Broadcasting(), tmp_path / "a", ExportConfig(dense_widths={"price": 1}))
    export_model(Broadcasting(), tmp_path / "a", ExportConfig(dense_widths={"price": 0}))


def samples(path: Path, **request: Any) -> Path:
    path.write_text("\n".join(json.dumps(request) for _ in range(3)))
    return path


def test_samples_may_hold_more_than_the_model_reads(tmp_path: Path) -> None:
    file = samples(
        tmp_path / "x.jsonl",
        dense={"price": [[1.5], [-4.0], [9.0]], "other": [[2.0, 3.0]] * 3},
        sparse={"f": [[1, 2], [3], []], "unread": [[2**40]] * 3},
        weights={"unread": [[0.5]] * 3},
    )
    report = export_model(
        Broadcasting(), tmp_path / "a", ExportConfig(dense_widths={"price": 0}, samples=file)
    )
    assert report.num_samples == 9
    batch = read_samples(file, load_artifact(tmp_path / "a").signature)
    assert batch.values.tolist() == [1, 2, 3] * 3


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"dense": {"price": [[1.5]]}, "sparse": {"ff": [[1]]}}, r"sparse: got \['ff'\], expected \['f'\]"),
        (
            {"dense": {"pric": [[1.5]]}, "sparse": {"f": [[1]]}},
            r"dense: got \['pric'\], expected \['price'\]",
        ),
        (
            {"dense": {"price": [[1.5]]}, "sparse": {"f": [[1]]}, "weights": {"f": [[1.0]]}},
            r"weights: got \['f'\], expected \[\]",
        ),
    ],
)
def test_a_misspelt_name_is_not_left_out(tmp_path: Path, request_: dict[str, Any], message: str) -> None:
    export_model(Broadcasting(), tmp_path / "a", ExportConfig(dense_widths={"price": 0}))
    signature = load_artifact(tmp_path / "a").signature
    with pytest.raises(ValueError, match=message):
        read_samples(samples(tmp_path / "x.jsonl", **request_), signature)
