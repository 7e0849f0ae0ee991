"""SASRec and HSTU on the whole road: tables of clicks and of histories, trained, exported with the user, and served."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.cli import main as export_main
from recsys.checkpoint import build_model, load_checkpoint
from recsys.models.click import ClickModel
from recsys.train.commands.eval import main as eval_main
from recsys.train.commands.train import main as train_main
from serve.client import Client, Context
from tests.support.helpers import kjt_of
from tests.support.serve.spawned import spawned

_NUM_ITEMS, _NUM_GENRES, _MAX_HISTORY, _NUM_ROWS = 60, 6, 5, 8_000
_SIZES = ["--embedding-dim", "8", "--encoder-layers", "2", "--heads", "2", "--max-history", str(_MAX_HISTORY)]
_RATES = ["--batch-size", "128", "--row-learning-rate", "0.1", "--learning-rate", "0.01", "--dropout", "0.05"]
_COLUMNS = ["--history", "seen", "--target-feature", "item"]
_ITEMS = """
[[tables]]
name = "items"
features = [{features}]
rows = {rows}
"""
_CLICKS = f"""\
[[labels]]
name = "click"

[[dense]]
name = "age"
{_ITEMS.format(features='"seen", "item"', rows=_NUM_ITEMS)}separator = "|"

[[tables]]
name = "country"
features = ["country"]
rows = 20

[[tables]]
name = "maker"
features = ["maker"]
rows = 20
"""
_HISTORIES = _ITEMS.format(features='"seen"', rows=_NUM_ITEMS) + 'separator = "|"\n'


def _write_clicks(path: Path) -> None:
    """Write a table: a click is likely where the item's genre is that of the last item seen."""
    generator = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["click", "age", "seen", "item", "country", "maker"])
        for _ in range(_NUM_ROWS):
            seen = generator.integers(_NUM_ITEMS, size=generator.integers(0, 10))
            item = generator.integers(_NUM_ITEMS)
            if len(seen) and generator.random() < 0.5:
                item = item - item % _NUM_GENRES + seen[-1] % _NUM_GENRES
            is_liked = len(seen) > 0 and item % _NUM_GENRES == seen[-1] % _NUM_GENRES
            chance = 0.9 if is_liked else 0.1 if len(seen) else 0.5
            writer.writerow(
                [int(generator.random() < chance), f"{generator.normal():.3f}", "|".join(map(str, seen)), item,
                 generator.integers(20), generator.integers(20)]
            )  # fmt: skip


