"""Texts with a dictionary give the IDs of the texts, however the rows and the dictionary came about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from recsys.data.examples import Bags
from recsys.data.tables.columns import Columns
from recsys.data.tables.dataset import table_dataset, unlabeled
from recsys.data.tables.reading.files import open_files
from recsys.errors import DataWarning
from recsys.inputs.columns import RAW, LabelColumn, TableSpec
from recsys.inputs.schema import Schema
from tests.recsys.data.blocks import all_of

_TEXTS = ["a", None, "b", "", "a", "ccc", "b", None]


def _spec(ids: str = "hash", **options: Any) -> TableSpec:
    return TableSpec(
        name="t", num_embeddings=1_000, feature_names=("x",), ids=ids, strings="xxh64", **options
    )


def _bags(column: Any, spec: TableSpec) -> list[list[int]]:
    bags: Bags = Columns(pa.table({"x": column}), lambda row: f"row {row}").bags("x", spec)
    return [bags.values[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


def _with_dictionary(texts: list[str | None], dictionary: list[str | None], kind: pa.DataType) -> pa.Array:
    places = pa.array([None if text is None else dictionary.index(text) for text in texts], kind)
    return pa.DictionaryArray.from_arrays(places, pa.array(dictionary))


_DIFFERENT: list[str | None] = ["ccc", "", "b", "a"]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array(_TEXTS).dictionary_encode(), id="encoded"),
        pytest.param(_with_dictionary(_TEXTS, _DIFFERENT, pa.uint8()), id="uint8"),
        pytest.param(_with_dictionary(_TEXTS, _DIFFERENT, pa.int64()), id="int64"),
        pytest.param(_with_dictionary(["z", *_TEXTS], ["z", *_DIFFERENT], pa.int32())[1:], id="slice"),
        pytest.param(
            _with_dictionary(_TEXTS, [f"{i}" for i in range(99)] + _DIFFERENT, pa.int8()), id="long"
        ),
        pytest.param(_with_dictionary(_TEXTS, [None, *_DIFFERENT], pa.int8()), id="null-in-dictionary"),
        pytest.param(
            pa.chunked_array([pa.array(part).dictionary_encode() for part in (_TEXTS[:3], _TEXTS[3:])]),
            id="a-dictionary-for-each-part",
        ),
    ],
)
@pytest.mark.parametrize("ids", ["hash", "fmix64", "vocabulary", RAW])
def test_ids_are_those_of_the_texts(column: Any, ids: str) -> None:
    expected = _bags(pa.array(_TEXTS), _spec(ids))
    assert [len(bag) for bag in expected] == [1, 0, 1, 0, 1, 1, 1, 0]
    assert _bags(column, _spec(ids)) == expected


def test_bytes_that_are_no_utf8() -> None:
    values = pa.array([b"\xff\xfe", b"a", b"\xff\xfe", None])
    assert _bags(values.dictionary_encode(), _spec()) == _bags(values, _spec())


def test_lists_in_texts_are_split_and_warned_of() -> None:
    texts = pa.array(["a|b", "c", "a|b"]).dictionary_encode()
    assert _bags(texts, _spec(separator="|", pooling="MEAN")) == _bags(
        pa.array([["a", "b"], ["c"], ["a", "b"]]), _spec(pooling="MEAN")
    )
    with pytest.warns(DataWarning, match="got texts such as 'a|b'"):
        _bags(texts, _spec(pooling="MEAN"))


_SCHEMA = Schema(
    labels=(LabelColumn(name="click"),),
    dense=(),
    tables=(
        _spec(),
        TableSpec(name="u", num_embeddings=9, feature_names=("y",), ids="hash", strings="xxh64"),
    ),
)


def _few_and_many(num_rows: int) -> pa.Table:
    numbers = np.random.default_rng(0).permutation(num_rows)
    return pa.table(
        {
            "click": numbers % 2,
            "x": [f"few-{number % 5}" for number in numbers],
            "y": [f"many-{number}" for number in numbers],
        }
    )


def test_parquet_reads_small_dictionaries_as_they_are(tmp_path: Path) -> None:
    table = _few_and_many(400)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=150)
    parquet.write_table(table, tmp_path / "plain.parquet", use_dictionary=False)
    (file,) = open_files(tmp_path / "a.parquet")
    for piece in file.pieces():
        read = piece.read(["y", "x"])
        assert [pa.types.is_dictionary(column.type) for column in read.columns] == [False, True]
    expected = next(all_of(block) for block in table_dataset(table, _SCHEMA).train())
    for name in ("a.parquet", "plain.parquet"):
        (block,) = table_dataset(tmp_path / name, _SCHEMA).train()
        found = block.take(np.arange(len(block)))
        for feature in ("x", "y"):
            assert np.array_equal(found.bags[feature].values, expected.bags[feature].values)


def test_columns_that_are_kept_have_the_types_of_the_file(tmp_path: Path) -> None:
    table = _few_and_many(100)
    parquet.write_table(table, tmp_path / "a.parquet")
    (file,) = open_files(tmp_path / "a.parquet")
    ((_, kept),) = unlabeled(file, _SCHEMA, keep=["x", "y"])
    assert kept.equals(table.select(["x", "y"]))
