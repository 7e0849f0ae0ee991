"""Tables on the whole road: held-out rows as they are in the file, sent as texts, give the trainer's AUC."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from export.cli import main as export_main
from recsys.artifact.load import load_artifact
from recsys.artifact.parts import read_manifest
from recsys.data.examples import Bags, Examples
from recsys.data.scoring import model_inputs
from recsys.data.tables.infer import infer
from recsys.data.tables.schema_file import to_toml
from recsys.inputs.schema import Schema
from recsys.inputs.signature import IdPolicy
from recsys.metrics.exact import auc
from recsys.train.commands.eval import main as eval_main
from recsys.train.commands.train import main as train_main
from serve.client import Client
from serve.tools.predict import main as predict_main
from tests.support.click_tables import write_clicks
from tests.support.serve.spawned import spawned

#: Tolerance of an AUC: scores that differ in the last bit change places.
_A_FEW_PAIRS = 1e-4
_TRAIN = ["--epochs", "1", "--embedding-dim", "8", "--over-layers", "16,8", "--json"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and exported table, with an edited schema that uses every kind of ID."""
    folder = tmp_path_factory.mktemp("road")
    write_clicks(folder / "clicks.csv", num_rows=6_000)
    text = to_toml(infer(folder / "clicks.csv").schema)
    text = text.replace('name = "site_id"\nrows = 4096\nfeatures = ["site_id"]\nids = "hash"', _VOCABULARY)
    text = text.replace('name = "device_type"\nrows = 1000\nfeatures = ["device_type"]\nids = "fmix64"', _RAW)
    assert text.count("vocabulary") == text.count("zero_collision") == 1
    (folder / "schema.toml").write_text(text)
    argv = ["--data", str(folder / "clicks.csv"), "--schema", str(folder / "schema.toml"), *_TRAIN]
    assert train_main([*argv, "--out", str(folder / "model.pt")]) == 0
    assert export_main([str(folder / "model.pt"), "--dtype", "fp32"]) == 0
    return folder


_VOCABULARY = 'name = "site_id"\nrows = 101\nfeatures = ["site_id"]\nids = "vocabulary"\nmin_count = 2'
_RAW = 'name = "device_type"\nrows = 8\nfeatures = ["device_type"]\nids = "zero_collision"'


