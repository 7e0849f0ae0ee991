"""A mean of weighted rows: exported, served, held against the float model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from export.config import ExportConfig
from export.pipeline import export_model
from recsys import DataType, EmbeddingBagCollection, JaggedTensor, KeyedJaggedTensor
from serve.client import Client
from serve.config.settings import ServerConfig
from tests.models.test_archetypes import ENGINES
from tests.support.helpers import bag
from tests.support.models.export_models import rounded
from tests.support.serve.live import LiveServer

# Rows without IDs, with one, with several; weights of 0 and below.
_IDS = {"f": [[1, 2, 2], [], [7]], "g": [[3], [4, 5], []]}
_WEIGHTS = {"f": [[0.5, -2.0, 4.0], [], [0.0]], "g": [[2.0], [1.0, 3.0], []]}


class _Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ebc = EmbeddingBagCollection(
            [bag("t", 20, 8, ["f", "g"], "MEAN"), bag("u", 9, 4, ["f"])], is_weighted=True
        )

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found: Tensor = self.ebc(features).values()
        return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cpu")], ids=",".join)
def test_served_means_are_the_float_models(tmp_path: Path, devices: tuple[str, ...], engine: str) -> None:
    model = _Mean()
    (tmp_path / "m").mkdir()
    export_model(model, tmp_path / "m" / "1", ExportConfig(name="m", targets=(devices,)))
    features = KeyedJaggedTensor.from_jt_dict(
        {
            name: JaggedTensor.from_dense(
                [torch.tensor(row, dtype=torch.int64) for row in rows],
                weights=[torch.tensor(row, dtype=torch.float32) for row in _WEIGHTS[name]],
            )
            for name, rows in _IDS.items()
        }
    )
    with torch.no_grad():
        expected = rounded(model, DataType.INT8)(features).numpy()
    # The mean divides by the number of IDs, whatever their weights sum to.
    table = rounded(model, DataType.INT8).get_parameter("ebc.embedding_bags.t.weight").detach().numpy()
    np.testing.assert_allclose(expected[0, :8], (0.5 * table[1] + 2.0 * table[2]) / 3, rtol=1e-5, atol=1e-7)
    config = ServerConfig(port=0, metrics_port=0)
    with LiveServer(tmp_path, config, engine=engine) as server, Client(server.address) as client:
        found = client.predict({}, _IDS, _WEIGHTS)["default"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
