"""What inference does in Python does not grow with the rows."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pyarrow as pa

from recsys.data.tables.infer import infer


def _table(num_rows: int, num_copies: int = 1) -> pa.Table:
    """A table of columns of every kind, each of them several times."""
    columns: dict[str, list[Any]] = {
        "site": [f"s{i % 1_999}" for i in range(num_rows)],
        "code": [f"0{i % 1_999}" for i in range(num_rows)],
        "price": [str(i / 8) if i % 1_999 else "cheap" for i in range(num_rows)],
        "cost": [str(i / 8) if i % 1_999 else "-" for i in range(num_rows)],
        "at": ["2026-01-31" if i % 1_999 < 1_998 else "noon" for i in range(num_rows)],
        "tags": [f"['a{i % 1_999}', 'b']" for i in range(num_rows)],
    }
    many = {f"{name}{at}": values for at in range(num_copies) for name, values in columns.items()}
    return pa.table({"click": [i % 2 for i in range(num_rows)], **many})


def _num_calls(table: pa.Table) -> int:
    """Return the number of Python's calls, of C functions too, that inference makes."""
    calls = [0]

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        calls[0] += event in ("call", "c_call")

    before = sys.getprofile()
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        infer(table)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return calls[0]


def test_no_value_is_looked_at_in_python() -> None:
    _num_calls(_table(100))  # modules are imported
    assert _num_calls(_table(40_000)) < 1.5 * _num_calls(_table(4_000))


def test_work_grows_no_faster_than_the_columns() -> None:
    _num_calls(_table(100))
    assert _num_calls(_table(100, 100)) < 11 * _num_calls(_table(100, 10))
