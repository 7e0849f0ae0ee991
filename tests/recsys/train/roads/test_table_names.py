"""A table called ``items`` goes the whole road: train, checkpoint, export, serve."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from export.cli import main as export
from recsys import KeyedJaggedTensor
from recsys.base.hashing import rows_of_ids
from recsys.checkpoint import build_model, load_checkpoint
from recsys.train.commands.train import main as train
from serve.client import Client
from tests.support.serve.spawned import spawned

FEATURES = ("items", "keys", "type")
IDS = {"items": [[3], [8]], "keys": [[1], [4]], "type": [[0], [1]]}
NUMBERS = [[0.5], [-1.0]]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(0, 10, 500) for name in FEATURES}
    columns |= {"label": rng.integers(0, 2, 500), "x": rng.standard_normal(500)}
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    return tmp_path / "clicks.parquet"


def test_tables_with_names_of_methods_go_the_whole_road(
    clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, run = tmp_path / "model.pt", tmp_path / "run"
    options = ("--hash-rows", "10", "--epochs", "1", "--batch-size", "64")
    where = ("--out", str(model), "--checkpoint-dir", str(run))
    assert train(["--data", "parquet", "--path", str(clicks), *options, *where]) == 0, capsys.readouterr().err
    for source, name in ((model, "model.artifact"), (run, "run.artifact")):
        made = export([str(source), "--dtype", "fp32", "--target", "cpu,cpu", "--out", str(tmp_path / name)])
        assert made == 0, capsys.readouterr().err

    ids = np.array([IDS[name] for name in FEATURES])
    flat = rows_of_ids(ids.ravel(), "fmix64", 10).tolist()
    kjt = KeyedJaggedTensor.from_lengths(list(FEATURES), values=flat, lengths=[1] * len(flat))
    with torch.no_grad():
        expected = build_model(load_checkpoint(model))(torch.tensor(NUMBERS), kjt)["score"].numpy()
    command = [sys.executable, "-m", "serve.app.cli", "--port", "0", "--no-metrics", "--json"]
    for name in ("model.artifact", "run.artifact"):
        with (
            spawned([*command, str(tmp_path / name)], tmp_path / "log") as server,
            Client(server.address) as client,
        ):
            assert [sparse.name for sparse in client.metadata().sparse] == list(FEATURES)
            score = client.predict({"dense_features": NUMBERS}, IDS)["score"]
        np.testing.assert_allclose(score, expected, rtol=1e-5)
