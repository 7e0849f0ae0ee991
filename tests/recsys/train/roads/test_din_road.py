"""DIN on the whole road: a table whose labels follow from history and target alone, trained, exported and served."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.cli import main as export_main
from recsys.artifact.parts import read_manifest
from recsys.checkpoint import build_model, load_checkpoint
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.schema_file import read_schema
from recsys.models.click import ClickModel
from recsys.train.commands.eval import main as eval_main
from recsys.train.commands.train import main as train_main
from recsys.train.config import ModelConfig, TrainConfig
from serve.client import Client
from tests.support.serve.spawned import spawned
from tests.support.training import train

_NUM_ITEMS, _NUM_GENRES, _MAX_HISTORY = 60, 6, 5
_NUM_ROWS = 8_000
_RATES = ["--epochs", "4", "--batch-size", "128", "--row-learning-rate", "0.1", "--learning-rate", "0.005"]
_SIZES = ["--embedding-dim", "8", "--over-layers", "16,8", "--attention-layers", "16,8"]
_DIN = ["--model", "din", "--history", "seen", "--target-feature", "item", "--max-history", str(_MAX_HISTORY)]
_SCHEMA = """\
[[labels]]
name = "click"

[[dense]]
name = "price"

[[tables]]
name = "items"
features = ["seen", "item"]
rows = {rows}
ids = "{ids}"
{strings}
separator = "|"

[[tables]]
name = "country"
features = ["country"]
rows = 500
ids = "hash"
strings = "xxh64"
"""
_ITEMS = {
    "hash": ("hash", 2_000, 'strings = "xxh64"'),
    "vocabulary": ("vocabulary", _NUM_ITEMS + 1, 'strings = "xxh64"'),
    "zero_collision": ("zero_collision", _NUM_ITEMS + 20, ""),
}


def _write(path: Path, *, texts: bool, num_rows: int = _NUM_ROWS, seed: int = 0) -> None:
    """Write a table: a click is likely where the item's genre is that of the last items seen, and of no others.

    Histories have no item to nine; all are of one genre but for the first ones of those that will be cut.
    """
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "seen", "item", "price", "country"])
        for _ in range(num_rows):
            length, genre = generator.integers(0, 10), generator.integers(_NUM_GENRES)
            seen = generator.integers(_NUM_ITEMS // _NUM_GENRES, size=length) * _NUM_GENRES + genre
            if length > _MAX_HISTORY:
                seen[:-_MAX_HISTORY] = generator.integers(_NUM_ITEMS, size=length - _MAX_HISTORY)
            item = generator.integers(_NUM_ITEMS)
            if generator.random() < 0.5:
                item = item - item % _NUM_GENRES + genre
            is_liked = length > 0 and item % _NUM_GENRES == genre
            row = [f"i{i}" if texts else str(i) for i in (*seen, item)]
            writer.writerow(
                [
                    int(generator.random() < (0.9 if is_liked else 0.1 if length else 0.5)),
                    "|".join(row[:-1]),
                    row[-1],
                    f"{generator.normal():.3f}",
                    f"country {generator.integers(20)}",
                ]
            )


@pytest.fixture(scope="module", params=list(_ITEMS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DIN, trained and exported, whose items have one kind of ID."""
    folder = tmp_path_factory.mktemp("din")
    ids, rows, strings = _ITEMS[request.param]
    (folder / "schema.toml").write_text(_SCHEMA.format(ids=ids, rows=rows, strings=strings))
    _write(folder / "clicks.csv", texts=bool(strings))
    argv = ["--data", str(folder / "clicks.csv"), "--schema", str(folder / "schema.toml"), *_DIN, *_SIZES]
    assert train_main([*argv, *_RATES, "--json", "--out", str(folder / "model.pt")]) == 0
    assert export_main([str(folder / "model.pt"), "--dtype", "fp32"]) == 0
    return folder


