"""Labels meet the requests of a log by stated rules, each with its count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from recsys.base.hashing import hash_text
from recsys.data.cli import main
from recsys.data.tables.dataset import rows_of
from recsys.data.tables.schema_file import read_schema
from recsys.inputs.signature import DenseInput
from serve.wire import predict_pb2 as wire
from tests.recsys.data.blocks import all_of
from tests.support.answer_logs import SIGNATURE, START_S, answered, write_log

#: Later than any label of a test.
END = "2030-01-01"


def join(
    folder: Path,
    labels: str,
    *options: str,
    capsys: pytest.CaptureFixture[str],
    within: str = "1h",
    until: str = END,
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the rows of the table and the counts that are not 0."""
    (folder / "labels.csv").write_text(labels)
    argv = ["--log", str(folder / "log"), "--labels", str(folder / "labels.csv"), "--within", within]
    argv += ["--out", str(folder / "table.parquet"), "--force", "--json", "--until", until, *options]
    capsys.readouterr()
    assert main(["join", *argv]) == 0, capsys.readouterr().err
    counts = json.loads(capsys.readouterr().out)
    return parquet.read_table(folder / "table.parquet").to_pylist(), {
        name: number for name, number in counts.items() if number and name not in ("out", "files", "passes")
    }


def refused(folder: Path, labels: str, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command says of labels that it does not take."""
    (folder / "labels.csv").write_text(labels)
    argv = [
        "--log",
        str(folder / "log"),
        "--labels",
        str(folder / "labels.csv"),
        "--within",
        "1h",
        "--until",
        END,
    ]
    assert main(["join", *argv, "--out", str(folder / "table.parquet"), *options]) == 2
    assert not (folder / "table.parquet").exists()
    return capsys.readouterr().err


def clicks(rows: Sequence[dict[str, Any]]) -> list[float | None]:
    return [row["click"] for row in rows]


def test_a_row_has_its_inputs_and_its_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log", [answered("a", [3, 5, 8])])
    rows, counts = join(tmp_path, "request_id,row,click\na,1,1\n", capsys=capsys)
    assert [row["request_id"] for row in rows] == ["a"] * 3
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert [row["user"] for row in rows] == [[7]] * 3  # given once
    assert [row["item"] for row in rows] == [[3], [5], [8]]
    assert [(row["price"], row["age"]) for row in rows] == [(0, 1), (2, 3), (4, 5)]
    assert clicks(rows) == [0, 1, 0]
    assert counts == {
        "requests": 1,
        "rows": 3,
        "rows_labelled": 1,
        "rows_missing": 2,
        "rows_written": 3,
        "labels": 1,
        "labels_used": 1,
    }
    assert (tmp_path / "table.parquet").stat().st_mode & 0o777 == 0o600


def test_a_vector_is_one_column_that_the_models_schema_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("content[0]", "content[1]", "price")
    dense = DenseInput(name="numbers", width=3, missing=True, columns=columns)
    given = np.array([[1, 2, 3], [np.nan, 5, 6], [np.nan, np.nan, np.nan]], "<f4")
    record = answered("a", [3, 5, 8])
    message = wire.PredictRequest.FromString(record.message)
    message.dense[0].values = given.tobytes()
    signature = replace(SIGNATURE, dense=(dense,))
    write_log(tmp_path / "log", [record._replace(signature=signature, message=message.SerializeToString())])
    trained, schema = tmp_path / "model.json", tmp_path / "table.toml"
    vector = {"name": "content", "size": 2, "missing": 9}
    tables = [{"name": "items", "rows": 9, "features": ["item"], "ids": "hash"}]
    trained.write_text(
        json.dumps({"label": "click", "dense": [vector, {"name": "price", "missing": 9}], "tables": tables})
    )
    options = ["--model-file", str(trained), "--schema-out", str(schema)]
    rows, _ = join(tmp_path, "request_id,row,click\na,1,1\n", *options, capsys=capsys)
    assert [(row["content"], row["price"]) for row in rows] == [([1, 2], 3), ([None, 5], 6), (None, None)]
    blocks = rows_of(tmp_path / "table.parquet", read_schema(schema))
    np.testing.assert_array_equal(np.concatenate([all_of(block).dense for block in blocks]), given)


def test_rows_without_a_label_are_left_out_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("a", [3, 5])])
    rows, counts = join(tmp_path, "request_id,row,click\na,1,0\n", "--missing", "drop", capsys=capsys)
    assert clicks(rows) == [0]
    assert (counts["rows_missing"], counts["rows_written"]) == (1, 1)


@pytest.mark.parametrize(("doubled", "expected"), [("first", 0), ("last", 2), ("any", 3)])
def test_of_several_labels_one_counts(
    doubled: str, expected: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("a", [3])])
    labels = "request_id,click,time\n" + "".join(
        f"a,{value},{START_S + after_s}\n" for value, after_s in ((3, 20), (2, 30), (0, 10))
    )
    rows, counts = join(tmp_path, labels, "--doubled", doubled, capsys=capsys)
    assert clicks(rows) == [expected]
    assert (counts["labels_used"], counts["labels_doubled"]) == (1, 2)


def test_labels_that_come_early_or_late_are_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered(name, [3]) for name in "abcd"])
    times = {"a": -1, "b": 0, "c": 3600, "d": 3601}
    labels = "request_id,click,time\n" + "".join(f"{name},1,{START_S + t}\n" for name, t in times.items())
    rows, counts = join(tmp_path, labels, capsys=capsys)
    assert {row["request_id"]: row["click"] for row in rows} == {"a": 0, "b": 1, "c": 1, "d": 0}
    assert (counts["labels_early"], counts["labels_late"], counts["labels_used"]) == (1, 1, 2)


def test_requests_whose_labels_may_still_come_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(
        tmp_path / "log", [answered("old", [3]), answered("young", [3], 1800), answered("end", [3], 3600)]
    )
    rows, counts = join(tmp_path, "request_id,click\nyoung,1\n", capsys=capsys, until="")
    assert [row["request_id"] for row in rows] == ["old"]
    assert (counts["requests_young"], counts["labels_of_young"]) == (2, 1)


def test_labels_of_nothing_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log", [answered("a", [3, 5])])
    rows, counts = join(tmp_path, "request_id,row,click\nstranger,0,1\na,2,1\na,-1,1\n", capsys=capsys)
    assert clicks(rows) == [0, 0]
    assert (counts["labels_unknown"], counts["labels_without_row"]) == (1, 2)


def test_requests_without_an_id_and_repeated_ones_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("", [1]), answered("a", [3]), answered("a", [5], 1)])
    rows, counts = join(tmp_path, "request_id,click\na,1\n", capsys=capsys)
    assert [(row["item"], row["click"]) for row in rows] == [([3], 1)]
    assert (counts["requests_without_id"], counts["requests_repeated"]) == (1, 1)


@pytest.mark.parametrize("items", [[3, 5, 8], ["i3", "i5", "i8"]], ids=["IDs", "texts"])
def test_a_label_names_its_row_by_the_candidate(
    items: list[int | str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("a", items), answered("b", items)])
    labels = f"request_id,item,click\na,{items[2]},1\nb,{items[0]},1\nb,77,1\n"
    rows, counts = join(tmp_path, labels, "--candidate", "item", capsys=capsys)
    assert clicks(rows) == [0, 0, 1, 1, 0, 0]
    assert counts["labels_without_row"] == 1


def test_texts_stay_texts_unless_some_requests_gave_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("a", ["x"])])
    assert join(tmp_path, "request_id,click\na,1\n", capsys=capsys)[0][0]["item"] == ["x"]
    write_log(tmp_path / "log", [answered("b", [5])])
    rows, _ = join(tmp_path, "request_id,click\na,1\n", capsys=capsys)
    assert {row["request_id"]: row["item"] for row in rows} == {"a": [hash_text("x")], "b": [5]}


def test_little_memory_gives_the_same_rows_in_more_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in range(3):
        write_log(tmp_path / "log", [answered(f"{part}-{i}", [i % 9, 5]) for i in range(200)])
    labels = "request_id,row,click\n" + "".join(
        f"{part}-{i},{i % 2},1\n" for part in range(3) for i in range(200)
    )
    rows, counts = join(tmp_path, labels, capsys=capsys)
    again, counted = join(tmp_path, labels, "--memory", "10000", capsys=capsys)

    def keyed(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(table, key=lambda row: (row["request_id"], row["row"]))

    assert keyed(rows) == keyed(again)
    assert counts == counted
    assert sum(row["click"] for row in rows) == counts["labels_used"] == 600


def test_labels_that_do_not_say_their_row_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log", [answered("a", [3, 5])])
    assert "'a', which has 2 rows" in refused(tmp_path, "request_id,click\na,1\n", capsys=capsys)


def test_wrong_columns_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "log", [answered("a", [3])])
    assert "missing column 'request_id'" in refused(tmp_path, "id,click\na,1\n", capsys=capsys)
    assert "no column of labels" in refused(tmp_path, "request_id,row\na,1\n", capsys=capsys)
    assert "got 'maybe' in column 'click'" in refused(tmp_path, "request_id,click\na,maybe\n", capsys=capsys)
    error = refused(tmp_path, "request_id,who,click\na,1,1\n", "--candidate", "who", capsys=capsys)
    assert "got 'who', expected a sparse input of the log: item, user" in error
    assert "got 'user' more than once" in refused(tmp_path, "request_id,user\na,1\n", capsys=capsys)


def test_other_files_than_logs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").mkdir()
    assert "without whole files" in refused(tmp_path, "request_id,click\na,1\n", capsys=capsys)
    (tmp_path / "log" / "a.parquet").write_bytes(b"PAR1 and nothing else")
    assert "a.parquet: not readable as Parquet" in refused(tmp_path, "request_id,click\na,1\n", capsys=capsys)
    parquet.write_table(parquet.read_table(_labels(tmp_path)), tmp_path / "log" / "a.parquet")
    assert "expected one of an answer log" in refused(tmp_path, "request_id,click\na,1\n", capsys=capsys)


def _labels(folder: Path) -> Path:
    from pyarrow import csv

    parquet.write_table(csv.read_csv(folder / "labels.csv"), folder / "labels.parquet")
    return folder / "labels.parquet"
