"""IDs that differ in their high bits alone are learned as well as the same ones renumbered, and served alike."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from export.cli import main as export_main
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.inputs.schema import Schema
from recsys.metrics.exact import auc
from recsys.train.commands.eval import main as eval_main
from recsys.train.commands.train import main as train_main
from recsys.train.config import ModelConfig, TrainConfig
from serve.tools.predict import main as predict_main
from tests.support.training import train

_NUM_ADS, _NUM_ROWS = 60, 6_000
#: Of 60 IDs in 1024 rows; a few collide, which costs some of the AUC.
_MARGIN = 0.02
#: Scores of one ad differ in the last bit by batch, and so do their ties.
_ROUNDING = 1e-3
_RNG = np.random.default_rng(3)
_MADE_MS = _RNG.integers(1_400_000_000_000, 1_700_000_000_000, _NUM_ADS) - 1_288_834_974_657
KINDS = {
    "snowflake": (_MADE_MS << 22) | (_RNG.integers(0, 4, _NUM_ADS) << 12),
    "multiples of 65536": np.arange(_NUM_ADS) << 16,
    "multiples of a million": np.arange(_NUM_ADS) * 1_000_000,
    "negative": -(np.arange(_NUM_ADS) << 40) - 5,
}


def _clicks(path: Path, ids: NDArray[np.int64]) -> Path:
    """A table of clicks whose rates depend on the ad alone."""
    rng = np.random.default_rng(1)
    ads = rng.integers(0, _NUM_ADS, _NUM_ROWS)
    rates = np.where(rng.permutation(_NUM_ADS) < _NUM_ADS // 2, 0.15, 0.85)
    clicks = (rng.random(_NUM_ROWS) < rates[ads]).astype(int)
    path.write_text("click,ad_id\n" + "".join(f"{y},{ids[i]}\n" for y, i in zip(clicks, ads, strict=True)))
    return path


def _auc(path: Path, schema: Schema) -> float:
    """The held-out AUC of a small model."""
    sizes = ModelConfig(embedding_dim=4, over_layers=(8,))
    _, epochs = train(table_dataset(path, schema), sizes, TrainConfig(epochs=4, batch_size=64))
    found = epochs[-1].held_out.auc
    assert found is not None
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The AUC with the ads renumbered."""
    path = _clicks(tmp_path_factory.mktemp("ads") / "clicks.csv", np.arange(_NUM_ADS))
    return _auc(path, infer(path).schema)


@pytest.mark.parametrize("kind", KINDS)
def test_constant_low_bits_cost_nothing(tmp_path: Path, expected: float, kind: str) -> None:
    path = _clicks(tmp_path / "clicks.csv", KINDS[kind])
    assert expected > 0.8
    assert _auc(path, infer(path).schema) > expected - _MARGIN


def test_older_schemas_keep_the_plain_modulo(tmp_path: Path) -> None:
    path = _clicks(tmp_path / "clicks.csv", KINDS["snowflake"])
    schema = infer(path).schema
    plain = replace(schema, tables=tuple(replace(table, ids="hash") for table in schema.tables))
    assert _auc(path, plain) < 0.55


def test_the_artifact_scores_them_as_the_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _clicks(tmp_path / "clicks.csv", KINDS["snowflake"])
    argv = ["--data", str(path), "--epochs", "4", "--embedding-dim", "4", "--over-layers", "8", "--json"]
    assert train_main([*argv, "--batch-size", "64", "--out", str(tmp_path / "model.pt")]) == 0
    trained = json.loads(capsys.readouterr().out)["metrics"]["auc"]
    assert trained > 0.8
    for policy in ("hash", "ad_id=hash"):
        assert export_main([str(tmp_path / "model.pt"), "--id-policy", policy]) == 1
        assert "id_policy: got 'hash' for table 'ad_id', expected 'fmix64'" in capsys.readouterr().err
    assert export_main([str(tmp_path / "model.pt"), "--dtype", "fp32"]) == 0
    argv = [str(tmp_path / "model.artifact"), "--data", str(path), "--keep", "click"]
    assert predict_main([*argv, "--out", str(tmp_path / "scores.csv")]) == 0
    with (tmp_path / "scores.csv").open(newline="") as file:
        scored = [(float(row["score"]), float(row["click"])) for row in csv.DictReader(file)]
    scores, clicks = np.array(scored[-_NUM_ROWS // 10 :]).T
    assert auc(scores, clicks) == pytest.approx(trained, abs=_ROUNDING)
    argv = [str(tmp_path / "model.artifact"), "--data", str(path), "--held-out", "--json"]
    capsys.readouterr()
    assert eval_main([*argv, "--checkpoint", str(tmp_path / "model.pt")]) == 0
    measured = json.loads(capsys.readouterr().out)
    of_both = {who: measured[who]["click"]["auc"] for who in ("artifact", "checkpoint")}
    assert of_both == dict.fromkeys(("artifact", "checkpoint"), pytest.approx(trained, abs=_ROUNDING))
