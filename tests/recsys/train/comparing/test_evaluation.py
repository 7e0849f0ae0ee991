"""Models side by side: the metrics of each, differences with intervals, groups, slices and calibration."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from recsys.metrics.exact import auc
from recsys.train import fit
from recsys.train.commands.eval import main
from recsys.train.comparing.evaluation import EvaluationConfig, evaluate
from recsys.train.comparing.models import _short_names, open_models

_NUM_ROWS = 3_000


def _clicks() -> pa.Table:
    """A table whose clicks follow the shop, on phones alone."""
    generator = np.random.default_rng(0)
    shop = generator.integers(0, 20, _NUM_ROWS)
    phone = generator.random(_NUM_ROWS) < 0.6
    chance = np.where(phone, shop / 20, 0.3)
    user = generator.integers(0, 150, _NUM_ROWS)
    return pa.table(
        {
            "click": (generator.random(_NUM_ROWS) < chance).astype(int),
            "shop": [f"shop {i}" for i in shop],
            "device": np.where(phone, "phone", "desk"),
            "user": pa.array(user, mask=user == 0),
            "hour": generator.integers(0, 24, _NUM_ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, a model that knows its shops, and one that does not."""
    folder = tmp_path_factory.mktemp("comparing")
    csv.write_csv(_clicks(), folder / "clicks.csv")
    settings: dict[str, Any] = {"label": "click", "model": "deepfm", "batch_size": 128, "embedding_dim": 4}
    for name, ignore in (("worse", ["user", "shop"]), ("better", ["user"])):
        fitted = fit(_clicks(), ignore=ignore, over_layers=[16], epochs=4, callbacks=[], **settings)
        fitted.model.save(folder / f"{name}.pt")
    return folder


def test_two_models_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        str(folder / "worse.pt"),
        str(folder / "better.pt"),
        "--data",
        str(folder / "clicks.csv"),
        "--json",
    ]
    argv += ["--group", "user", "--item", "shop", "--top", "3", "--slice", "device", "--bootstrap", "60"]
    assert main([*argv, "--page", str(folder / "page.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    worse, better = found["worse.pt"]["click"], found["better.pt"]["click"]
    assert better["auc"] > worse["auc"] + 0.1
    assert better["num_rows"] == _NUM_ROWS
    assert better.keys() >= {"gauc", "ndcg", "recall", "hit_rate", "mrr", "coverage", "loss", "ne"}
    compared = found["compared"]["click"]
    for name in ("auc", "gauc", "ndcg"):
        difference = compared["differences"]["better.pt"][name]
        assert difference["value"] == pytest.approx(better[name] - worse[name])
        assert 0 < difference["low"] < difference["value"] < difference["high"]
        low, high = compared["intervals"]["better.pt"][name]
        assert low < better[name] < high
    slices = {one["value"]: one for one in found["slices"]["click"]}
    assert slices.keys() == {"phone", "desk"}
    assert sum(one["num_rows"] for one in slices.values()) == _NUM_ROWS
    differences = {value: one["differences"]["better.pt"]["auc"]["value"] for value, one in slices.items()}
    assert differences["phone"] > differences["desk"] + 0.1
    page = (folder / "page.html").read_text()
    assert page.count("<polyline") == 2
    assert "device = phone" in page
    assert "GAUC" in page


def test_tables_name_the_models_and_mark_what_is_sure(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(folder / "worse.pt"), str(folder / "better.pt"), "--data", str(folder / "clicks.csv")]
    assert main([*argv, "--slice", "device", "--bootstrap", "40"]) == 0
    printed = capsys.readouterr().out
    assert "better.pt - worse.pt" in printed
    assert "* the difference is not 0" in printed
    assert printed.index("device = phone") < printed.index("device = desk")


def test_rows_are_grouped_by_values_and_missing_ones_are_alone(folder: Path) -> None:
    models = open_models([folder / "better.pt"])
    config = EvaluationConfig(group="user", top=3)
    found = evaluate(models, _clicks(), config).labels["click"]
    users = _clicks()["user"]
    assert found.num_groups == len(users.unique()) - 1 + users.null_count
    scores = fitted_scores(folder)
    labels = _clicks()["click"].to_numpy().astype(np.float64)
    of_users = users.to_numpy(zero_copy_only=False)
    pairs = [
        (of, int((of_users == user).sum()))
        for user in np.unique(of_users[~np.isnan(of_users)])
        if (of := auc(scores[of_users == user], labels[of_users == user])) is not None
    ]
    expected = np.average([of for of, _ in pairs], weights=[rows for _, rows in pairs])
    assert found.comparison.metrics[0]["gauc"].value == pytest.approx(expected)
    assert sum(bucket.num_rows for bucket in found.calibration[0]) == _NUM_ROWS
    assert [b.predicted for b in found.calibration[0]] == sorted(b.predicted for b in found.calibration[0])


def fitted_scores(folder: Path) -> np.ndarray:
    """The scores of the better model for all rows."""
    from recsys.train import Model

    return Model.load(folder / "better.pt").predict(_clicks())["score"].astype(np.float64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--group", "nobody"], "group, item, slice: got unknown columns ['nobody']"),
        (["--item", "shop"], "item: got it without group"),
        (["--bootstrap", "-1"], "--bootstrap"),
    ],
)
def test_wrong_options_are_named(
    folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [str(folder / "better.pt"), "--data", str(folder / "clicks.csv"), *options]
    with contextlib.suppress(SystemExit):
        assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_models_of_other_labels_are_refused(folder: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"embedding_dim": 4, "over_layers": [4], "dense_layers": [4], "callbacks": []}
    fit(_clicks(), label="hour>=12", **settings).model.save(tmp_path / "hours.pt")
    with pytest.raises(ValueError, match=r"labels: hours\.pt has .*, expected those of better\.pt"):
        open_models([folder / "better.pt", tmp_path / "hours.pt"])


def test_names_are_as_long_as_it_takes() -> None:
    assert _short_names(["a/m.pt", "b/n.pt"]) == ["m.pt", "n.pt"]
    assert _short_names(["a/m.pt", "b/m.pt"]) == ["a/m.pt", "b/m.pt"]
    assert _short_names(["a/m.pt", "a/m.pt"]) == ["m.pt", "m.pt (2)"]