def _held_out(path: Path, schema: Schema) -> list[dict[str, str]]:
    """Return the file's rows that are held out, as the csv module reads them."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times = sorted(int(row[str(schema.time)]) for row in rows)
    bound = times[len(times) - len(times) // 10]
    return [row for row in rows if int(row[str(schema.time)]) >= bound]


def _request(rows: Sequence[dict[str, str]], schema: Schema) -> dict[str, Any]:
    """Return the rows as a request: texts as they are in the file, and none for a missing value."""
    dense = [[float(row[name]) if row[name] else math.nan for name in schema.dense_names] for row in rows]
    sparse = {name: [[row[name]] if row[name] else [] for row in rows] for name in schema.feature_names}
    return {"dense": {"dense_features": dense}, "sparse": sparse}


def test_what_training_did_serving_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = read_manifest(folder / "model.artifact").schema
    assert schema is not None
    rows = _held_out(folder / "clicks.csv", schema)
    scores = []
    command = [sys.executable, "-m", "serve.app.cli", str(folder / "model.artifact"), "--port", "0", "--json"]
    log = folder / "server.log"
    with spawned([*command, "--metrics-port", "0"], log) as server, Client(server.address) as client:
        assert [list(dense.columns) for dense in client.metadata().dense] == [["price"]]
        for first in range(0, len(rows), 100):
            answer = client.predict(**_request(rows[first : first + 100], schema))
            scores.append(answer["score"])
        of_frame = client.predict(pd.DataFrame(rows))["score"]
    np.testing.assert_allclose(of_frame, np.concatenate(scores), atol=1e-6)
    served = auc(np.concatenate(scores), np.array([float(row["click"]) for row in rows]))
    capsys.readouterr()
    argv = [str(folder / "model.artifact"), "--data", str(folder / "clicks.csv"), "--held-out", "--json"]
    assert eval_main([*argv, "--checkpoint", str(folder / "model.pt")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"]["click"]["num_rows"] == len(rows)
    assert served == pytest.approx(found["checkpoint"]["click"]["auc"], abs=_A_FEW_PAIRS)
    assert found["artifact"]["click"]["auc"] == pytest.approx(
        found["checkpoint"]["click"]["auc"], abs=_A_FEW_PAIRS
    )


def test_the_schema_travels(folder: Path) -> None:
    manifest = read_manifest(folder / "model.artifact")
    inputs = {feature.name: feature for feature in manifest.signature.sparse}
    assert inputs["site_domain"].tables[0].id_policy is IdPolicy.HASH
    assert inputs["site_id"].tables[0].id_policy is IdPolicy.MAPPED
    assert inputs["C1"].tables[0].id_policy is IdPolicy.FMIX64
    assert (inputs["site_id"].strings, inputs["device_type"].strings) == ("xxh64", "")
    (dense,) = manifest.signature.dense
    assert (dense.missing, dense.columns) == (True, ("price",))
    assert manifest.schema is not None
    assert manifest.schema.label_names == ("click",)


def test_a_table_is_scored_as_requests_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    unlabeled = arrow_csv.read_csv(folder / "clicks.csv").drop_columns(["click"])
    parquet.write_table(unlabeled, folder / "new.parquet", row_group_size=2_500)
    argv = [str(folder / "model.artifact"), "--data", str(folder / "new.parquet"), "--keep", "site_id"]
    assert predict_main([*argv, "--out", str(folder / "scores.parquet")]) == 0
    scored = parquet.read_table(folder / "scores.parquet")
    assert scored.column_names == ["site_id", "score"]
    assert scored.column("site_id").equals(unlabeled.column("site_id"))
    from_csv = [str(folder / "model.artifact"), "--data", str(folder / "clicks.csv")]
    from_csv += ["--copy-rows", "--lock-rows", "--numa", "local"]
    assert predict_main([*from_csv, "--out", str(folder / "scores.csv")]) == 0
    others = arrow_csv.read_csv(folder / "scores.csv").column("score").to_numpy()
    np.testing.assert_allclose(scored.column("score").to_numpy(), others, rtol=1e-5)
    capsys.readouterr()
    assert predict_main([*from_csv, "--out", str(folder / "scores.txt")]) == 2
    assert "expected a name that ends in .parquet or .csv" in capsys.readouterr().err
    assert predict_main([*argv, "--numa", "local", "--out", str(folder / "scores.csv")]) == 2
    assert "numa: got 'local' for mapped rows" in capsys.readouterr().err
    assert predict_main([*argv, "--keep", "nothing", "--out", str(folder / "b.csv")]) == 2
    assert "keep: got unknown columns ['nothing']" in capsys.readouterr().err


def test_requests_send_the_parts_of_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moments = [datetime(2026, 1, 1) + i * timedelta(hours=7) for i in range(400)]
    lines = [f"{int(at.hour < 9)},{at},{i % 5}" for i, at in enumerate(moments)]
    (tmp_path / "clicks.csv").write_text("\n".join(["click,seen,site_id", *lines]))
    argv = ["--data", str(tmp_path / "clicks.csv"), "--out", str(tmp_path / "m.pt"), "--epochs", "3"]
    assert train_main([*argv, "--embedding-dim", "4", "--over-layers", "8", "--batch-size", "16"]) == 0
    assert export_main([str(tmp_path / "m.pt"), "--dtype", "fp32"]) == 0
    argv = [str(tmp_path / "m.artifact"), "--data", str(tmp_path / "clicks.csv")]
    assert predict_main([*argv, "--out", str(tmp_path / "scores.csv")]) == 0
    capsys.readouterr()
    with (tmp_path / "scores.csv").open(newline="") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    assert len(set(scores)) > 20
    sparse = {
        "site_id": [[i % 5] for i in range(400)],
        "seen_hour": [[at.hour] for at in moments],
        "seen_weekday": [[at.weekday()] for at in moments],
    }
    examples = Examples(
        dense=np.zeros((400, 0), dtype=np.float32),
        bags={name: Bags.from_lists(ids) for name, ids in sparse.items()},
        labels=np.zeros((400, 0), dtype=np.float32),
    )
    artifact = load_artifact(tmp_path / "m.artifact")
    assert {feature.name: feature.id_limit for feature in artifact.signature.sparse} == {
        **{"site_id": None, "seen_hour": 24, "seen_weekday": 7}
    }
    sent = artifact.forward(*model_inputs(artifact.signature, examples))["score"]
    np.testing.assert_allclose(sent.numpy(), scores, rtol=1e-5)


def test_held_out_rows_count_by_their_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    sites, weights = rng.integers(0, 30, 600), rng.choice([0.0, 0.5, 1.0, 7.0], 600)
    clicks = (rng.random(600) < sites / 30).astype(int)
    prices = rng.random(600)  # no two rows score alike
    lines = [f"{y},{s},{w},{x}" for y, s, w, x in zip(clicks, sites, weights, prices, strict=True)]
    (tmp_path / "clicks.csv").write_text("\n".join(["click,site_id,importance,price", *lines]))
    argv = [
        "--data",
        str(tmp_path / "clicks.csv"),
        "--out",
        str(tmp_path / "m.pt"),
        "--epochs",
        "2",
        "--json",
    ]
    assert train_main([*argv, "--embedding-dim", "4", "--over-layers", "8", "--batch-size", "64"]) == 0
    trained = json.loads(capsys.readouterr().out)["metrics"]
    assert export_main([str(tmp_path / "m.pt"), "--dtype", "fp32"]) == 0
    argv = [str(tmp_path / "m.artifact"), "--data", str(tmp_path / "clicks.csv")]
    assert predict_main([*argv, "--out", str(tmp_path / "scores.csv")]) == 0
    with (tmp_path / "scores.csv").open(newline="") as file:
        p = np.array([float(row["score"]) for row in csv.DictReader(file)])[540:]
    y, w = clicks[540:], weights[540:]
    pairs = np.outer(w[y == 1], w[y == 0])
    wins = np.sign(p[y == 1][:, None] - p[y == 0][None]) / 2 + 0.5
    mean = np.average(y, weights=w)
    entropy = -mean * np.log(mean) - (1 - mean) * np.log(1 - mean)
    loss = np.average(-np.log(np.where(y == 1, p, 1 - p)), weights=w)
    expected = {
        "num_rows": 60,
        "loss": pytest.approx(loss, abs=1e-5),
        "auc": pytest.approx((pairs * wins).sum() / pairs.sum(), abs=1e-5),
        "ne": pytest.approx(loss / entropy, abs=1e-5),
        "calibration": pytest.approx(np.average(p, weights=w) / mean, abs=1e-5),
    }
    assert trained == expected
    capsys.readouterr()
    argv = [str(tmp_path / "m.artifact"), "--data", str(tmp_path / "clicks.csv"), "--json"]
    assert eval_main([*argv, "--held-out", "--checkpoint", str(tmp_path / "m.pt")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["artifact"]["click"], found["checkpoint"]["click"]) == (expected, expected)
    assert eval_main([*argv, "--limit-rows", "200"]) == 0
    assert json.loads(capsys.readouterr().out)["artifact"]["click"]["num_rows"] == 200
    assert eval_main([*argv, "--limit-rows", "1"]) == 0
    assert f"label 'click': it is {clicks[0]} in all 1 rows that were measured" in capsys.readouterr().err


def test_a_warm_start_changes_rows_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from recsys.checkpoint import load_checkpoint

    write_clicks(folder / "later.csv", num_rows=2_000, seed=3)
    argv = ["--data", str(folder / "later.csv"), "--init-from", str(folder / "model.pt"), "--json"]
    assert train_main([*argv, "--freeze-dense", "--out", str(folder / "later.pt")]) == 0
    before, after = (load_checkpoint(folder / name) for name in ("model.pt", "later.pt"))
    assert after.arguments == before.arguments
    changed = {
        name for name, tensor in before.state_dict.items() if not torch.equal(tensor, after.state_dict[name])
    }
    assert changed
    assert all("embedding_bags" in name or "managed_collision" in name for name in changed)
    assert train_main([*argv, "--out", str(folder / "all.pt")]) == 0
    whole = load_checkpoint(folder / "all.pt").state_dict
    assert any(
        "over_arch" in name and not torch.equal(t, whole[name]) for name, t in before.state_dict.items()
    )
    capsys.readouterr()
    assert train_main([*argv, "--model", "dcn", "--out", str(folder / "x.pt")]) == 2
    assert "--model: got it with --init-from" in capsys.readouterr().err
