"""The use of each column that is no label, and the reason."""

from __future__ import annotations

import re

import pyarrow as pa

from recsys.data.tables.infer.column import Column

_WEIGHTS = ("sample_weight", "example_weight", "importance")
_ROW_IDS = ("id", "row_id", "event_id", "impression_id", "request_id", "session_row", "index", "unnamed: 0")
_COUNTS = re.compile(
    r"^i\d+$|count|price|amount|score|rate$|ratio|age$|num_|^n_|_n$|total|avg|mean|duration|position|distance|days|size"
)
_IDS = re.compile(r"(^|_)(id|ids|code|category|cat|type|zip|hash)$|^c\d+$")
_MIN_ROWS = 1_000


def use_of(column: Column, uses: dict[str, tuple[str, str]], num_rows: int) -> tuple[str, str]:
    """Return a column's use and the reason."""
    used = {use for use, _ in uses.values()}
    if not len(column.values):
        return "ignored", "no values"
    if column.is_time() and "time" not in used:
        return "time", "named as one; its last rows are held out"
    if column.low in _WEIGHTS and column.numbers is not None and column.numbers.min() >= 0:
        return "weight", "named as one"
    if column.low in _ROW_IDS and column.num_values == num_rows >= min(_MIN_ROWS, 10):
        return "ignored", "different in every row"
    if column.num_values == 1 and not pa.types.is_null(column.array.type) and not column.array.null_count:
        return "ignored", "the same in every row"
    if column.dates is not None:
        return _date_use(column)
    if column.is_time():
        return "ignored", "a second time, as numbers; as dates (2026-01-31 12:00) they give hour and weekday"
    if pa.types.is_temporal(column.array.type):
        return "ignored", "neither dates nor numbers; as numbers they are a dense feature"
    if column.is_list or column.numbers is None:
        return "sparse", "texts" if column.is_text else "lists"
    if not column.is_whole:
        return "dense", "numbers with fractions"
    if _IDS.search(column.low):
        return "sparse", "named as an ID or a category"
    if _COUNTS.search(column.low):
        return "dense", "named as a quantity"
    return "sparse", "whole numbers, which may be IDs"


def _date_use(column: Column) -> tuple[str, str]:
    parts = column.date_parts
    if not parts:
        return "ignored", "dates of the same hour and weekday"
    return (
        "date",
        f"dates, of which {' and '.join(parts)} {'is an input' if len(parts) == 1 else 'are inputs'}",
    )
