"""Schemas are read from TOML and JSON, written back, and named where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recsys.data.lines import DataError
from recsys.data.tables.schema_file import read_schema, to_toml
from recsys.errors import SchemaError
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec

_GOOD = {"label": "y", "dense": ["x"], "tables": [{"name": "t", "features": ["f"], "rows": 5}]}
_TABLE = _GOOD["tables"][0]
_DATE = {**_TABLE, "date": "d", "part": "hour", "rows": 24}


def test_a_schema_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    tables = [{**_TABLE, "pooling": "MEAN", "hash": True}, {"name": "u", "features": ["g", "h"], "rows": 3}]
    path.write_text(json.dumps({**_GOOD, "tables": tables}))
    assert read_schema(path) == Schema(
        labels=(LabelColumn(name="y"),),
        dense=(DenseColumn(name="x"),),
        tables=(
            TableSpec(name="t", num_embeddings=5, feature_names=("f",), pooling="MEAN", ids="hash"),
            TableSpec(name="u", num_embeddings=3, feature_names=("g", "h")),
        ),
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param([], "schema: got list, expected an object", id="list"),
        pytest.param({**_GOOD, "more": 1}, r"unknown fields \['more'\]", id="unknown"),
        pytest.param({**_GOOD, "label": 5}, "schema.label: got '5'", id="label"),
        pytest.param({**_GOOD, "dense": "x"}, "schema.dense: got 'x', expected a list", id="dense-text"),
        pytest.param(
            {**_GOOD, "tables": []}, "schema.tables: got none, expected at least one", id="no-tables"
        ),
        pytest.param({**_GOOD, "tables": [{**_TABLE, "rows": 0}]}, r"tables\[0\].rows: got '0'", id="rows"),
        pytest.param({**_GOOD, "tables": [{**_TABLE, "hash": 1}]}, r"tables\[0\].hash: got '1'", id="hash"),
        pytest.param({**_GOOD, "tables": [{**_TABLE, "pooling": "MAX"}]}, "one of SUM, MEAN", id="pooling"),
        pytest.param(
            {**_GOOD, "tables": [_TABLE, {**_TABLE, "features": ["g"]}]}, "table 't'", id="table-twice"
        ),
        pytest.param({**_GOOD, "dense": [{"name": "x", "std": 0}]}, r"dense\[0\].std: got '0'", id="std"),
        pytest.param({**_GOOD, "dense": [{"name": "x", "clip": [1]}]}, "two numbers", id="clip"),
        pytest.param({**_GOOD, "dense": [{"name": "x", "buckets": [2, 1]}]}, "ascending", id="buckets"),
        pytest.param({**_GOOD, "dense": [{"name": "x", "decimal": ";"}]}, "decimal: got ';'", id="decimal"),
        pytest.param({**_GOOD, "tables": [{**_TABLE, "strings": "xxh64"}]}, "ids: got 'index'", id="ids"),
        pytest.param(
            {**_GOOD, "tables": [{**_TABLE, "ids": "vocabulary", "rows": 1}]}, "at least 2", id="one"
        ),
        pytest.param({**_GOOD, "tables": [{**_TABLE, "part": "hour"}]}, "date: got 'none'", id="no-date"),
        pytest.param({**_GOOD, "tables": [{**_DATE, "part": "year"}]}, "one of hour, weekday", id="part"),
        pytest.param({**_GOOD, "tables": [{**_DATE, "rows": 23}]}, "rows: got '23', expected 24", id="hours"),
        pytest.param({**_GOOD, "tables": [{**_DATE, "ids": "hash"}]}, "expected no ids", id="date-ids"),
        pytest.param({**_GOOD, "tables": [{**_DATE, "features": ["f", "g"]}]}, "one name", id="date-twice"),
        pytest.param({**_GOOD, "held_out": 1.5}, "held_out: got 1.5", id="share"),
        pytest.param({**_GOOD, "held_out_from": "2"}, "without time", id="from"),
        pytest.param({**_GOOD, "label": None, "labels": []}, "schema.label: got 'None'", id="both"),
        pytest.param({**_GOOD, "dense": ["y"]}, "column 'y' is named more than once", id="column-twice"),
    ],
)
def test_wrong_schemas(tmp_path: Path, data: Any, text: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(data))
    with pytest.raises(DataError, match=text):
        read_schema(path)


def test_a_schema_that_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{label: y}")
    with pytest.raises(DataError, match=r"schema 's.json': not readable as JSON"):
        read_schema(tmp_path / "s.json")
    with pytest.raises(DataError, match=r"schema: cannot read 'nowhere.json'"):
        read_schema(tmp_path / "nowhere.json")


_WHOLE = Schema(
    labels=(LabelColumn(name="click"), LabelColumn(name="rating", at_least=3.5)),
    dense=(
        DenseColumn(name='a "quoted" name', missing=1.5, clip=(0.0, 9.5), log1p=True, mean=0.25, std=2.0),
        DenseColumn(name="age", buckets=(18.0, 65.0), decimal=","),
    ),
    tables=(
        TableSpec(name="site", num_embeddings=10, feature_names=("s", "t"), ids="hash", strings="xxh64"),
        TableSpec(
            name="tags",
            num_embeddings=5,
            feature_names=("tags",),
            pooling="MEAN",
            ids="vocabulary",
            strings="xxh64",
            separator="|",
            min_count=3,
        ),
        TableSpec(name="h", num_embeddings=24, feature_names=("age_hour",), date="age_date", part="hour"),
    ),
    weight="w",
    time="hour",
    held_out=0.25,
    held_out_from="2026-01-31",
)


def test_every_field_survives_json_and_toml(tmp_path: Path) -> None:
    assert Schema.from_json(json.loads(json.dumps(_WHOLE.to_json()))) == _WHOLE
    path = tmp_path / "schema.toml"
    path.write_text(to_toml(_WHOLE, {"age": "years\nin full"}))
    assert read_schema(path) == _WHOLE


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("label =")
    with pytest.raises(DataError, match=r"schema 's.toml': not readable as TOML"):
        read_schema(tmp_path / "s.toml")
    with pytest.raises(DataError, match=r"schema: cannot read 'none.toml'"):
        read_schema(tmp_path / "none.toml")


def test_a_schema_without_tables() -> None:
    with pytest.raises(SchemaError, match=r"schema\.tables: got none"):
        Schema(labels=(), dense=(), tables=())


@pytest.mark.parametrize("name", ["a.toml", "a.json"])
def test_files_that_are_nested_deeply_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(("x = " if name == "a.toml" else "") + "[" * 100_000)
    with pytest.raises(DataError, match="schema"):
        read_schema(path)
