from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import IdPolicy
from tests.recsys.artifact.damage import answers
from tests.recsys.artifact.delta.deltas import CHANGES, write_delta
from tests.support.helpers import bag


class Ranker(nn.Module):
    """Weighted and unweighted tables of every policy beside a dense input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.plain = EmbeddingBagCollection(
            [bag("users", 50, 16, ["user"]), bag("goods", 30, 24, ["good", "last"], "MEAN")]
        )
        self.scored = EmbeddingBagCollection([bag("tags", 20, 8, ["tag"])], is_weighted=True)
        self.layer = nn.Linear(3, 72)

    def forward(
        self, context: Tensor, plain: KeyedJaggedTensor, scored: KeyedJaggedTensor
    ) -> dict[str, Tensor]:
        pooled = torch.cat([self.plain(plain).values(), self.scored(scored).values()], dim=1)
        return {"score": (pooled * self.layer(context)).sum(dim=1).sigmoid(), "pooled": pooled}


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound directory of three targets. Not to be written to."""
    path = tmp_path_factory.mktemp("artifacts") / "ranker"
    config = ExportConfig(
        name="ranker",
        targets=(("cpu",), ("cpu", "cpu"), ("cuda:0", "cuda:1")),
        table_id_policies={"users": IdPolicy.HASH, "goods": IdPolicy.ZERO},
    )
    export_model(Ranker(), path, config)
    return path


@pytest.fixture(scope="session")
def pristine_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound single file. Not to be written to."""
    path = tmp_path_factory.mktemp("artifacts") / "ranker.pt"
    export_model(Ranker(), path, ExportConfig(name="ranker", single_file=True))
    return path


@pytest.fixture(scope="session")
def expected(pristine: Path) -> dict[str, Tensor]:
    """What the sound artifact answers."""
    return answers(load_artifact(pristine))


@pytest.fixture
def artifact(pristine: Path, tmp_path: Path) -> Path:
    """A directory of one's own."""
    shutil.copytree(pristine, tmp_path / "ranker")
    return tmp_path / "ranker"


@pytest.fixture
def single(pristine_file: Path, tmp_path: Path) -> Path:
    """A single file of one's own."""
    shutil.copy(pristine_file, tmp_path / "ranker.pt")
    return tmp_path / "ranker.pt"


@pytest.fixture
def loaded(pristine: Path) -> LoadedArtifact:
    """A model of one's own: its rows are mapped privately."""
    return load_artifact(pristine, target="cpu")


@pytest.fixture
def delta(tmp_path: Path, loaded: LoadedArtifact) -> Path:
    """A sound delta for ``loaded``."""
    write_delta(tmp_path / "new.delta", loaded.rows, CHANGES, with_dense=True)
    return tmp_path / "new.delta"
