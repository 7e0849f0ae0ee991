"""Labels of every scale get a threshold within their values, words are labels, and one class is an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.data.sources.criteo import criteo
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.inputs.schema import LabelColumn, Schema
from recsys.train.commands.train import main as train_main
from recsys.train.config import ModelConfig, TrainConfig
from tests.recsys.data.blocks import all_of
from tests.support.training import train

_RNG = np.random.default_rng(0)
_N = 400


def _table(values: Any, name: str = "target", **columns: Any) -> pa.Table:
    rows = len(values)
    return pa.table({name: values, "user_id": [i % 9 for i in range(rows)], **columns})


def _reason(data: Any, labels: tuple[str, ...] = ()) -> str:
    return next(column.reason for column in infer(data, labels).columns if column.use == "label")


@pytest.mark.parametrize(
    ("values", "at_least"),
    [
        pytest.param(_RNG.integers(1, 3, _N), 2, id="one-and-two"),
        pytest.param([-1, 1] * 200, 1, id="signs"),
        pytest.param([3.5, 7.25] * 200, 7.25, id="two-fractions"),
        pytest.param(_RNG.integers(0, 4, _N), 1, id="counts"),
        pytest.param(_RNG.poisson(0.02, _N) + (np.arange(_N) == 3) * 40, 1, id="rare-counts"),
        pytest.param(_RNG.integers(1, 4, _N), 3, id="ratings-to-3"),
        pytest.param(_RNG.integers(1, 6, _N), 4, id="ratings-to-5"),
        pytest.param(_RNG.integers(1, 11, _N) / 2, 4, id="half-stars"),
        pytest.param(_RNG.integers(1, 11, _N), 8, id="ratings-to-10"),
        pytest.param([1, 1, 1, 5] * 100, 5, id="few-of-a-scale"),
        pytest.param([1.0, 1.5, 2.0, 3.0] * 100, 3, id="short-scale"),
        pytest.param([0.0, 0.25, 0.5, 0.75] * 100, 0.5, id="rates"),
        pytest.param([0.0, 0.0, 0.0, 2.5, 0.1] * 80, 0.1, id="mostly-zero"),
        pytest.param([-3.0, -2.0, -1.5, -0.5] * 100, -1.5, id="negative"),
        pytest.param([1e6, 2e6, 3e6] * 100, 2e6, id="large"),
    ],
)
def test_thresholds_lie_within_the_values(values: Any, at_least: float) -> None:
    schema = infer(_table(values)).schema
    assert schema.labels == (LabelColumn(name="target", at_least=at_least),)
    read = Examples.concatenate([all_of(block) for block in table_dataset(_table(values), schema).train()])
    assert 0 < read.labels.mean() < 1


def test_a_named_rating_is_one_on_any_scale() -> None:
    assert infer(_table([0, 20, 60, 80, 100] * 40, "rating")).schema.labels[0].at_least == 80
    assert infer(_table([0, 3, 4, 5] * 40, "rating")).schema.labels[0].at_least == 4


def test_the_reason_says_what_is_positive_and_how_often() -> None:
    assert _reason(_table([1, 2, 3, 4, 5] * 20, "rating")) == (
        "named as one; 1 where it is at least 4 (a rating: the chance of a high one is learned, not the "
        "rating), in 40.0% of the rows"
    )
    assert _reason(_table([0, 1, 0, 0] * 20)) == "named as one; 1, in 25.0% of the rows"
    assert "the median: the chance of more is learned, not the number" in _reason(
        _table([0.1, 0.7, 1.9, 2.5] * 20)
    )


@pytest.mark.parametrize(
    "words",
    [
        ("no", "yes"),
        ("No", "YES "),
        ("n", "Y"),
        ("false", "true"),
        ("F", "t"),
        ("neg", "pos"),
        ("off", "On"),
        ("0", "yes"),
    ],
)
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary", "binary"])
def test_words_are_labels_in_every_type_of_text(words: tuple[str, str], kind: str) -> None:
    texts = pa.array([words[i % 3 == 0] for i in range(90)])
    data = _table(texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind), "click")
    schema = infer(data).schema
    assert schema.labels == (LabelColumn(name="click"),)
    (block,) = table_dataset(data, schema).train()
    assert all_of(block).labels[:, 0].tolist() == [float(i % 3 == 0) for i in range(81)]


def test_texts_of_other_words_are_named_with_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    actions = ["pv", "cart", "buy", "fav"]
    path.write_text("label,item_id\n" + "".join(f"{actions[i % 4]},{i % 7}\n" for i in range(80)))
    with pytest.raises(
        DataError, match=r"column 'label': got values such as 'buy', 'cart', .*--label label=buy says"
    ):
        infer(path)
    schema = infer(path, ["label=buy,cart"]).schema
    assert schema.labels == (LabelColumn(name="label", positive=("buy", "cart")),)
    assert Schema.from_json(schema.to_json()) == schema
    (block,) = table_dataset(path, schema).train()
    assert all_of(block).labels[:4, 0].tolist() == [0, 1, 1, 0]
    assert _reason(path, ("label=buy",)) == "given as one; 1 where it is buy, in 25.0% of the rows"


def test_a_threshold_is_given_with_the_name() -> None:
    data = _table([1, 2, 3, 4] * 20, "stars")
    assert infer(data, ["stars>=2"]).schema.labels == (LabelColumn(name="stars", at_least=2),)
    with pytest.raises(DataError, match=r"label: got 'stars>=x', expected a number behind >="):
        infer(data, ["stars>=x"])
    with pytest.raises(DataError, match="label: got 'star>=2', expected one of the columns"):
        infer(data, ["star>=2"])
    schema = {"labels": [{"name": "a", "at_least": 1, "positive": ["b"]}], "tables": []}
    with pytest.raises(ValueError, match=r"labels\[0\].positive: .* one of at_least, positive and loss"):
        Schema.from_json(schema)


@pytest.mark.parametrize(
    ("values", "labels", "text"),
    [
        pytest.param([0] * 50, (), "got 0 in all 50 rows, expected 0 in some and 1 in others", id="zeros"),
        pytest.param([1] * 50, (), "got 1 in all 50 rows", id="ones"),
        pytest.param([5] * 50, (), r"got 1 in all 50 rows \(all are at least 5\)", id="fives"),
        pytest.param(["no"] * 50, (), "got 0 in all 50 rows", id="words"),
        pytest.param([1, 2] * 25, ("target>=3",), r"got 0 in all 50 rows \(none is at least 3\)", id="given"),
        pytest.param(["a", "b"] * 25, ("target=c",), r"all 50 rows \(none is one of 'c'\)", id="given-text"),
        pytest.param([0, 1, None] * 20, (), "data, row 2: column 'target': got a missing", id="missing"),
    ],
)
def test_one_class_is_an_error(values: Any, labels: tuple[str, ...], text: str) -> None:
    with pytest.raises(DataError, match=text):
        infer(_table(values), labels)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("t.csv", "click,user\n1,7\n0,8\n,9\n1,7\n", "t.csv, line 4: column 'click': got a missing value"),
        (
            "t.csv",
            'click,user\n1,"7\n7"\n0,8\n,9\n1,7\n',
            "t.csv, line 5: column 'click': got a missing value",
        ),
        ("t.jsonl", '{"click": 1, "user": 7}\n{"click": 0, "user": 8}\n{"user": 9}\n', "t.jsonl, line 3: "),
    ],
    ids=["plain", "line ends in quotes", "json"],
)
def test_a_value_that_is_no_label_is_named_by_its_line(
    tmp_path: Path, name: str, text: str, place: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"^{place}"):
        infer(tmp_path / name, ["click"])


def test_a_wrong_label_of_a_folder_is_named_by_its_file(tmp_path: Path) -> None:
    for part in range(3):
        label = "" if part == 2 else "0"
        (tmp_path / f"part-{part}.csv").write_text(f"click,user\n1,7\n{label},8\n")
    with pytest.raises(DataError, match=r"^part-2\.csv, line 3: column 'click': got a missing value"):
        infer(tmp_path)


def test_a_class_beyond_the_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys.data.tables.infer.table.SAMPLE_ROWS", 50)
    assert infer(_table([0] * 100 + [1])).schema.labels == (LabelColumn(name="target"),)


def test_training_refuses_one_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("click,user_id\n" + "".join(f"{int(i > 90)},{i % 7}\n" for i in range(100)))
    assert train_main(["--data", str(path), "--out", str(tmp_path / "m.pt")]) == 2
    assert "column 'click': got 0 in all 90 rows" in capsys.readouterr().err
    (tmp_path / "schema.json").write_text(
        json.dumps(
            {
                "labels": [{"name": "user_id", "at_least": 9}],
                "tables": [{"name": "t", "rows": 9, "features": ["click"]}],
            }
        )
    )
    argv = ["--data", str(path), "--schema", str(tmp_path / "schema.json"), "--out", str(tmp_path / "m.pt")]
    assert train_main(argv) == 2
    assert "column 'user_id': got 0 in all 90 rows (none is at least 9)" in capsys.readouterr().err
    lines = ["\t".join(["0", *["1"] * 13, *["05db9164"] * 26]) for _ in range(20)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    dataset = criteo(tmp_path / "train.txt")
    for data in (dataset, replace(dataset, labels=None)):
        with pytest.raises(DataError, match="column 'label': got 0 in all 18 rows"):
            train(data, ModelConfig(embedding_dim=4), TrainConfig())


def test_rows_beyond_the_limit_are_no_labels(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("click,user_id\n" + "".join(f"{i % 2 if i < 50 else 7},{i % 7}\n" for i in range(100)))
    schema = infer(_table([0, 1] * 9, "click")).schema
    table_dataset(path, schema, limit_rows=50).check_labels()
    with pytest.raises(DataError, match="line 52: column 'click': got '7', expected 0 or 1, yes or no"):
        table_dataset(path, schema).check_labels()
