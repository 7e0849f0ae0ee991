"""Tables give what was written, read pieces as they are needed, and name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from recsys.data.batches import batches
from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.data.sources.criteo import criteo
from recsys.data.tables import dataset as module
from recsys.data.tables.dataset import table_dataset
from recsys.inputs.schema import DenseColumn, LabelColumn, Schema, TableSpec
from recsys.train.commands.sources import DataConfig, open_dataset
from tests.recsys.data.blocks import all_of
from tests.support.shared_data import data_file

_SCHEMA = Schema(
    labels=(LabelColumn(name="clicked"),),
    dense=(DenseColumn(name="price"), DenseColumn(name="age")),
    tables=(
        TableSpec(name="item", num_embeddings=100, feature_names=("item", "recent"), pooling="MEAN"),
        TableSpec(name="user", num_embeddings=7, feature_names=("user",), ids="hash"),
    ),
)


def _columns(num_rows: int = 20) -> dict[str, Any]:
    return {
        "clicked": [i % 2 for i in range(num_rows)],
        "price": [i / 4 for i in range(num_rows)],
        "age": pa.array(range(num_rows), pa.int32()),
        "item": pa.array([None if i == 3 else i for i in range(num_rows)], pa.int64()),
        "recent": pa.array(
            [None if i == 5 else list(range(i % 4)) for i in range(num_rows)], pa.list_(pa.int64())
        ),
        "user": [i * 1000 for i in range(num_rows)],
        "note": ["ignored"] * num_rows,
    }


def _write(path: Path, columns: dict[str, Any], row_group_size: int = 4) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return path


def _all(blocks: Any) -> Examples:
    return Examples.concatenate([all_of(block) for block in blocks])


def _bags(examples: Examples, name: str) -> list[list[int]]:
    bags = examples.bags[name]
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


def test_columns_become_examples(tmp_path: Path) -> None:
    dataset = table_dataset(_write(tmp_path / "a.parquet", _columns()), _SCHEMA)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (18, 2)
    train, held_out = _all(dataset.train()), _all(dataset.held_out())
    assert train.labels[:, 0].tolist() == [i % 2 for i in range(18)]
    assert train.dense.tolist() == [[i / 4, i] for i in range(18)]
    assert _bags(train, "item") == [[] if i == 3 else [i] for i in range(18)]
    assert _bags(train, "recent") == [[] if i == 5 else list(range(i % 4)) for i in range(18)]
    assert _bags(train, "user") == [[i * 1000 % 7] for i in range(18)]
    assert held_out.dense.tolist() == [[18 / 4, 18], [19 / 4, 19]]


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    columns = pa.table(_columns())
    for name, first, size in (("b.parquet", 6, 9), ("a.parquet", 0, 6), ("c.pq", 15, 5)):
        pq.write_table(columns.slice(first, size), tmp_path / name, row_group_size=4)
    (tmp_path / "readme.txt").write_text("not data")
    whole = table_dataset(_write(tmp_path / "whole.one", _columns()), _SCHEMA)
    parts = table_dataset(tmp_path, _SCHEMA)
    for name in ("train", "held_out"):
        a, b = _all(getattr(whole, name)()), _all(getattr(parts, name)())
        assert np.array_equal(a.dense, b.dense)
        assert np.array_equal(a.labels, b.labels)
        assert _bags(a, "recent") == _bags(b, "recent")


def test_rows_in_any_order_over_row_groups(tmp_path: Path) -> None:
    (block,) = table_dataset(_write(tmp_path / "a.parquet", _columns()), _SCHEMA).train()
    rows = np.array([17, 0, 9, 9, 3, 5])
    taken = block.take(rows)
    assert taken.dense[:, 1].tolist() == rows.tolist()
    assert _bags(taken, "item") == [[17], [0], [9], [9], [], [5]]
    assert len(block.take(np.array([], dtype=np.int64))) == 0


def test_row_groups_are_read_when_rows_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_ROWS", 8)
    columns = _columns(40)
    columns["user"] = pa.array([None if i == 39 else i for i in range(40)])
    columns["price"][33] = float("nan")
    dataset = table_dataset(_write(tmp_path / "a.parquet", columns), _SCHEMA)
    blocks = list(dataset.train())
    assert [len(block) for block in blocks] == [8, 8, 8, 8, 4]
    assert all_of(blocks[1]).dense[:, 1].tolist() == list(range(8, 16))
    with pytest.raises(DataError, match=r"a.parquet, row 33: column 'price': got a missing value"):
        all_of(blocks[4])
    resumed = batches(dataset.train(), 8, first_step=2)
    assert next(resumed).dense[:, 1].tolist() == list(range(16, 24))


def test_limit_rows(tmp_path: Path) -> None:
    dataset = table_dataset(_write(tmp_path / "a.parquet", _columns()), _SCHEMA, limit_rows=10)
    assert (dataset.num_train_rows, dataset.num_held_out_rows) == (9, 1)
    assert _all(dataset.held_out()).dense[:, 1].tolist() == [9]


@pytest.mark.parametrize(
    ("name", "values", "text"),
    [
        pytest.param("clicked", [[1]] * 20, "'clicked': got list<.*>, expected whole", id="label-type"),
        pytest.param("price", [[1.0]] * 20, "'price': got list<.*>, expected whole", id="dense-type"),
        pytest.param("recent", [[[1]]] * 20, "'recent': got list<.*list<.*>, expected int64", id="list-type"),
        pytest.param("user", [{"id": 1}] * 20, "'user': got struct<id: int64>", id="struct"),
    ],
)
def test_wrong_types_are_found_at_once(tmp_path: Path, name: str, values: Any, text: str) -> None:
    path = _write(tmp_path / "a.parquet", {**_columns(), name: values})
    with pytest.raises(DataError, match=f"a.parquet: column {text}"):
        table_dataset(path, _SCHEMA)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        pytest.param("clicked", 2, "got '2', expected 0 or 1", id="label"),
        pytest.param("clicked", None, "got a missing value, expected 0 or 1", id="null-label"),
        pytest.param("price", None, "got a missing value, expected a number", id="null-dense"),
        pytest.param("price", float("inf"), "got 'inf', expected a finite float32", id="infinite"),
        pytest.param("price", 1e300, r"got '1e\+300', expected a finite float32", id="beyond-float32"),
        pytest.param("item", 100, r"got '100', expected an ID of 0 to 99 \(table 'item'", id="id"),
        pytest.param("item", -1, "got '-1', expected an ID of 0 to 99", id="negative-id"),
        pytest.param("recent", [1, 2, 100], "got '100', expected an ID", id="id-in-list"),
        pytest.param("item", 1.5, "got '1.5', expected a whole number", id="fraction"),
        pytest.param("recent", [0.5], "got '0.5', expected a whole number", id="fraction-in-list"),
    ],
)
def test_wrong_values_are_named_with_their_row(tmp_path: Path, name: str, value: Any, text: str) -> None:
    columns = _columns()
    values = pa.array(columns[name]).to_pylist()
    values[13] = value
    dataset = table_dataset(_write(tmp_path / "a.parquet", {**columns, name: values}), _SCHEMA)
    with pytest.raises(DataError, match=f"a.parquet, row 13: column '{name}': {text}"):
        _all(dataset.train())


@pytest.mark.parametrize(
    ("lists", "kind"),
    [
        ([[1, None, 3], [None], [2], None] * 5, pa.list_(pa.int64())),
        ([[1.0, float("nan"), 3.0], [None], [2.0], None] * 5, pa.list_(pa.float64())),
        ([["1", None, "3"], [None], ["2"], None] * 5, pa.list_(pa.string())),
    ],
)
def test_missing_values_within_lists_are_left_out(lists: list[Any], kind: pa.DataType) -> None:
    table = pa.table({**_columns(), "recent": pa.array(lists, kind)})
    found = _all(table_dataset(table, _SCHEMA).train()).bags["recent"]
    assert np.diff(found.offsets[:5]).tolist() == [2, 0, 1, 0]
    assert found.values[:3].tolist() == [1, 3, 2]


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        table_dataset(tmp_path / "nowhere.parquet", _SCHEMA)
    with pytest.raises(DataError, match=r"got no files that end in .parquet, .csv"):
        table_dataset(tmp_path, _SCHEMA)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing of the sort")
    with pytest.raises(DataError, match=r"a.parquet: not a Parquet file"):
        table_dataset(tmp_path, _SCHEMA)
    columns = _columns()
    del columns["age"]
    with pytest.raises(DataError, match=r"b.parquet: missing columns \['age'\]"):
        table_dataset(_write(tmp_path / "b.parquet", columns), _SCHEMA)
    with pytest.raises(DataError, match="got 1 rows, expected at least 2"):
        table_dataset(_write(tmp_path / "c.parquet", _columns(1)), _SCHEMA)


def test_damage_behind_the_footer_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.parquet", _columns())
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    dataset = table_dataset(path, _SCHEMA)
    with pytest.raises(DataError, match=r"a.parquet, row group 0: cannot be read"):
        _all(dataset.train())


def test_criteo_lines_in_parquet_give_the_same_examples(tmp_path: Path) -> None:
    lines = criteo(data_file("criteo_sample.csv"), hash_rows=1000, limit_rows=100)
    examples = Examples.concatenate([_all(lines.train()), _all(lines.held_out())])
    columns: dict[str, Any] = {"label": examples.labels[:, 0]}
    columns |= {name: examples.dense[:, i] for i, name in enumerate(lines.dense_names)}
    columns |= {name: pa.array(_bags(examples, name), pa.list_(pa.int64())) for name in examples.bags}
    path = _write(tmp_path / "criteo.parquet", columns, row_group_size=30)
    schema = {
        "label": "label",
        "dense": list(lines.dense_names),
        "tables": [
            {"name": t.name, "features": list(t.feature_names), "rows": t.num_embeddings}
            for t in lines.tables
        ],
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    dataset = open_dataset(DataConfig(name="table", path=path, schema=tmp_path / "schema.json"))
    assert [(t.name, t.num_embeddings) for t in dataset.tables] == [
        (t.name, t.num_embeddings) for t in lines.tables
    ]
    found = Examples.concatenate([_all(dataset.train()), _all(dataset.held_out())])
    assert np.array_equal(found.dense, examples.dense)
    assert np.array_equal(found.labels, examples.labels)
    for name in examples.bags:
        assert _bags(found, name) == _bags(examples, name)
