"""The whole road: two ranks train under a mixed plan, the checkpoint is exported, a live server gives the same AUC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.cli import main as export
from recsys.data.batches import batches
from recsys.data.examples import Dataset
from recsys.metrics.exact import auc
from recsys.train.commands.sources import DataConfig, open_dataset
from serve.client import Client
from tests.recsys.train.plans import mixed_plan
from tests.support.serve.spawned import spawned
from tests.support.shared_data import data_file

ROOT = Path(__file__).resolve().parents[4]
_EMBEDDING_DIM = 16
#: How far the served model's AUC may lie from the trainer's: rows are quantized to INT8 on the way.
_TOLERANCE = 0.002
_SYNTHETIC_ROWS = 20_000


def _torchrun(programs: Path, world_size: int, *argv: str) -> subprocess.CompletedProcess[str]:
    """``recsys-train --json`` on so many ranks."""
    command = [programs / "torchrun", "--standalone", f"--nproc-per-node={world_size}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, "-m", "recsys.train", "--json", *argv],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _requests(dataset: Dataset) -> Iterator[tuple[dict[str, Any], np.ndarray[Any, Any]]]:
    """The held-out examples as requests, with their labels."""
    for batch in batches(dataset.held_out(), 500):
        sparse = {
            key: [row.tolist() for row in jagged.to_dense()] for key, jagged in batch.kjt.to_dict().items()
        }
        yield {"dense": {"dense_features": batch.dense.numpy()}, "sparse": sparse}, batch.labels.numpy()[:, 0]


@pytest.mark.parametrize("data", ["synthetic", pytest.param("movielens", marks=pytest.mark.slow)])
def test_train_on_two_ranks_export_serve(data: str, tmp_path: Path, programs: Path) -> None:
    if data == "movielens":
        source = DataConfig(name=data, path=data_file("ml-100k.inter").parent)
        argv = ["--path", str(source.path), "--batch-size", "256", "--epochs", "1"]
    else:
        source = DataConfig(name=data, limit_rows=_SYNTHETIC_ROWS)
        argv = ["--limit-rows", str(_SYNTHETIC_ROWS), "--batch-size", "100", "--epochs", "1"]
    dataset = open_dataset(source)
    plan = mixed_plan(dataset, _EMBEDDING_DIM)
    assert {t.sharding_type for tables in plan.plan.values() for t in tables.values()} == {
        "row_wise",
        "column_wise",
        "table_wise",
        "data_parallel",
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    run = tmp_path / "run"
    done = _torchrun(
        programs,
        2,
        *("--data", data, *argv, "--embedding-dim", str(_EMBEDDING_DIM)),
        *("--tensorboard", str(tmp_path / "events")),
        *("--plan", str(tmp_path / "plan.json"), "--checkpoint-dir", str(run), "--checkpoint-every", "100"),
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    assert result["plan"] == plan.to_json()
    assert result["world_size"] == 2
    assert len(list((tmp_path / "events").iterdir())) == 1  # rank 0 alone writes
    artifact = tmp_path / "model.artifact"
    assert export([str(run), "--target", "cpu,cpu", "--out", str(artifact)]) == 0

    command = [
        sys.executable,
        "-m",
        "serve.app.cli",
        str(artifact),
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--json",
    ]
    scores, labels = [], []
    with spawned(command, tmp_path / "server.log") as server, Client(server.address) as client:
        for request, of_request in _requests(dataset):
            scores.append(client.predict(**request)["score"])
            labels.append(of_request)
    served = auc(np.concatenate(scores), np.concatenate(labels))
    assert served == pytest.approx(result["metrics"]["auc"], abs=_TOLERANCE)
    assert served > 0.65  # the model has learned: an untrained one has 0.5


def test_what_one_rank_finds_wrong_ends_all(tmp_path: Path, programs: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"label": [i % 2 for i in range(4_000)], "x": [0.5] * 4_000, "user": list(range(4_000))}
    columns["x"][1_234] = float("inf")  # one row, which one of the ranks reads
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    table = {"name": "user", "features": ["user"], "rows": 50, "hash": True}
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"label": "label", "dense": ["x"], "tables": [table]}))
    done = _torchrun(
        *(programs, 2, "--data", str(tmp_path / "clicks.parquet"), "--schema", str(schema)),
        *("--batch-size", "64", "--out", str(tmp_path / "m.pt")),
    )
    assert done.returncode != 0
    assert "clicks.parquet, row 1234: column 'x': got 'inf', expected a finite float32" in done.stderr
    assert "]: Traceback" not in done.stderr  # of a rank; torchrun adds one of its own
    assert not (tmp_path / "m.pt").exists()
