"""Layers that share a weight: a delta changes it for all of them.

Shape letters: B batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.delta.file import DeltaWriter
from recsys.artifact.delta.header import DeltaHeader
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.errors import ManifestError
from tests.support.helpers import bag
from tests.support.models.export_models import batch_of

FIRST, SECOND = "model.first.weight", "model.second.weight"


class Tied(nn.Module):
    """Two layers with one weight, and a parameter that two modules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection([bag("t", 20, 8, ["f"]), bag("u", 20, 8, ["g"])])
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.norm, self.second_norm = nn.LayerNorm(8), nn.LayerNorm(8)
        self.second_norm.bias = self.norm.bias

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found = self.tables(features)
        first = self.norm(self.first(found["f"]))
        return torch.sigmoid(self.second(first) + self.second_norm(found["g"]))


def exported(model: nn.Module, path: Path, scripted: bool) -> LoadedArtifact:
    export_model(model.eval(), path, ExportConfig(context=("f",)))
    return load_artifact(path, scripted=scripted)


def write(path: Path, artifact: LoadedArtifact, name: str, weight: Tensor) -> Path:
    rows = artifact.rows
    header = DeltaHeader(model="model", artifact=rows.digest, base=rows.state, num_dense_left=0)
    writer = DeltaWriter(path, header)
    writer.add_dense(name, weight)
    writer.finish()
    return path


def answers(artifact: LoadedArtifact) -> list[Tensor]:
    """Return what both forms say of four rows."""
    lengths, values = batch_of(artifact.signature, 4, seed=5).inputs()
    found = artifact.forward(lengths, values)["default"]
    # Each row is its own context.
    of_context = int(lengths[:4].sum())
    ranked = artifact.forward_ranking(
        lengths[:4], values[:of_context], lengths[4:], values[of_context:], torch.arange(4)
    )["default"]
    return [found, ranked]


@pytest.mark.parametrize("scripted", [False, True])
def test_a_delta_changes_all_layers_that_share_a_weight(tmp_path: Path, scripted: bool) -> None:
    torch.manual_seed(0)
    model = Tied()
    artifact = exported(model, tmp_path / "a", scripted)
    before = answers(artifact)
    with torch.no_grad():
        model.first.weight.mul_(-2)
        model.norm.bias.add_(1)
    expected = answers(exported(model, tmp_path / "b", scripted))
    assert not torch.allclose(before[0], expected[0])
    undo = []
    for name, weight in ((FIRST, model.first.weight), ("model.norm.bias", model.norm.bias)):
        path = write(tmp_path / name, artifact, name, weight.detach())
        undo.append(apply(prepare(artifact.rows, path)))
    for found, each in zip(answers(artifact), expected, strict=True):
        torch.testing.assert_close(found, each, rtol=1e-6, atol=1e-7)
    for one in reversed(undo):
        apply(one)
    for found, each in zip(answers(artifact), before, strict=True):
        torch.testing.assert_close(found, each, rtol=0, atol=0)


@pytest.mark.parametrize("scripted", [False, True])
def test_it_is_known_by_its_first_name(tmp_path: Path, scripted: bool) -> None:
    artifact = exported(Tied(), tmp_path / "a", scripted)
    for form in artifact.graphs.tensors():
        assert FIRST in form
        assert SECOND not in form
    path = write(tmp_path / "d", artifact, SECOND, torch.zeros(8, 8))
    with pytest.raises(ManifestError, match="expected the path of a dense weight of the artifact"):
        prepare(artifact.rows, path)
