"""Lists in texts are read as Python, JSON, Postgres and NumPy write them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.tables.columns import Columns
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import infer
from recsys.data.tables.values.cells import split
from recsys.errors import DataWarning
from recsys.inputs.schema import TableSpec
from tests.recsys.data.blocks import all_of

_LISTS = [["a", "b c"], ["it's"], [], ['say "x, y"', "a"], ["caf\u00e9", "\U0001f600"]]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize(
    ("separator", "cell", "values"),
    [
        ("|", "a|b", ["a", "b"]),
        ("|", " a | b ", ["a", "b"]),
        (",", "1, 2,3", ["1", "2", "3"]),
        (",", "[1, 2]", ["1", "2"]),
        (",", "(1, 2)", ["1", "2"]),
        (",", '{a,"b, c",NULL}', ["a", "b, c", ""]),
        (",", "['it''s', None, nan]", ["it's", "", ""]),
        (",", "[Rock'n'Roll, 'x']", ["Rock'n'Roll", "x"]),
        (",", "['a\\'b']", ["a'b"]),
        (";", "[a; b]", ["a", "b"]),
        (" ", "[1 2  3]", ["1", "2", "3"]),
        (" ", "['a' 'b']", ["a", "b"]),
        (" ", "[ 1\n 20]", ["1", "20"]),
    ],
)
def test_values_of_a_text(kind: pa.DataType, separator: str, cell: str, values: list[str]) -> None:
    assert split(pa.array([cell, None], kind), separator).to_pylist() == [values, None]
    # Beside other forms a text is read alike.
    others = pa.array(["['q', \"r\"]", cell, f"u{separator}v"], kind)
    assert split(others, separator).to_pylist()[1:] == [values, ["u", "v"]]


@pytest.mark.parametrize("write", [json.dumps, str], ids=["json", "python"])
def test_written_lists_are_read_back(write: object) -> None:
    assert callable(write)
    cells = pa.array([write(values) for values in _LISTS])
    assert split(cells, ",").to_pylist() == _LISTS


@pytest.mark.parametrize(
    ("form", "separator", "strings"),
    [
        pytest.param(str, ",", "xxh64", id="python"),
        pytest.param(json.dumps, ",", "xxh64", id="json"),
        pytest.param(lambda v: "{" + ",".join(v) + "}", ",", "xxh64", id="postgres"),
        pytest.param("; ".join, ";", "xxh64", id="blanks"),
        pytest.param(lambda v: str([int(x[1:]) for x in v]), ",", "", id="python-numbers"),
        pytest.param(lambda v: f"[{' '.join(x[1:] for x in v)}]", " ", "", id="numpy"),
        pytest.param(lambda v: " ".join(x[1:] for x in v), " ", "", id="blanks-between-numbers"),
    ],
)
def test_texts_give_the_ids_of_lists(form: object, separator: str, strings: str) -> None:
    assert callable(form)
    lists = [[f"g{11 + (i + j) % 7}" for j in range(1 + i % 3)] for i in range(90)]
    labels = [0, 1] * 45
    found = infer(pa.table({"click": labels, "genres": [form(values) for values in lists]}))
    (spec,) = found.schema.tables
    assert (spec.separator, spec.strings, spec.pooling) == (separator, strings, "MEAN")
    assert f"separated by {separator!r}" in found.columns[1].reason
    as_lists = lists if strings else [[int(value[1:]) for value in values] for values in lists]
    plain = TableSpec(
        name="genres", num_embeddings=1000, feature_names=("genres",), ids="zero_collision", strings=strings
    )
    expected = Columns(pa.table({"genres": as_lists}), str).bags("genres", plain)
    texts = pa.table({"genres": [form(values) for values in lists]})
    separated = TableSpec(**{**vars(plain), "separator": separator})
    read = Columns(texts, str).bags("genres", separated)
    assert (read.values.tolist(), read.offsets.tolist()) == (
        expected.values.tolist(),
        expected.offsets.tolist(),
    )


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (
            ["12,5", "13,25", "7", "12,5"],
            "'12,5' is not a number: its comma may separate thousands or decimals",
        ),
        (["1,234", "12,345", "999", "1,234"], "is not a number"),
        (["[a] b", "[a]", "c", "d"], "some are within brackets; not split"),
        (["{'a': 1, 'b': 2}", "{'a': 3, 'b': 2}"] * 2, "objects such as \"{'a': 1, 'b': 2}\"; not split"),
        (['{"a": [1, 2]}', '{"b": 1}'] * 2, "objects such as"),
        (["{a=1, b=2}", "{a=3, b=2}"] * 2, "objects such as"),
        (["x; y", "z", "u; w", "z"], "50% have ';' in them; not split"),
    ],
)
def test_texts_that_are_not_split_say_so(cells: list[str], reason: str) -> None:
    table = pa.table({"click": [0, 1] * 20, "cell": cells * 10})
    found = infer(table)
    assert (found.schema.tables[0].separator, found.columns[1].use) == ("", "sparse")
    assert reason in found.columns[1].reason


def test_missing_numbers_are_left_out_of_lists() -> None:
    cells = ["11|NA|13", "[12|None]", "-", "12|13", "11|13", "13|12|11", "12|11", "13"] * 5
    table = pa.table({"click": [0, 1] * 20, "seen": cells})
    found = infer(table)
    assert (found.schema.tables[0].separator, found.schema.tables[0].strings) == ("|", "")
    seen = next(iter(table_dataset(table, found.schema).train()))
    assert np.diff(all_of(seen).bags["seen"].offsets).tolist()[:4] == [2, 1, 0, 2]


def test_a_list_of_fractions_is_no_feature() -> None:
    table = pa.table(
        {"click": [0, 1] * 20, "vector": ["[0.5, 0.25]", "[1.5, 2]"] * 20, "site": ["a", "b"] * 20}
    )
    found = infer(table)
    assert [column.use for column in found.columns] == ["label", "ignored", "sparse"]
    assert len(all_of(next(iter(table_dataset(table, found.schema).train())))) == 36


def _bags(values: object, **spec: str) -> None:
    given = {"ids": "zero_collision", "strings": "xxh64", **spec}
    table = TableSpec(name="t", num_embeddings=9, feature_names=("genres",), **given)  # type: ignore[arg-type]
    Columns(pa.table({"genres": values}), str).bags("genres", table)


@pytest.mark.parametrize(
    ("values", "spec", "text"),
    [
        (
            ["['a', 'b']", "['c']", "['a', 'c']"],
            {},
            r"got texts such as \"\['a', 'b'\]\", each of which is read as one",
        ),
        (["{a,b}", "{b,c}"], {}, "got texts such as '{a,b}'"),
        (["a|b", "b|c", "c"], {"pooling": "MEAN"}, "got texts such as 'a|b'"),
        ([["a"], ["b", "c"]], {"separator": "|"}, r"got lists, expected texts with separator = '\|'"),
    ],
)
def test_lists_where_the_schema_has_texts_and_the_other_way_are_warned_of(
    values: object, spec: dict[str, str], text: str
) -> None:
    with pytest.warns(DataWarning, match=f"^column 'genres': {text}"):
        _bags(values, **spec)


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        (["a, b", "c; d", "e"], {}),
        (["{3f2504e0-4f89-11d3-9a0c-0305e82c3301}"], {}),
        (["a|b", "c"], {"separator": "|", "pooling": "MEAN"}),
        (["a", "b, c", "d"], {"pooling": "MEAN"}),
        ([["a"], ["b|c"]], {}),
        ([None], {}),
    ],
)
def test_other_texts_and_lists_are_read_without_a_warning(values: object, spec: dict[str, str]) -> None:
    _bags(values, **spec)
