"""Columns of vectors and buckets by quantiles: read, trained, served from raw values as the float model scores them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

from export.pipeline import export_model
from recsys.data.lines import DataError
from recsys.data.tables.columns import with_elements
from recsys.data.tables.dataset import table_dataset
from recsys.errors import SchemaError
from recsys.inputs.schema import Schema
from recsys.train.fitting import fit
from serve.client import Client
from serve.config.settings import ServerConfig
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import ask
from tests.support.serve.repositories import add_version

_SCHEMA: dict[str, Any] = {
    "labels": [{"name": "click"}],
    "dense": [
        {"name": "content", "size": 3, "clip": [-4, 4]},
        {"name": "price", "quantiles": 4, "log1p": True, "missing": 1},
        "age",
    ],
    "tables": [{"name": "items", "rows": 20, "features": ["item"], "ids": "hash", "strings": "xxh64"}],
}


def _table(num_rows: int = 600) -> pa.Table:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((num_rows, 3)).round(3)
    content = [None if i % 50 == 7 else row for i, row in enumerate(vectors.tolist())]
    return pa.table(
        {
            "item": [f"i{i}" for i in generator.integers(15, size=num_rows)],
            "content": content,
            "price": generator.exponential(10, num_rows).round(2),
            "age": generator.random(num_rows).round(2),
            "click": (vectors[:, 0] > 0).astype(int),
        }
    )


def test_a_vector_is_a_column_for_each_number() -> None:
    schema = Schema.from_json(_SCHEMA)
    assert schema.dense_names == ("content[0]", "content[1]", "content[2]", "price", "age")
    assert schema.input_columns() == ["content", "price", "age", "item"]
    assert Schema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("dense", "text"),
    [
        ({"name": "v", "size": 0}, "size: got '0'"),
        ({"name": "v", "element": 1}, "element: got '1', expected it with size alone"),
        ({"name": "v[1]", "size": 3, "element": 2}, "element: got '2', expected a number below 3"),
        ({"name": "p", "quantiles": 1}, "quantiles: got '1', expected at least 2"),
        ({"name": "p", "quantiles": 3, "buckets": [1]}, "quantiles: got '3', expected at least 2, and no buckets"),
    ],
)  # fmt: skip
def test_wrong_entries(dense: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError) as raised:
        Schema.from_json({**_SCHEMA, "dense": [dense]})
    assert text in str(raised.value)


def test_files_and_texts_give_the_same_numbers(tmp_path: Path) -> None:
    table = _table(40)
    texts = ["" if row is None else json.dumps(row) for row in table["content"].to_pylist()]
    csv.write_csv(table.set_column(1, "content", pa.array(texts)), tmp_path / "t.csv")
    schema = Schema.from_json(_SCHEMA)
    found = []
    for data in (table, tmp_path / "t.csv"):
        (block,) = table_dataset(data, schema).train()
        found.append(block.take(np.arange(len(block))).dense)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.isnan(found[0][7, :3]).all()
    np.testing.assert_allclose(found[0][0, :3], table["content"][0].as_py(), rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [[1.0, 2.0, 3.0], [1.0, 2.0]],
            "column 'content': got '2', expected a list of 3 numbers in each row",
        ),
        ([["a", "b", "c"], ["d", "e", "f"]], "column 'content': got lists of string, expected of numbers"),
        ([1.0, 2.0], "column 'content': got double, expected lists of numbers"),
    ],
)
def test_lists_that_do_not_fit(rows: list[Any], text: str) -> None:
    columns = {"item": ["a", "b"], "price": [1.0, 2.0], "age": [1.0, 2.0], "click": [0, 1]}
    schema = Schema.from_json({**_SCHEMA, "dense": [*_SCHEMA["dense"][:1], "price", "age"]})

    def read() -> None:
        dataset = table_dataset(pa.table({**columns, "content": rows}), schema)
        for block in (*dataset.train(), *dataset.held_out()):
            block.take(np.arange(len(block)))

    with pytest.raises(DataError, match=text):
        read()


def test_quantiles_are_those_of_the_training_rows() -> None:
    table = _table()
    dataset = table_dataset(table, Schema.from_json(_SCHEMA))
    price = next(column for column in dataset.schema.dense if column.name == "price")
    expected = np.quantile(np.log1p(table["price"].to_numpy()[:540]), [0.25, 0.5, 0.75])
    np.testing.assert_allclose(price.buckets, expected, rtol=1e-5)
    assert price.quantiles == 0
    assert Schema.from_json(dataset.schema.to_json()) == dataset.schema
    constant = table.set_column(2, "price", pa.array(np.ones(600)))
    with pytest.raises(DataError, match="column 'price': got one value in most rows"):
        table_dataset(constant, Schema.from_json(_SCHEMA))


def test_frames_have_a_column_for_each_number_that_is_asked_for() -> None:
    table = with_elements(pa.table({"v": [[1.0, 2.0], None], "w[0]": [3, 4]}), ["v[0]", "v[1]", "w[0]"])
    assert table.column_names == ["v", "w[0]", "v[0]", "v[1]"]
    assert table["v[1]"].to_pylist() == [2.0, None]


def test_raw_values_are_served_as_the_float_model_scores_them(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")
    table = _table()
    fitted = fit(
        table, schema=Schema.from_json(_SCHEMA), model="dcn", epochs=4, batch_size=64, learning_rate=0.01,
        embedding_dim=8, callbacks=[],
    )  # fmt: skip
    assert (fitted.report.kept.held_out.auc or 0) > 0.8
    export_model(fitted.model.module, tmp_path / "a")
    add_version(tmp_path / "models", "m", "1", tmp_path / "a")
    rows = table.slice(0, 20).drop_columns(["click"])
    expected = fitted.model.predict(rows)["score"]
    config = ServerConfig(port=0, metrics_port=None, http_port=0)
    with LiveServer(tmp_path / "models", config) as live:
        with Client(live.address) as client:
            np.testing.assert_allclose(client.predict(rows)["score"], expected, atol=5e-3)
        answer = ask(live, "POST", "/invocations", {"instances": rows.to_pylist()}).json()
        np.testing.assert_allclose(answer["predictions"], expected, atol=5e-3)
        wrong = ask(live, "POST", "/invocations", {"instances": [{**rows.to_pylist()[0], "content": [1.0]}]})
        assert wrong.json()["error"].startswith(
            "instances[0]['content']: got 1 numbers, expected a list of 3"
        )
        described = ask(live, "GET", "/openapi.json").json()["paths"]["/invocations"]["post"]
        examples = described["requestBody"]["content"]["application/json"]["examples"]
        assert len(examples["instances"]["value"]["instances"][0]["content"]) == 3
