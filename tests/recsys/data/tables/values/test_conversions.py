"""Texts become numbers, and values become IDs, as they are: what is neither is found and never changed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns
from recsys.data.tables.values.conversions import OddValue, are_numbers, ids_of, numbers_of
from recsys.inputs.schema import DenseColumn, TableSpec

_TEXTS = [pa.string(), pa.large_string()]
_HASHED = TableSpec(name="t", num_embeddings=1009, feature_names=("x",), ids="zero_collision")


def _columns(values: Any) -> Columns:
    return Columns(pa.table({"x": values}), lambda row: f"row {row}")


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            (text, 1234.5)
            for text in ("1234.5", "1,234.5", "$1,234.50", "\u20ac1234.5", " 1234.5 ", "1.2345e3")
        ),
        *((text, -3.0) for text in ("-3", "-$3", "-3.")),
        *(("True", 1.0), ("false", 0.0), ("$1,234", 1234.0), ("1,234,567.", 1234567.0)),
        *(
            (text, None)
            for text in ("", "-", "n/a", "#N/A", "<NA>", "NULL", "None", "\\N", "?", "#DIV/0!", ".")
        ),
    ],
)
def test_a_text_that_is_a_number_or_a_missing_one(kind: pa.DataType, text: str, number: float | None) -> None:
    numbers = numbers_of(pa.array(["-", text, None], kind))
    assert not isinstance(numbers, OddValue)
    assert numbers.to_pylist() == [None, number, None]
    assert are_numbers(pa.array([text], kind)).to_pylist() == [True]


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(
            (text, 1234.5)
            for text in ("1234,5", "1.234,5", "1 234,50", "1\u202f234,5", "1'234,5 ", "1,2345e3")
        ),
        *((text, 1234.5) for text in ("1.234,5 \u20ac", "\u20ac 1234,5", "$1.234,5")),
        *(("-3", -3.0), ("-,5", -0.5), ("1.234", 1234.0), ("1.234.567", 1234567.0), ("7,", 7.0)),
        *((text, None) for text in ("", "-", "n/a", "#N/A", ".")),
    ],
)
def test_a_text_with_a_decimal_comma(kind: pa.DataType, text: str, number: float | None) -> None:
    numbers = numbers_of(pa.array(["-", text, None], kind), ",")
    assert not isinstance(numbers, OddValue)
    assert numbers.to_pylist() == [None, number, None]


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize("text", ["1.5", "1,234.5", "1,2,3", "1.23.456", "x", ",", "1,5%", "12 34", "0x1"])
def test_a_text_without_a_decimal_comma(kind: pa.DataType, text: str) -> None:
    odd = numbers_of(pa.array(["1", "-", "2,5", text, "y"], kind), ",")
    assert isinstance(odd, OddValue)
    assert (odd.position, "decimal comma" in odd.expected) == (3, True)


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize(
    "text", ["1,234", "1,5", "12%", "1_0", "\uff15", "0x10", "$", "x", "1,23,456.7", "1 000"]
)
def test_a_text_that_is_no_number(kind: pa.DataType, text: str) -> None:
    odd = numbers_of(pa.array(["1", "-", "2", text, "y"], kind))
    assert isinstance(odd, OddValue)
    assert odd.position == 3
    assert ("no comma" in odd.expected) == ("," in text)
    assert are_numbers(pa.array([text], kind)).to_pylist() == [False]


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize(
    ("text", "number"),
    [
        *((text, 12) for text in ("12", "012", "12.0", "12.", " 12")),
        *(("-0", 0), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63))),
        ("999999999999999.0", 10**15 - 1),
    ],
)
def test_a_text_that_is_an_id(kind: pa.DataType, text: str, number: int) -> None:
    ids = ids_of(pa.array(["7", text], kind))
    assert not isinstance(ids, OddValue)
    assert ids.tolist() == [7, number]


@pytest.mark.parametrize("kind", _TEXTS, ids=str)
@pytest.mark.parametrize(
    "text",
    [
        *(
            "12_34",
            "\uff11\uff12",
            "0x10",
            "0X1f",
            "1.23E+15",
            "1e3",
            "+5",
            "1.5",
            "9223372036854775808",
            "-",
            "x",
        ),
        *("90071992547409930.0", "1,234", "$5", "true", "inf", "1 2"),
    ],
)
def test_a_text_that_is_no_id(kind: pa.DataType, text: str) -> None:
    odd = ids_of(pa.array(["7", "9223372036854775807", text, "y"], kind))
    assert isinstance(odd, OddValue)
    assert odd.position == 2


@pytest.mark.parametrize(
    ("values", "ids"),
    [
        pytest.param(pa.array([True, False]), [1, 0], id="bool"),
        pytest.param(pa.array([3.0, 2.0**53 - 1]), [3, 2**53 - 1], id="double"),
        pytest.param(pa.array([3.0, 2.0**24 - 1], pa.float32()), [3, 2**24 - 1], id="float"),
        pytest.param(pa.array([np.float16(3)], pa.float16()), [3], id="half"),
        pytest.param(pa.array([Decimal(12), Decimal(-1)], pa.decimal128(38, 0)), [12, -1], id="decimal"),
        pytest.param(pa.array([Decimal("12.00")], pa.decimal128(9, 2)), [12], id="decimal-with-zeros"),
        pytest.param(pa.array([5, 2**63 - 1], pa.uint64()), [5, 2**63 - 1], id="uint64"),
    ],
)
def test_numbers_that_are_ids(values: pa.Array, ids: list[int]) -> None:
    found = ids_of(values)
    assert not isinstance(found, OddValue)
    assert found.tolist() == ids


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(pa.array([3.0, 2.0**53]), id="double-that-may-be-rounded"),
        pytest.param(pa.array([3.0, -1e19]), id="double-beyond-64-bits"),
        pytest.param(pa.array([3.0, float("nan")]), id="nan"),
        pytest.param(pa.array([3.0, 2.0**24], pa.float32()), id="float-that-may-be-rounded"),
        pytest.param(
            pa.array([np.float16(3), np.float16(2048)], pa.float16()), id="half-that-may-be-rounded"
        ),
        pytest.param(pa.array([5, 2**63], pa.uint64()), id="uint64"),
        pytest.param(pa.array([Decimal(5), Decimal(10**30)], pa.decimal128(38, 0)), id="decimal"),
        pytest.param(pa.array([Decimal("5.0"), Decimal("1.5")], pa.decimal128(9, 1)), id="decimal-fraction"),
    ],
)
def test_numbers_that_are_no_ids_are_refused_with_their_row(values: pa.Array) -> None:
    with pytest.raises(DataError, match=r"^row 1: column 'x': got '.*', expected a whole number of 64 bits"):
        _columns(values).bags("x", _HASHED)


def test_the_row_of_an_odd_id_counts_missing_ones() -> None:
    with pytest.raises(DataError, match="row 3: column 'x': got '9223372036854775808'"):
        _columns(["2426783090881645540", None, "n/a", "9223372036854775808"]).bags("x", _HASHED)


def test_infinite_numbers_are_missing_where_missing_ones_may_be() -> None:
    numbers = pa.array([1.0, float("inf"), -float("inf"), 1e39, None])
    read = _columns(numbers).dense(DenseColumn(name="x", log1p=True))
    assert np.isnan(read).tolist() == [False, True, True, True, True]
    with pytest.raises(DataError, match="row 1: column 'x': got 'inf', expected a finite float32"):
        _columns(numbers[:3]).dense(DenseColumn(name="x"))


def test_a_dense_column_with_decimal_commas() -> None:
    columns = _columns(["1.234,5", "-", "7"])
    filled = columns.dense(DenseColumn(name="x", decimal=",", missing=1.0))
    assert filled.tolist() == pytest.approx([1234.5, np.nan, 7.0], nan_ok=True)
    assert columns.dense(DenseColumn(name="x", decimal=",", std=2.0)).dtype == np.float32
    with pytest.raises(DataError, match="row 1: column 'x': got a missing value"):
        columns.dense(DenseColumn(name="x", decimal=","))
    with pytest.raises(
        DataError, match=r"row 0: column 'x': got '1.234,5', .* \(decimal = \",\" in the schema"
    ):
        columns.dense(DenseColumn(name="x"))
