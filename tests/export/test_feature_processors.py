"""Models with feature processors, fused collections and regrouped columns: exported, they answer as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, KeyedJaggedTensor
from recsys.artifact.load import load_artifact
from recsys.as_torchrec.modules.fused import FusedEmbeddingBagCollection
from recsys.modules.feature_processors import (
    FeatureProcessedEmbeddingBagCollection,
    FeatureProcessor,
    PositionWeightedModule,
    PositionWeightedModuleCollection,
)
from recsys.modules.regroup import KTRegroupAsDict
from tests.support.helpers import bag, kjt_of

BATCH = kjt_of({"a": [[1, 2, 3, 4, 39], [], [5]], "b": [[1], [2, 29], []]})


class Model(nn.Module):
    def __init__(self, together: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        tables = [bag("t", 40, 8, ["a"]), bag("u", 30, 8, ["b"], "MEAN")]
        by_name: dict[str, FeatureProcessor] = {name: PositionWeightedModule(3) for name in "ab"}
        self.processed = FeatureProcessedEmbeddingBagCollection(
            EmbeddingBagCollection(tables, is_weighted=True),
            PositionWeightedModuleCollection({"a": 3, "b": 2}) if together else by_name,
        )
        for name, weight in self.processed.named_parameters():
            if "position" in name:
                nn.init.uniform_(weight)
        self.fused = FusedEmbeddingBagCollection([bag("v", 40, 4, ["a"])], torch.optim.SGD, {"lr": 0.1})
        self.regroup = KTRegroupAsDict([["b"], ["a"]], ["x", "y"])
        self.over = nn.Linear(20, 1)

    def forward(self, features: KeyedJaggedTensor) -> dict[str, Tensor]:
        columns = self.regroup([self.processed(features)])
        together = torch.cat([columns["x"], columns["y"], self.fused(features).values()], dim=1)
        return {"score": self.over(together).squeeze(1)}


@pytest.mark.parametrize("together", [False, True], ids=["by name", "together"])
def test_the_artifact_answers_as_the_model(tmp_path: Path, together: bool) -> None:
    model = Model(together).eval()
    export_model(model, tmp_path / "artifact", ExportConfig(data_type=DataType.FP32))
    artifact = load_artifact(tmp_path / "artifact")
    assert not artifact.signature.is_weighted
    for batch in (BATCH, kjt_of({"a": [[1]], "b": [[]]})):
        found = artifact.forward(batch.lengths(), batch.values())
        torch.testing.assert_close(found["score"], model(batch)["score"])
