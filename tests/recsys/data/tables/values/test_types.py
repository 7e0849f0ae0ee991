"""Each Arrow type is read like the plain one of the same values, or ignored with a reason."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import compute, parquet

from recsys.data.examples import Examples
from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer import Inferred, infer
from tests.recsys.data.blocks import all_of

_ROWS = 400
_NUMBERS = np.random.default_rng(0).integers(1, 9, _ROWS)
_TEXTS = [f"s{number}" for number in _NUMBERS]
_LISTS = [[text, "a"][: i % 3] for i, text in enumerate(_TEXTS)]
_IDS = [[int(number), 7][: i % 3] for i, number in enumerate(_NUMBERS)]
_PAIRS = np.stack([_NUMBERS, _NUMBERS + 1], 1)


def _read(data: Any) -> tuple[Inferred, Examples]:
    found = infer(data)
    blocks = [all_of(block) for block in table_dataset(data, found.schema).train()]
    return found, Examples.concatenate(blocks)


def _table(extra: Any) -> pa.Table:
    return pa.table({"click": [0, 1] * (_ROWS // 2), "user": _NUMBERS, "extra": extra})


def _dictionary(kind: pa.DataType) -> pa.Array:
    values = pa.array([f"s{i}" for i in range(9)], kind)
    return pa.DictionaryArray.from_arrays(pa.array(_NUMBERS, pa.int8()), values)


@pytest.mark.parametrize(
    ("extra", "plain"),
    [
        pytest.param(pa.array(_TEXTS, pa.large_string()), _TEXTS, id="large_string"),
        pytest.param(pa.array(_TEXTS, pa.string_view()), _TEXTS, id="string_view"),
        pytest.param(_dictionary(pa.string()), _TEXTS, id="dictionary"),
        pytest.param(_dictionary(pa.large_string()), _TEXTS, id="dictionary-of-large_string"),
        pytest.param(_dictionary(pa.string_view()), _TEXTS, id="dictionary-of-string_view"),
        pytest.param(pa.array([t.encode() for t in _TEXTS]), _TEXTS, id="binary"),
        pytest.param(pa.array([t.encode() for t in _TEXTS], pa.binary(2)), _TEXTS, id="fixed_size_binary"),
        pytest.param(pa.array([t.encode() for t in _TEXTS], pa.large_binary()), _TEXTS, id="large_binary"),
        pytest.param(
            pa.array([None, *(uuid.UUID(int=int(n) << 90).bytes for n in _NUMBERS[1:])], pa.uuid()),
            [None, *(str(uuid.UUID(int=int(n) << 90)) for n in _NUMBERS[1:])],
            id="uuid",
        ),
        pytest.param(compute.run_end_encode(pa.array(_TEXTS)), _TEXTS, id="run_end_encoded"),
        pytest.param(pa.array(_LISTS, pa.large_list(pa.large_string())), _LISTS, id="large_list"),
        pytest.param(pa.array(_LISTS, pa.list_view(pa.string())), _LISTS, id="list_view"),
        pytest.param(pa.array(_IDS, pa.list_(pa.float64())), _IDS, id="list-of-whole-floats"),
        pytest.param(pa.array(_IDS, pa.list_(pa.int16())), _IDS, id="list-of-int16"),
        pytest.param(
            pa.array(_PAIRS.tolist(), pa.list_(pa.int64(), 2)), _PAIRS.tolist(), id="fixed_size_list"
        ),
        pytest.param(
            pa.array([Decimal(int(n)) for n in _NUMBERS], pa.decimal128(38, 0)), _NUMBERS, id="decimal"
        ),
        pytest.param(pa.array(_NUMBERS, pa.uint64()), _NUMBERS, id="uint64"),
        pytest.param(pa.array(_NUMBERS.astype(float)), _NUMBERS, id="whole-floats"),
        pytest.param(pa.array(_NUMBERS > 4), (_NUMBERS > 4).astype(int), id="bool"),
    ],
)
def test_types_with_the_values_of_plain_ones(tmp_path: Path, extra: Any, plain: Any) -> None:
    _, expected = _read(_table(plain))
    sources: list[Any] = [_table(extra)]
    parquet_knows = not (pa.types.is_dictionary(extra.type) and extra.type.value_type == pa.string_view())
    if (
        parquet_knows
        and not pa.types.is_run_end_encoded(extra.type)
        and not pa.types.is_list_view(extra.type)
    ):
        parquet.write_table(sources[0], tmp_path / "a.parquet")
        sources.append(tmp_path / "a.parquet")
    for source in sources:
        found, read = _read(source)
        assert found.columns[2].use == "sparse"
        assert read.bags["extra"].values.tolist() == expected.bags["extra"].values.tolist()
        assert read.bags["extra"].offsets.tolist() == expected.bags["extra"].offsets.tolist()


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        pytest.param(_PAIRS / 7, "lists of numbers with fractions", id="list<double>"),
        pytest.param(
            pa.FixedSizeListArray.from_arrays(pa.array(_PAIRS.ravel() / 7), 2), "fractions", id="fixed_size"
        ),
        pytest.param([{"a": 1}] * _ROWS, "structs", id="struct"),
        pytest.param(pa.array([[("a", 1)]] * _ROWS, pa.map_(pa.string(), pa.int64())), "maps", id="map"),
        pytest.param([[[1], [2]]] * _ROWS, "lists of lists", id="list<list>"),
        pytest.param([[{"a": 1}]] * _ROWS, "lists of structs", id="list<struct>"),
        pytest.param(pa.nulls(_ROWS), "no values", id="null"),
        pytest.param(
            [datetime.timedelta(seconds=i) for i in range(_ROWS)], "neither dates nor", id="duration"
        ),
        pytest.param([datetime.time(1, 2)] * _ROWS, "neither dates nor", id="time"),
        pytest.param([[datetime.date(2026, 1, 1)]] * _ROWS, "lists of date32", id="list<date>"),
    ],
)
def test_types_that_are_ignored(extra: Any, reason: str) -> None:
    extra = extra.tolist() if isinstance(extra, np.ndarray) else extra
    found, _ = _read(_table(extra))
    assert found.columns[2].use == "ignored"
    assert reason in found.columns[2].reason


def test_numbers_beyond_64_bits_are_hashed_as_texts() -> None:
    numbers = [2**64 - int(number) for number in _NUMBERS]
    found, as_numbers = _read(_table(pa.array(numbers, pa.uint64())))
    _, as_texts = _read(_table([str(number) for number in numbers]))
    assert found.columns[2].reason == "whole numbers beyond 64 bits, which are hashed as texts"
    assert as_numbers.bags["extra"].values.tolist() == as_texts.bags["extra"].values.tolist()


def test_bytes_that_are_no_text_are_hashed() -> None:
    found, read = _read(_table([bytes([255, number]) for number in _NUMBERS.tolist()]))
    assert (found.columns[2].kind, found.columns[2].reason) == ("bytes", "bytes, which are hashed")
    assert len(set(read.bags["extra"].values.tolist())) == 8


@pytest.mark.parametrize(
    ("name", "extra", "use", "reason"),
    [
        ("user_id", [f"1.2{number}E+15" for number in _NUMBERS], "ignored", "IDs that were rounded"),
        ("user_id", (_NUMBERS * 1e17).tolist(), "ignored", "IDs that were rounded"),
        ("x", [0.5, float("inf")] * (_ROWS // 2), "dense", "200 missing, such as 'inf'"),
        ("x", [0.5, None] * (_ROWS // 2), "dense", "numbers with fractions"),
        ("x", ["0.5", "n/a"] * (_ROWS // 2), "dense", "200 missing, such as 'n/a'"),
        (
            "x",
            ["0.5", "1.5", "cheap", "3", "dear"] * (_ROWS // 5),
            "sparse",
            "'cheap' is not a number, nor are 159",
        ),
        ("x", ["0.5%", "10%"] * (_ROWS // 2), "sparse", "'0.5%' is not a number; without '%' it is"),
        ("x", ["0.5 km", "10 km"] * (_ROWS // 2), "sparse", "'0.5 km' is not a number; without 'km' it is"),
        ("x", [f"{i}.5 €" for i in range(_ROWS)], "ignored", "'0.5 €' is not a number; without '€' it is"),
        (
            "x",
            [f"\u2212{i}.5" for i in range(_ROWS)],
            "ignored",
            "'\u22120.5' is not a number; write those as",
        ),
        ("x", [f"{i + 1}'000" for i in range(_ROWS)], "ignored", '"1\'000" is not a number; write those as'),
        ("x", [f"({i}.5)" for i in range(_ROWS)], "ignored", "'(0.5)' is not a number; write those as"),
        ("x", ["12A", "12B"] * (_ROWS // 2), "sparse", "texts"),
        ("member", (_NUMBERS + 2**24).astype(np.float32).tolist(), "sparse", "whole numbers"),
        ("member", pa.array((_NUMBERS + 2**24).astype(np.float32)), "ignored", "IDs that were rounded"),
        ("phone", [f"+4930{number}" for number in _NUMBERS], "sparse", "whole numbers, some behind a plus"),
        ("num_points", [f"+{number}" for number in _NUMBERS], "dense", "named as a quantity"),
        (
            "x",
            ["a^b", "c", "b^c^a", "c^c"] * (_ROWS // 4),
            "sparse",
            "75% have '^' in them; not split",
        ),
        ("x", ["a/b", "a/c", "b/c", "b/a"] * (_ROWS // 4), "sparse", "texts"),
        ("x", ["007", "12"] * (_ROWS // 2), "sparse", "'007' has a zero in front, which numbers lose"),
    ],
)
def test_columns_whose_entries_are_odd(name: str, extra: list[Any], use: str, reason: str) -> None:
    table = _table(extra).rename_columns(["click", "user", name])
    found, _ = _read(table)
    assert found.columns[2].use == use
    assert reason in found.columns[2].reason
