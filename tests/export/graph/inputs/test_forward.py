"""A batch object as the argument, and some of the outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from export.cli import main
from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.errors import ExportError
from tests.support.helpers import bag
from tests.support.models.export_models import arguments, assert_close, batch_of, exported


@dataclass
class Batch:
    dense: Tensor
    features: KeyedJaggedTensor
    labels: Tensor | None = None
    step: int = 0


class Pair(NamedTuple):
    dense: Tensor
    features: KeyedJaggedTensor


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection([bag("t", 20, 8, ["f"])])
        self.layer = nn.Linear(5, 8)

    def scores(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.ebc(features).values() + self.layer(dense)
        return found


class _Dataclass(_Model):
    def forward(self, batch: Batch) -> Tensor:
        scores = self.scores(batch.dense, batch.features)
        return scores.mean() if self.training and batch.labels is not None else scores


class _NamedTuple(_Model):
    def forward(self, batch: Pair) -> Tensor:
        dense, features = batch
        return self.scores(dense, features)


class _Training(_Model):
    """Returns a loss beside what is to be served."""

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        assert batch.labels is not None
        scores = self.scores(batch.dense, batch.features)
        loss = (scores - batch.labels).square().mean()
        return loss, (loss.detach(), {"scores": scores, "labels": batch.labels})


@pytest.mark.parametrize("make", [_Dataclass, _NamedTuple])
def test_fields_of_a_batch_are_inputs(tmp_path: Path, make: type[_Model]) -> None:
    model = make().eval()
    _, artifact = exported(model, tmp_path / "a", data_type=DataType.FP32)
    assert [one.name for one in artifact.signature.dense] == ["dense"]
    assert [one.name for one in artifact.signature.sparse] == ["f"]
    batch = batch_of(artifact.signature, 9)
    with torch.no_grad():
        expected = model.scores(**arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), {"default": expected})


def test_outputs_within_others_can_be_kept(tmp_path: Path) -> None:
    model = _Training()
    name = "output_1.1.scores"
    _, artifact = exported(
        model, tmp_path / "a", data_type=DataType.FP32, outputs=(name,), dense_widths={"labels": 8}
    )
    # The loss alone reads the labels.
    assert [one.name for one in artifact.signature.dense] == ["dense"]
    batch = batch_of(artifact.signature, 9)
    with torch.no_grad():
        expected = model.scores(**arguments(artifact.signature, batch))
    assert_close(artifact.forward(*batch.inputs()), {name: expected})


def test_unknown_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ExportError, match=r"outputs: got 'x', expected some of output_0, output_1.0, .*scores"
    ):
        export_model(_Training(), tmp_path / "a", ExportConfig(outputs=("x",), dense_widths={"labels": 8}))


class _TwoBatches(_Model):
    def forward(self, first: Batch, second: Batch) -> Tensor:
        return self.scores(first.dense, second.features)


def test_one_field_of_two_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="forward: got 'dense' as a field of two batches"):
        export_model(_TwoBatches(), tmp_path / "a")


class _Options(nn.Module):
    """Needs all options that say what ``forward`` takes and returns."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = _Tower()


class _Tower(_Model):
    def forward(
        self,
        first: KeyedJaggedTensor,
        second: KeyedJaggedTensor,
        prices: KeyedJaggedTensor,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        found: Tensor = self.ebc(KeyedJaggedTensor.concat([first, second])).values()
        price = prices.values().sum() * 0 + found
        return found if bias is None else found + bias, {"kept": price}


def make_options() -> nn.Module:
    return _Options()


def test_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(_Options().state_dict(), tmp_path / "state.pt")
    options = ["--factory", f"{__name__}:make_options", "--submodule", "tower", "--default", "bias"]
    options += ["--features", "first=f", "--features", "second=g,h", "--features", "prices:float=price"]
    assert main([str(tmp_path / "state.pt"), *options, "--outputs", "output_1.kept"]) == 0
    capsys.readouterr()
    signature = load_artifact(tmp_path / "state.artifact").signature
    assert [one.name for one in signature.outputs] == ["output_1.kept"]
    assert [(one.name, len(one.tables), one.weighted) for one in signature.sparse] == [
        ("f", 1, False),
        ("g", 0, False),
        ("h", 0, False),
        ("price", 0, True),
    ]
    assert main([str(tmp_path / "state.pt"), *options[:3], "towers"]) == 1
    assert "submodule: _Options has no 'towers'" in capsys.readouterr().err
