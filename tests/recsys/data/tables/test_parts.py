"""Parts of one table that differ: empty, without columns or values, in another order, of other types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from recsys.data.examples import Examples
from recsys.data.lines import DataError
from recsys.data.tables.dataset import kept_types, rows_of, table_dataset
from recsys.data.tables.infer import infer
from recsys.data.tables.reading.files import open_files
from recsys.inputs.schema import LabelColumn, Schema, TableSpec

_ROWS = 60
_USERS = [7 * (i % 9) for i in range(_ROWS)]
_ITEMS = [f"i{i % 5}" for i in range(_ROWS)]
_CLICKS = [int(i % 3 == 0) for i in range(_ROWS)]
_Changed = dict[str, Any]


def _columns(rows: slice) -> _Changed:
    return {
        "user_id": _USERS[rows],
        "item": _ITEMS[rows],
        "click": _CLICKS[rows],
        "place": ["p"] * len(_USERS[rows]),
    }


def _read(folder: Path, schema: Schema) -> Examples:
    return Examples.concatenate([block.take(np.arange(len(block))) for block in rows_of(folder, schema)])


def _empty(columns: _Changed) -> _Changed:
    return {name: pa.nulls(0) for name in columns}


def _other_widths(columns: _Changed) -> _Changed:
    return {
        "click": pa.array(columns["click"]).cast(pa.bool_()),
        "place": columns["place"],
        "item": pa.array(columns["item"]).dictionary_encode(),
        "user_id": pa.array(columns["user_id"], pa.uint32()),
    }


def _as_texts(columns: _Changed) -> _Changed:
    return {**columns, "user_id": [str(user) for user in columns["user_id"]]}


def _with_gaps(columns: _Changed) -> _Changed:
    return {**columns, "user_id": pa.array([float(user) for user in columns["user_id"]])}


@pytest.mark.parametrize("change", [_empty, _other_widths, _as_texts, _with_gaps])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_parts_that_differ_are_read_as_one_table(
    tmp_path: Path, change: Callable[[_Changed], _Changed], is_first: bool
) -> None:
    parquet.write_table(pa.table(_columns(slice(None))), tmp_path / "whole.parquet")
    expected = infer(tmp_path / "whole.parquet").schema
    parts = tmp_path / "parts"
    parts.mkdir()
    half = _ROWS // 2
    columns = [_columns(slice(0, half)), _columns(slice(half, None))]
    if change is _empty:
        columns = [_columns(slice(None))]
        columns.insert(0 if is_first else 1, _empty(columns[0]))
    else:
        place = 0 if is_first else 1
        columns[place] = change(columns[place])
    for number, held in enumerate(columns):
        parquet.write_table(pa.table(held), parts / f"{number}.parquet")
    schema = infer(parts).schema
    assert schema.labels == expected.labels
    assert {table.name: table for table in schema.tables} == {table.name: table for table in expected.tables}
    read, whole = _read(parts, schema), _read(tmp_path / "whole.parquet", expected)
    assert read.labels.tolist() == whole.labels.tolist()
    for name, bags in whole.bags.items():
        assert read.bags[name].values.tolist() == bags.values.tolist()
        assert read.bags[name].offsets.tolist() == bags.offsets.tolist()


@pytest.mark.parametrize("kind", ["nulls", "no column"])
def test_a_column_that_a_part_has_no_values_of_is_missing_there(tmp_path: Path, kind: str) -> None:
    half = _ROWS // 2
    before = {**_columns(slice(0, half)), **({"new": pa.nulls(half)} if kind == "nulls" else {})}
    after = {**_columns(slice(half, None)), "new": [f"n{i % 4}" for i in range(half)]}
    parquet.write_table(pa.table(before), tmp_path / "a.parquet")
    parquet.write_table(pa.table(after), tmp_path / "b.parquet")
    schema = infer(tmp_path).schema
    assert "new" in schema.feature_names
    lengths = np.diff(_read(tmp_path, schema).bags["new"].offsets)
    assert lengths.tolist() == [0] * half + [1] * half
    dataset = table_dataset(tmp_path, schema)
    assert "column 'new': a.parquet has no values of it: they are missing there" in dataset.notices
    # A file alone that lacks the column is another matter.
    if kind == "no column":
        with pytest.raises(DataError, match=r"missing columns \['new'\]"):
            table_dataset(tmp_path / "a.parquet", schema)


def test_labels_of_a_part_may_not_be_missing(tmp_path: Path) -> None:
    half = _ROWS // 2
    without = _columns(slice(0, half))
    del without["click"]
    parquet.write_table(pa.table(without), tmp_path / "a.parquet")
    parquet.write_table(pa.table(_columns(slice(half, None))), tmp_path / "b.parquet")
    schema = Schema(
        labels=(LabelColumn(name="click"),),
        dense=(),
        tables=(
            TableSpec(name="item", num_embeddings=9, feature_names=("item",), ids="hash", strings="xxh64"),
        ),
    )
    with pytest.raises(
        DataError, match=r"a.parquet: column 'click': got no values, expected a label in each row"
    ):
        table_dataset(tmp_path, schema)


def test_times_of_parts_may_count_in_several_units(tmp_path: Path) -> None:
    seconds = [1_770_000_000 + 60 * i for i in range(_ROWS)]
    half = _ROWS // 2
    for name, rows, per in (("a", slice(0, half), 1_000_000), ("b", slice(half, None), 1)):
        columns = {**_columns(rows), "ts": [per * second for second in seconds[rows]]}
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    schema = infer(tmp_path).schema
    assert schema.time == "ts"
    dataset = table_dataset(tmp_path, schema)
    held_out = Examples.concatenate([block.take(np.arange(len(block))) for block in dataset.held_out()])
    assert held_out.labels[:, 0].tolist() == _CLICKS[-len(held_out) :]
    assert dataset.num_held_out_rows == _ROWS // 10
    late = table_dataset(tmp_path, replace(schema, held_out_from=_moment(seconds[half])))
    assert late.num_held_out_rows == half


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def test_lists_that_are_all_empty_in_a_part(tmp_path: Path) -> None:
    half = _ROWS // 2
    empty = pa.array([[]] * half, pa.list_(pa.null()))
    parquet.write_table(pa.table({**_columns(slice(0, half)), "tags": empty}), tmp_path / "a.parquet")
    lists = [[f"t{i % 3}"] * (i % 4) for i in range(half)]
    parquet.write_table(pa.table({**_columns(slice(half, None)), "tags": lists}), tmp_path / "b.parquet")
    bags = _read(tmp_path, infer(tmp_path).schema).bags["tags"]
    assert np.diff(bags.offsets).tolist() == [0] * half + [i % 4 for i in range(half)]


def test_columns_to_keep_have_a_type_that_takes_all_parts(tmp_path: Path) -> None:
    whole = {
        "a": pa.array([1], pa.int32()),
        "b": ["x"],
        "c": [["x"]],
        "d": pa.nulls(1),
        "e": [1],
        "f": [True],
        "g": [0],
    }
    others = {
        "a": pa.array([1], pa.int64()),
        "b": pa.array(["x"]).dictionary_encode(),
        "c": pa.array([["x"]], pa.large_list(pa.string())),
        "d": ["x"],
        "e": ["1"],
        "f": [[1]],
        "g": [0],
    }
    parquet.write_table(pa.table(whole), tmp_path / "a.parquet")
    parquet.write_table(pa.table(others), tmp_path / "b.parquet")
    files = open_files(tmp_path)
    assert kept_types(files, "abcdeg") == {
        "a": pa.int64(),
        "b": pa.string(),
        "c": pa.large_list(pa.string()),
        "d": pa.string(),
        "e": pa.large_string(),
    }
    with pytest.raises(DataError, match="column 'f' is bool and list"):
        kept_types(files, "f")


@pytest.mark.parametrize("ending", ["bz2", "gz", "lz4", "zst"])
def test_compressed_files_that_were_put_together_are_read_to_their_end(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.csv.{ending}"
    kind = {"bz2": "bz2", "gz": "gzip", "lz4": "lz4", "zst": "zstd"}[ending]
    parts = []
    for text in ("user_id,item,click\n" + "1,a,0\n2,b,1\n" * 9, "3,c,1\n" * 5):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as file:
            file.write(text.encode())
        parts.append(sink.getvalue().to_pybytes())
    path.write_bytes(b"".join(parts))
    assert len(_read(path, infer(path).schema)) == 23
    path.write_bytes(b"".join(parts)[:-9])
    with pytest.raises(DataError, match=r"a.csv.*: cannot be read"):
        infer(path)