def _metrics(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    argv = [str(folder / "model.artifact"), "--data", str(folder / "clicks.csv"), "--held-out", "--json"]
    capsys.readouterr()
    assert eval_main([*argv, "--checkpoint", str(folder / "model.pt")]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_training_measured_the_artifact_gives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_checkpoint(folder / "model.pt").info["metrics"]
    found = _metrics(folder, capsys)
    assert found["artifact"]["click"]["num_rows"] == trained["num_rows"] == _NUM_ROWS // 10
    assert found["checkpoint"]["click"]["auc"] == pytest.approx(trained["auc"], abs=1e-6)
    assert found["artifact"]["click"]["auc"] == pytest.approx(trained["auc"], abs=1e-5)
    # The labels' own noise permits less than 0.9; a tenth of the rows has no history.
    assert trained["auc"] > 0.8


def _requests(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the held-out rows as they are in the file, 100 a request."""
    with (folder / "clicks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[-_NUM_ROWS // 10 :]
    value = str if read_manifest(folder / "model.artifact").signature.sparse[0].strings else int
    for first in range(0, len(rows), 100):
        batch = rows[first : first + 100]
        sparse: dict[str, Any] = {
            name: [[value(text) for text in row[name].split("|") if text] for row in batch]
            for name in ("seen", "item")
        }
        sparse["country"] = [[row["country"]] for row in batch]
        yield {"dense": {"dense_features": [[float(row["price"])] for row in batch]}, "sparse": sparse}


@torch.no_grad()
def test_a_server_answers_what_the_trained_model_does(folder: Path) -> None:
    model = build_model(load_checkpoint(folder / "model.pt")).eval()
    assert isinstance(model, ClickModel)
    (block,) = table_dataset(folder / "clicks.csv", read_schema(folder / "schema.toml")).held_out()
    batch = block.take(np.arange(len(block))).batch(np.arange(len(block)))
    expected = model.logits(batch.dense, batch.kjt).sigmoid()[:, 0]
    command = [sys.executable, "-m", "serve.app.cli", str(folder / "model.artifact"), "--port", "0", "--json"]
    with (
        spawned([*command, "--metrics-port", "0"], folder / "server.log") as server,
        Client(server.address) as client,
    ):
        found = np.concatenate([client.predict(**request)["score"] for request in _requests(folder)])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_int8_rows_give_nearly_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "int8.artifact"
    argv = [str(folder / "model.pt"), "--dtype", "int8", "--target", "cpu,cpu", "--out", str(out)]
    assert export_main([*argv, "--context", "seen"]) == 0
    capsys.readouterr()
    assert eval_main([str(out), "--data", str(folder / "clicks.csv"), "--held-out", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["artifact"]["click"]["auc"]
    assert found == pytest.approx(load_checkpoint(folder / "model.pt").info["metrics"]["auc"], abs=0.005)


def test_without_the_history_there_is_nothing_to_learn(tmp_path: Path) -> None:
    _write(tmp_path / "clicks.csv", texts=False)
    (tmp_path / "schema.toml").write_text(_SCHEMA.format(ids="index", rows=_NUM_ITEMS, strings=""))
    schema = read_schema(tmp_path / "schema.toml")
    items, *others = schema.tables
    din = ModelConfig(
        model="din",
        embedding_dim=8,
        history="seen",
        target="item",
        over_layers=(16, 8),
        max_history=_MAX_HISTORY,
    )
    config = TrainConfig(epochs=4, batch_size=128, row_learning_rate=0.1, learning_rate=0.005)
    without = replace(schema, tables=(replace(items, feature_names=("item",)), *others))
    aucs = [
        train(table_dataset(tmp_path / "clicks.csv", columns), model, config)[1][-1].held_out.auc
        for columns, model in ((schema, din), (without, replace(din, model="dcn")))
    ]
    assert aucs[0] is not None
    assert aucs[0] > 0.8
    assert aucs[1] == pytest.approx(0.5, abs=0.08)


def test_a_warm_start_changes_rows_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strings = bool(read_manifest(folder / "model.artifact").signature.sparse[0].strings)
    _write(folder / "later.csv", texts=strings, num_rows=1_000, seed=3)
    argv = ["--data", str(folder / "later.csv"), "--init-from", str(folder / "model.pt"), "--json"]
    assert train_main([*argv, "--freeze-dense", "--out", str(folder / "later.pt")]) == 0
    before, after = (load_checkpoint(folder / name) for name in ("model.pt", "later.pt"))
    assert after.arguments == before.arguments
    changed = {n for n, tensor in before.state_dict.items() if not torch.equal(tensor, after.state_dict[n])}
    assert {name for name in changed if ".items." in name}
    assert all("embedding" in name for name in changed)
    assert any("country" in name for name in changed)
    capsys.readouterr()
    assert train_main([*argv, *_DIN, "--out", str(folder / "x.pt")]) == 2
    assert "got it with --init-from" in capsys.readouterr().err


def test_two_tables_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path / "clicks.csv", texts=True, num_rows=200)
    argv = ["--data", str(tmp_path / "clicks.csv"), *_DIN, "--out", str(tmp_path / "model.pt")]
    assert train_main(argv) == 2
    error = capsys.readouterr().err
    assert (
        "got 'seen' of table 'seen' and 'item' of table 'item', expected two features of one table" in error
    )
