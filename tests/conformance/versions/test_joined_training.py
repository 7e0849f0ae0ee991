"""What a server was asked, joined with what came of it, trains a model as the original table does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.data.cli import main as recsys_data
from recsys.metrics.exact import auc
from recsys.train import fit
from tests.conformance.support.harness import running

pytestmark = pytest.mark.engine

_NUM_ROWS, _ROWS_PER_REQUEST = 1_600, 40
_SETTINGS: dict[str, Any] = {
    "model": "deepfm",
    "embedding_dim": 4,
    "over_layers": [16],
    "batch_size": 64,
    "epochs": 3,
}


def _clicks() -> pa.Table:
    """Clicks that follow the shop, on phones alone."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, 20, _NUM_ROWS)
    phone = generator.random(_NUM_ROWS) < 0.6
    chance = np.where(phone, shop / 20, 0.3)
    return pa.table(
        {
            "click": (generator.random(_NUM_ROWS) < chance).astype(int),
            "shop": [f"shop {i}" for i in shop],
            "device": np.where(phone, "phone", "desk"),
            "price": generator.random(_NUM_ROWS).astype(np.float32),
        }
    )


def test_the_joined_table_trains_to_the_auc_of_the_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    past, later = _clicks().slice(0, _NUM_ROWS * 3 // 4), _clicks().slice(_NUM_ROWS * 3 // 4)
    original = fit(past, label="click", callbacks=[], **_SETTINGS)
    export_model(original.model.module, tmp_path / "artifact", ExportConfig(name="clicks"))
    asked = past.drop_columns(["click"])
    with running(
        tmp_path / "artifact", "--answer-log-destination", tmp_path / "log", folder=tmp_path
    ) as server:
        client = server.client()
        for start in range(0, len(past), _ROWS_PER_REQUEST):
            client.predict(asked.slice(start, _ROWS_PER_REQUEST), request_id=f"visit-{start:05}")
        assert server.stop()[0] == 0
    clicked = np.flatnonzero(past["click"].to_numpy())
    labels = {
        "request_id": [f"visit-{i - i % _ROWS_PER_REQUEST:05}" for i in clicked],
        "row": clicked % _ROWS_PER_REQUEST,
        "click": np.ones(len(clicked), int),
    }
    csv.write_csv(pa.table(labels), tmp_path / "labels.csv")
    capsys.readouterr()
    argv = ["join", "--log", tmp_path / "log", "--labels", tmp_path / "labels.csv", "--within", "1h"]
    argv += ["--out", tmp_path / "joined.parquet", "--until", "2100-01-01", "--json"]
    argv += ["--model-file", tmp_path / "artifact", "--schema-out", tmp_path / "joined.toml"]
    assert recsys_data([str(word) for word in argv]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["rows_written"] == len(past)

    again = fit(tmp_path / "joined.parquet", schema=tmp_path / "joined.toml", callbacks=[], **_SETTINGS)
    truth = later["click"].to_numpy()
    before, after = (
        auc(np.asarray(one.model.predict(later)["score"], np.float64), truth) for one in (original, again)
    )
    assert before is not None
    assert before > 0.65
    # Equal, unless the log has the requests in another order.
    assert after == pytest.approx(before, abs=0.01)
