"""Columns of any names go the whole road: inferred, written as TOML, trained, exported, served."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from export.cli import main as export
from recsys.data.cli import main as data_main
from recsys.data.tables.infer import infer
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.train.commands.train import main as train
from serve.client import Client
from tests.support.serve.spawned import spawned

_NAMES = (
    "用户",
    "商品",
    "user id",
    "user_id",
    "user-id",
    "user.id",
    "İd",
    'a "b"',
    "c\\d",
    "пользователь",
    "x\ty",
)


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    header = ",".join(["click", *('"' + name.replace('"', '""') + '"' for name in _NAMES)])
    rows = [[i % 2, *rng.integers(0, 90, len(_NAMES)).tolist()] for i in range(500)]
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def test_two_columns_are_two_tables(clicks: Path, tmp_path: Path) -> None:
    schema = infer(clicks).schema
    assert schema.feature_names == _NAMES
    names = [table.name for table in schema.tables]
    assert names[:6] == ["用户", "商品", "user_id", "user_id_2", "user_id_3", "user_id_4"]
    assert len(set(names)) == len(_NAMES)
    path = tmp_path / "schema.toml"
    path.write_text(to_toml(schema), encoding="utf-8")
    assert read_schema(path) == schema


def test_they_go_the_whole_road(clicks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, model = tmp_path / "schema.toml", tmp_path / "model.pt"
    assert data_main(["inspect", str(clicks), "--out", str(schema)]) == 0
    options = ["--epochs", "1", "--embedding-dim", "4", "--dense-layers", "4", "--over-layers", "4"]
    argv = ["--data", str(clicks), "--schema", str(schema), "--out", str(model), *options]
    assert train(argv) == 0, capsys.readouterr().err
    artifact = tmp_path / "model.artifact"
    assert export([str(model), "--out", str(artifact)]) == 0, capsys.readouterr().err
    command = [sys.executable, "-m", "serve.app.cli", "--port", "0", "--no-metrics", "--json", str(artifact)]
    with spawned(command, tmp_path / "log") as server, Client(server.address) as client:
        assert [sparse.name for sparse in client.metadata().sparse] == list(_NAMES)
        scores = [client.predict({}, {name: [[k]] for name in _NAMES})["score"] for k in range(2)]
    assert scores[0].shape == scores[1].shape
