"""What inference does in Python does not grow with the rows."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

import pyarrow as pa

from recsys.data.tables.infer import infer


def _num_calls(num_rows: int) -> int:
    """Return the number of Python's calls, of C functions too, that inference makes."""
    table = pa.table(
        {
            "click": [i % 2 for i in range(num_rows)],
            "site": [f"s{i % 1_999}" for i in range(num_rows)],
            "code": [f"0{i % 1_999}" for i in range(num_rows)],
            "price": [str(i / 8) if i % 1_999 else "cheap" for i in range(num_rows)],
            "cost": [str(i / 8) if i % 1_999 else "-" for i in range(num_rows)],
            "at": ["2026-01-31" if i % 1_999 < 1_998 else "noon" for i in range(num_rows)],
            "tags": [f"['a{i % 1_999}', 'b']" for i in range(num_rows)],
        }
    )
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
    _num_calls(100)  # modules are imported
    assert _num_calls(40_000) < 1.5 * _num_calls(4_000)
