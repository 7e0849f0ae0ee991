"""Frames of pandas, polars and DuckDB train as the same table of Arrow does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.tables.dataset import table_dataset
from recsys.data.tables.infer.table import infer
from tests.recsys.data.blocks import all_of

_ROWS = 64
_TABLE = pa.table(
    {
        "label": pa.array([i % 2 for i in range(_ROWS)]),
        "price": pa.array([None if i % 8 == 0 else i / 4 for i in range(_ROWS)]),
        "site": pa.array([None if i % 9 == 0 else f"site {i % 7}" for i in range(_ROWS)]),
        "user_id": pa.array([1 << 40 | i % 11 for i in range(_ROWS)]),
        "items": pa.array([[f"item {j}" for j in range(i % 3 + 1)] for i in range(_ROWS)]),
    }
)


def _frames() -> dict[str, Any]:
    """Return a function of each library that makes a frame of a table of Arrow."""

    def pandas(table: pa.Table) -> Any:
        return pytest.importorskip("pandas", reason="needs pandas") and table.to_pandas()

    def polars(table: pa.Table) -> Any:
        return pytest.importorskip("polars", reason="needs polars").from_arrow(table)

    def duckdb(table: pa.Table) -> Any:
        return pytest.importorskip("duckdb", reason="needs duckdb").from_arrow(table)

    return {"pandas": pandas, "polars": polars, "duckdb": duckdb}


@pytest.mark.parametrize("library", list(_frames()))
def test_frames_give_the_same_examples(library: str) -> None:
    frame = _frames()[library](_TABLE)
    expected, got = infer(_TABLE).schema, infer(frame).schema
    assert got == expected
    examples = [
        [all_of(block) for block in table_dataset(each, expected).train()] for each in (_TABLE, frame)
    ]
    for theirs, ours in zip(*examples, strict=True):
        assert np.array_equal(theirs.labels, ours.labels)
        assert np.array_equal(theirs.dense, ours.dense, equal_nan=True)
        assert list(theirs.bags) == list(ours.bags)
        for name, bags in theirs.bags.items():
            assert np.array_equal(bags.values, ours.bags[name].values)
            assert np.array_equal(bags.offsets, ours.bags[name].offsets)
