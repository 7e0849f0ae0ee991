"""What is inferred of tables that people have, and that frames and files give the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

from recsys.data.lines import DataError
from recsys.data.tables.infer import infer
from recsys.inputs.schema import DenseColumn, LabelColumn, TableSpec
from tests.support.click_tables import write_clicks


def _uses(data: Any, **options: Any) -> dict[str, str]:
    return {column.name: column.use for column in infer(data, **options).columns}


def test_clicks_like_avazus(tmp_path: Path) -> None:
    inferred = infer(write_clicks(tmp_path / "clicks.csv", num_rows=5_000))
    assert {column.name: column.use for column in inferred.columns} == {
        **dict.fromkeys(("C1", "banner_pos", "site_id", "site_domain", "app_id"), "sparse"),
        **dict.fromkeys(("device_id", "device_model", "device_type"), "sparse"),
        "id": "ignored",
        "click": "label",
        "hour": "time",
        "price": "dense",
    }
    schema = inferred.schema
    assert (schema.labels, schema.time) == ((LabelColumn(name="click"),), "hour")
    tables = {table.name: table for table in schema.tables}
    assert tables["site_id"] == TableSpec(
        name="site_id", num_embeddings=4096, feature_names=("site_id",), ids="hash", strings="xxh64"
    )
    assert (tables["device_id"].num_embeddings, tables["device_type"].strings) == (100_000, "")
    assert tables["device_model"].separator == ""  # texts with commas in them, not lists
    (price,) = schema.dense
    assert price.log1p
    assert price.mean == pytest.approx(3.07, abs=0.1)


def test_ratings_like_movielens() -> None:
    ratings = pa.table(
        {
            "userId": [i % 90 for i in range(2_000)],
            "movieId": [i % 70 for i in range(2_000)],
            "rating": [i % 10 / 2 + 0.5 for i in range(2_000)],
            "timestamp": [964_982_703 + 60 * i for i in range(2_000)],
        }
    )
    schema = infer(ratings).schema
    assert schema.labels == (LabelColumn(name="rating", at_least=4.0),)
    assert (schema.feature_names, schema.time, schema.dense) == (("userId", "movieId"), "timestamp", ())


def test_lists_and_multi_valued_texts() -> None:
    genres = ["Action|Comedy", "Comedy", "Drama|Action|War", "War"]
    table = pa.table(
        {
            "label": [0, 1] * 50,
            "genres": [genres[i % 4] if i % 7 else None for i in range(100)],
            "recent_ids": [[i, i + 1][: i % 3] for i in range(100)],
            "words": [["a", "b"][: i % 3] for i in range(100)],
            "item_id": list(range(100)),
        }
    )
    tables = {table.name: table for table in infer(table).schema.tables}
    assert (tables["genres"].separator, tables["genres"].pooling) == ("|", "MEAN")
    assert (tables["recent_ids"].strings, tables["recent_ids"].pooling) == ("", "MEAN")
    assert tables["words"].strings == "xxh64"


def test_a_frame_and_its_file_give_the_same(tmp_path: Path) -> None:
    path = write_clicks(tmp_path / "clicks.csv", num_rows=3_000)
    frame = arrow_csv.read_csv(path)
    from_file, from_frame = infer(path).schema, infer(frame).schema
    # Arrow reads an identifier of digits as a number where the file's column holds texts.
    assert from_frame.label_names == from_file.label_names
    assert from_frame.dense == from_file.dense
    assert from_frame.feature_names == from_file.feature_names


def test_codes_with_leading_zeros_are_texts() -> None:
    table = pa.table({"y": [0, 1] * 20, "zip_code": ["02134", "10001"] * 20, "age": ["20", "0"] * 20})
    (spec,) = infer(table).schema.tables
    assert (spec.name, spec.strings) == ("zip_code", "xxh64")


def test_amounts_are_numbers_and_true_is_no_number() -> None:
    amounts = pa.table(
        {
            "click": [0, 1] * 200,
            "user_id": [i % 9 for i in range(400)],
            **{"paid": [f"${i % 300}" for i in range(400)], "fee": [f"€ {i % 90}" for i in range(400)]},
            **{"sum": [f"${i % 7 + 1},{i % 300 + 100}" for i in range(400)], "verified": [True, False] * 200},
        }
    )
    inferred = infer(amounts)
    assert inferred.schema.dense_names == ("paid", "fee", "sum")
    found = {column.name: (column.kind, column.reason) for column in inferred.columns}
    assert found["paid"] == ("whole numbers", "amounts, such as '$0'")
    assert found["verified"] == (
        "true and false",
        "true and false, as 1 and 0; alone tells it with an AUC of 1.000 (label 'click')",
    )


def test_histories_of_codes_are_lists() -> None:
    codes = [" ".join(f"B0{(i * k) % 9}X" for k in range(1, 1 + i % 4)) for i in range(400)]
    titles = ["Ocean's 11", "Toy Story 2", "Seven", "Movie 43 again"] * 100
    data = {"click": [0, 1] * 200, "user_id": [i % 9 for i in range(400)], "history": codes, "title": titles}
    assert {table.name: table.separator for table in infer(pa.table(data)).schema.tables} == {
        **{"user_id": "", "history": " ", "title": ""}
    }


def test_a_folder_of_several_tables_is_named(tmp_path: Path) -> None:
    clicks = "".join(f"{i % 9},{i % 7},{i % 2},{1_700_000_000 + i}\n" for i in range(60))
    (tmp_path / "log_1.csv").write_text("user_id,item_id,click,ts\n" + clicks)
    (tmp_path / "log_2.csv").write_text("user_id,item_id,click,ts,tab\n" + clicks.replace("\n", ",3\n"))
    assert infer(tmp_path).schema.label_names == ("click",)
    for name, text in (
        ("users.csv", "user_id,age\n1,30\n"),
        ("tags.csv", "user_id,item_id,tag,ts\n1,2,good,1700000000\n"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(
            DataError, match=rf"got several tables: log_1.csv has the columns .*, {name} has 'user_id'"
        ):
            infer(tmp_path)
        assert infer(tmp_path / "log_*.csv").schema.label_names == ("click",)
        (tmp_path / name).unlink()


def test_labels_by_name() -> None:
    table = pa.table({"id": [5, 6, 7, 8], "bought": [0, 1, 1, 0], "viewed": [1, 1, 1, 0]})
    schema = infer(table, labels=("bought", "viewed")).schema
    assert schema.label_names == ("bought", "viewed")
    with pytest.raises(DataError, match="label: got 'seen', expected one of the columns"):
        infer(table, labels=("seen",))
    with pytest.raises(DataError, match="label: found none among the columns"):
        infer(table.drop_columns(["viewed"]).rename_columns(["id", "x"]))


def test_what_says_nothing_is_ignored() -> None:
    table = pa.table(
        {
            "y": [0, 1] * 20,
            "id": [str(i) for i in range(40)],
            "constant": ["a"] * 40,
            "nothing": pa.array([None] * 40, pa.string()),
            "city": ["x", "z", "y", "z"] * 10,
            "age": [20 + i for i in range(40)],
        }
    )
    assert _uses(table) == {
        **{"y": "label", "id": "ignored", "constant": "ignored", "nothing": "ignored"},
        **{"city": "sparse", "age": "dense"},
    }
    assert infer(table).schema.dense[0].name == DenseColumn(name="age").name


def test_tables_that_cannot_be_inferred() -> None:
    with pytest.raises(DataError, match="none looks like an ID or a category"):
        infer(pa.table({"label": [0, 1], "x": [0.5, 1.5]}))
    with pytest.raises(DataError, match="label: column 'label': got values such as 'a', 'b'"):
        infer(pa.table({"label": ["a", "b"], "x": [1, 2]}), labels=("label",))
    with pytest.raises(DataError, match="data: got no rows"):
        infer(pa.table({"label": [], "x": []}))
    with pytest.raises(DataError, match="data: got 1 row, expected at least 2"):
        infer(pa.table({"label": [1], "x": [1]}))
    with pytest.raises(DataError, match="hash_rows: got 0"):
        infer(pa.table({"label": [0, 1]}), hash_rows=0)
    with pytest.raises(DataError, match="expected a path, or a frame"):
        infer(17)
