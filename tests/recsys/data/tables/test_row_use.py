"""How many rows the IDs of a sample read, and what is said where they are few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.row_use import RowUse, row_uses, warnings_of
from recsys.inputs.schema import LabelColumn, Schema, TableSpec

_NUM = 60
_SHIFTED = (np.arange(_NUM) << 16).tolist()
_TEXTS = [f"site {i}" for i in range(_NUM)]


def _uses(values: list[Any], **table: Any) -> tuple[dict[str, RowUse], list[str]]:
    """Each value twice, in a table of 1024 rows, and the warnings."""
    spec = TableSpec(name="t", **{"num_embeddings": 1024, "feature_names": ("f",), **table})
    uses = row_uses(pa.table({"f": values * 2}), [spec])
    return uses, warnings_of(uses, [spec])


@pytest.mark.parametrize(
    ("values", "table"),
    [
        (_SHIFTED, {"ids": "fmix64"}),
        ([-i for i in _SHIFTED], {"ids": "fmix64"}),
        ([i * 10**6 for i in range(_NUM)], {"ids": "fmix64"}),
        (_TEXTS, {"ids": "hash", "strings": "xxh64"}),
        (_TEXTS, {"ids": "fmix64", "strings": "xxh64"}),
        (list(range(_NUM)), {"ids": "hash"}),
    ],
)
def test_ids_that_are_spread(values: list[Any], table: dict[str, Any]) -> None:
    uses, warnings = _uses(values, **table)
    assert (uses["f"].num_ids, uses["f"].table_rows) == (_NUM, 1024)
    assert 0.9 * _NUM <= uses["f"].num_rows <= _NUM
    assert warnings == []


def test_ids_with_equal_low_bits_share_a_row() -> None:
    uses, warnings = _uses(_SHIFTED, ids="hash")
    assert uses == {"f": RowUse(num_ids=60, num_rows=1, table_rows=1024)}
    assert warnings == [
        "f: 60 IDs read 1 of 1,024 rows, so that most share theirs: give table 't' ids = \"fmix64\", which spreads IDs "
        "with equal low bits"
    ]


@pytest.mark.parametrize(
    ("values", "table"),
    [
        (_TEXTS, {"ids": "hash", "strings": "xxh64"}),
        (_SHIFTED, {"ids": "fmix64"}),
        (list(range(60)), {"ids": "hash"}),
    ],
    ids=["texts", "mixed", "plain"],
)
def test_a_small_table_is_to_be_larger(values: list[Any], table: dict[str, Any]) -> None:
    uses, (warning,) = _uses(values, num_embeddings=16, **table)
    assert 14 <= uses["f"].num_rows <= 16
    assert warning.endswith("give table 't' at least 120 rows")


@pytest.mark.parametrize("ids", ["index", "vocabulary", "zero_collision"])
def test_tables_whose_ids_share_no_rows_are_not_counted(ids: str) -> None:
    assert _uses(list(range(_NUM)), ids=ids) == ({}, [])


def test_lists_and_values_that_are_missing() -> None:
    texts = ["a|b", "b|c", "", "d"]
    uses, _ = _uses(texts, ids="hash", strings="xxh64", separator="|")
    assert uses["f"].num_ids == 4
    assert _uses([None, 5], ids="fmix64")[0]["f"].num_ids == 1
    assert _uses([None], ids="fmix64")[1] == []


def test_wrong_values_are_left_to_the_reading_of_the_table() -> None:
    assert _uses(["5", "six"], ids="fmix64") == ({}, [])


@pytest.mark.parametrize("ids", ["hash", "fmix64"])
def test_a_training_by_an_older_schema_is_told(ids: str) -> None:
    spec = TableSpec(name="t", num_embeddings=1024, feature_names=("f",), ids=ids)
    schema = Schema(labels=(LabelColumn(name="y"),), dense=(), tables=(spec,))
    dataset = table_dataset(pa.table({"f": _SHIFTED, "y": [0, 1] * (_NUM // 2)}), schema)
    expected = "f: 60 IDs read 1 of 1,024 rows"
    assert [notice[: len(expected)] for notice in dataset.notices] == ([expected] if ids == "hash" else [])
