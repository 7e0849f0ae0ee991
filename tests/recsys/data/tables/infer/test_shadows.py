"""Columns that alone nearly decide the label are named; other labels are no features."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from recsys.data.cli import main
from recsys.data.lines import DataError
from recsys.data.tables.infer import infer
from recsys.train.commands.train import main as train_main
from tests.support.click_tables import write_clicks

_N = 4_000
_RNG = np.random.default_rng(0)
_CLICK = (_RNG.random(_N) < 0.3).astype(int)
_NOISE = _RNG.random(_N)


def _table(**columns: Any) -> pa.Table:
    user = _RNG.integers(0, 90, _N)
    return pa.table({"click": _CLICK, "user_id": user, **columns})


def _where_clicked(values: Any) -> list[Any]:
    return [value if click else None for value, click in zip(values, _CLICK, strict=True)]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(_CLICK * 30 + 10 * _NOISE, id="numbers"),
        pytest.param(np.where(_CLICK, 0.5 + _NOISE / 9, _NOISE), id="numbers-in-a-range"),
        pytest.param(
            [("bought", "left")[not c] if _NOISE[i] < 0.97 else "?" for i, c in enumerate(_CLICK)], id="texts"
        ),
        pytest.param(_CLICK * 3 + 1, id="whole-numbers"),
        pytest.param(_where_clicked([f"order of {i % 50}" for i in range(_N)]), id="missing-unless"),
        pytest.param(_where_clicked([[1, 2]] * _N), id="lists-unless"),
        pytest.param(
            _where_clicked([f"2026-01-{1 + i % 28:02} 0{i % 9}:00" for i in range(_N)]), id="dates-unless"
        ),
    ],
)
def test_a_column_that_tells_the_label_is_named(values: Any) -> None:
    (notice,) = infer(_table(state=values)).notices
    found = re.fullmatch(
        r"label 'click': column 'state' alone tells it with an AUC of (0\.9\d+|1\.000) \(learned on half of the rows, "
        r"measured on the other\): if it is known only after the label, leave it out: --ignore state",
        notice,
    )
    assert found, notice
    assert infer(_table(state=values), ignore=["state"]).notices == ()


def test_a_value_that_comes_with_ones_alone_is_named() -> None:
    seldom = np.where((_CLICK == 1) & (_NOISE < 0.2), "a7", "b")
    (notice,) = infer(_table(voucher=seldom)).notices
    assert "column 'voucher' has values with which it is 1 in 100% of the rows" in notice


def test_good_features_are_not_named(tmp_path: Path) -> None:
    good = np.where(_NOISE < 0.7, _CLICK, _RNG.integers(0, 2, _N))
    ids = _RNG.integers(0, 3_000, _N)
    assert infer(_table(good=good, item_id=ids, price=_NOISE, rare=(_NOISE < 0.01) * 1)).notices == ()
    assert infer(write_clicks(tmp_path / "clicks.csv", num_rows=5_000)).notices == ()
    few = _table(state=_CLICK * 3 + 1).slice(0, 30)
    assert infer(few).notices == ()  # too few to tell


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("purchase", _CLICK * (_NOISE < 0.5)),
        ("is_like", ["no", "yes"] * (_N // 2)),
        ("rating", [i % 5 + 1 for i in range(_N)]),
        ("longView", _CLICK),
        ("add_to_cart", [0.0, 1.0] * (_N // 2)),
    ],
)
def test_other_labels_are_no_features(name: str, values: Any) -> None:
    data = _table(**{name: values})
    report = next(column for column in infer(data).columns if column.name == name)
    assert (report.use, infer(data).schema.feature_names) == ("ignored", ("user_id",))
    assert (
        f"named as a label, and known only when 'click' is, as a rule; --label click --label {name}"
        in report.reason
    )
    assert infer(data, ["click", name]).schema.label_names == ("click", name)


def test_measures_of_what_follows_are_no_features() -> None:
    after = dict.fromkeys(
        ("play_time_ms", "watch_ratio", "watching_times", "read_percentage", "stayTime"), _NOISE
    )
    data = _table(**after, is_hate=[0] * _N, duration=_NOISE, follow=[None, *[0, 1] * (_N // 2 - 1), 1])
    found = {column.name: column for column in infer(data).columns}
    assert all(found[name].use == "ignored" for name in after)
    assert "named as a measure of what follows, known only when" in found["watch_ratio"].reason
    assert found["duration"].use == "dense"
    # Labels that training refuses are not proposed.
    assert found["follow"].reason == "named as a label, and known only when 'click' is, as a rule"
    assert found["is_hate"].reason == "the same in every row"


def test_what_is_named_otherwise_is_kept() -> None:
    data = _table(rating=_NOISE * 5, like=_RNG.integers(0, 50, _N), followers=_RNG.integers(0, 9, _N))
    schema = infer(data).schema
    assert {*schema.feature_names, *schema.dense_names} == {"user_id", "rating", "like", "followers"}


def test_inspect_and_training_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    arrow_csv.write_csv(_table(state=_CLICK * 30 + _NOISE), path)
    assert main(["inspect", str(path)]) == 0
    printed = capsys.readouterr()
    assert "alone tells it with an AUC of" in " ".join(printed.out.split())
    assert printed.err.startswith(
        "recsys-data: warning: label 'click': column 'state' alone tells it with an AUC"
    )
    assert main(["inspect", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["warnings"]) == 1
    sizes = ["--embedding-dim", "4", "--over-layers", "4"]
    argv = ["--data", str(path), "--out", str(tmp_path / "m.pt"), *sizes]
    assert train_main([*argv, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(
        "recsys-train: label 'click': column 'state' alone tells it with an AUC of"
    )
    assert json.loads(captured.out)["dense_names"] == ["state"]
    assert train_main([*argv, "--json", "--ignore", "state"]) == 0
    captured = capsys.readouterr()
    assert (captured.err, json.loads(captured.out)["dense_names"]) == ("", [])
    assert main(["inspect", str(path), "--ignore", "state", "--out", str(tmp_path / "s.toml")]) == 0
    assert "state" not in (tmp_path / "s.toml").read_text()
    with pytest.raises(DataError, match="ignore: got 'z', expected one of the columns"):
        infer(path, ignore=["z"])