def _write_histories(path: Path) -> None:
    """Write histories in which genres follow each other in a circle."""
    generator = np.random.default_rng(0)
    lines = ["seen"]
    for _ in range(1_500):
        genre, length = generator.integers(_NUM_GENRES), generator.integers(0, 9)
        steps = (genre + np.arange(length)) % _NUM_GENRES
        items = generator.integers(_NUM_ITEMS // _NUM_GENRES, size=length) * _NUM_GENRES + steps
        lines.append("|".join(map(str, items)) or '""')
    path.write_text("\n".join(lines) + "\n")


def _train(folder: Path, model: str, objective: str) -> list[str]:
    is_click = objective == "click"
    (_write_clicks if is_click else _write_histories)(folder / "table.csv")
    (folder / "schema.toml").write_text(_CLICKS if is_click else _HISTORIES)
    argv = ["--data", str(folder / "table.csv"), "--schema", str(folder / "schema.toml"), "--model", model]
    others = ["--epochs", "4", "--objective", objective]
    if is_click:
        others = ["--epochs", "15", "--over-layers", "16", "--item-features", "maker"]
    return [*argv, *_COLUMNS, *_SIZES, *_RATES, *others]


@pytest.fixture(
    scope="module",
    params=[(m, o) for m in ("sasrec", "hstu") for o in ("click", "next-item")],
    ids=lambda pair: "-".join(pair),
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, trained and exported with the user as the context."""
    folder = tmp_path_factory.mktemp("sequential")
    argv = _train(folder, *request.param)
    assert train_main([*argv, "--json", "--out", str(folder / "model.pt")]) == 0
    context = "seen,country,dense_features" if request.param[1] == "click" else "seen"
    assert export_main([str(folder / "model.pt"), "--dtype", "fp32", "--context", context]) == 0
    return folder


def test_there_is_something_to_learn(folder: Path) -> None:
    info = load_checkpoint(folder / "model.pt").info
    if "auc" in info["metrics"]:
        assert info["metrics"]["auc"] > 0.7  # chance is 0.5, the labels' noise permits about 0.9
    else:
        # One genre of six follows, and ten of its items are hits.
        assert info["metrics"]["hit_rate"] > 0.7
        assert info["reference"]["ranked"]["hit_rate"] < 0.4


@torch.no_grad()
def test_a_server_ranks_as_the_trained_model_does(folder: Path) -> None:
    model = build_model(load_checkpoint(folder / "model.pt")).eval()
    assert isinstance(model, ClickModel)
    generator = np.random.default_rng(5)
    command = [sys.executable, "-m", "serve.app.cli", str(folder / "model.artifact"), "--port", "0", "--json"]
    with (
        spawned([*command, "--metrics-port", "0"], folder / "server.log") as server,
        Client(server.address) as client,
    ):
        for length in (0, 1, _MAX_HISTORY, 9):
            seen = generator.integers(_NUM_ITEMS, size=length).tolist()
            items = [[i] for i in range(_NUM_ITEMS)] + [[]]
            user: dict[str, Any] = {"seen": [seen]}
            rows: dict[str, Any] = {"item": items}
            dense = {}
            if "maker" in model.inputs.feature_names:
                user["country"], rows["maker"] = [[3]], [[i % 20] for i in range(len(items))]
                dense = {"dense_features": [[0.5]]}
            found = client.predict(sparse=rows, context=Context(sparse=user, dense=dense))["score"]
            repeated = {name: bag * len(items) for name, bag in user.items()} | rows
            features = kjt_of({name: repeated[name] for name in model.inputs.feature_names})
            expected = model(*([torch.full((len(items), 1), 0.5)] if dense else []), features)["score"]
            np.testing.assert_allclose(found, expected.numpy(), atol=1e-5, rtol=1e-5)


def test_what_training_measured_the_artifact_gives(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(folder / "model.artifact"), "--data", str(folder / "table.csv"), "--held-out", "--json"]
    capsys.readouterr()
    trained = load_checkpoint(folder / "model.pt").info["metrics"]
    if "auc" not in trained:
        assert eval_main(argv) == 2
        assert "schema.labels: got none, expected at least one" in capsys.readouterr().err
        return
    assert eval_main(argv) == 0
    found = json.loads(capsys.readouterr().out)["artifact"]["click"]["auc"]
    assert found == pytest.approx(trained["auc"], abs=1e-5)


def test_a_warm_start_learns_the_same_objective(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--data", str(folder / "table.csv"), "--init-from", str(folder / "model.pt"), "--json"]
    assert train_main([*argv, "--freeze-dense", "--out", str(folder / "later.pt")]) == 0
    result = json.loads(capsys.readouterr().out)
    before = load_checkpoint(folder / "model.pt")
    assert result["metrics"].keys() == before.info["metrics"].keys()
    after = load_checkpoint(folder / "later.pt")
    changed = {n for n, tensor in before.state_dict.items() if not torch.equal(tensor, after.state_dict[n])}
    assert changed
    assert all("embedding" in name for name in changed)


def test_an_interrupted_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*_train(tmp_path, "hstu", "next-item"), "--json", "--checkpoint-dir", str(tmp_path / "run")]
    assert train_main([*argv, "--epochs", "1"]) == 0
    assert train_main([*argv, "--epochs", "2", "--resume"]) == 0
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])["epochs"]) == 2


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        ("sasrec", ["--objective", "click"], "schema.labels: got none, expected at least one"),
        ("dlrm", [], "objective: got next-item with the model dlrm, expected one of sasrec, hstu"),
        (
            "sasrec",
            ["--history", "old"],
            "history: got 'old', expected one of the schema's sparse features ['seen']",
        ),
        ("sasrec", ["--item-features", "maker"], "item_features: got maker with the objective next-item"),
        ("sasrec", ["--heads", "3"], "heads: got 3, expected a divisor of 8, the embedding_dim"),
        (
            "sasrec",
            ["--best-metric", "auc"],
            "best_metric: got 'auc', expected one of loss, hit_rate, ndcg, last",
        ),
        ("sasrec", ["--data", "synthetic"], "schema: got"),
    ],
)
def test_what_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, changes: list[str], text: str
) -> None:
    argv = _train(tmp_path, "sasrec", "next-item")
    assert train_main([*argv, "--model", model, *changes, "--out", str(tmp_path / "m.pt")]) == 2
    assert text in capsys.readouterr().err


def test_histories_need_a_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_histories(tmp_path / "table.csv")
    argv = ["--data", str(tmp_path / "table.csv"), "--model", "sasrec", "--objective", "next-item", *_COLUMNS]
    assert train_main([*argv, "--out", str(tmp_path / "m.pt")]) == 2
    assert "schema: got none, expected one with the table of the histories" in capsys.readouterr().err


def test_printed_lines_name_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = _train(tmp_path, "sasrec", "next-item")
    assert train_main([*argv, "--epochs", "1", "--log-every", "5", "--out", str(tmp_path / "m.pt")]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[1].startswith("step 5: train loss ")
    assert "NE" not in lines[1]
    assert f"of {_NUM_ITEMS} items, this model" in lines[-3]
    assert lines[-2].startswith("held-out hit rate@10 ")
    assert lines[-2].endswith(f"of {_NUM_ITEMS} items, the most frequent items")
    assert "the table has no column 'item'" in printed.err
