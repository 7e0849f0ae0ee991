"""The use of each column that is no label, and the reason."""

from __future__ import annotations

import re

import pyarrow as pa

from recsys.data.tables.infer.column import Column
from recsys.data.tables.infer.row_ids import row_id_reason

_WEIGHTS = ("sample_weight", "example_weight", "importance")
_COUNTS = re.compile(
    r"^i\d+$|count|price|amount|score|rate$|ratio|age$|num_|^n_|_n$|total|avg|mean|duration|position|distance|days|size|"
    r"quantity|qty|cost|revenue|income|salary|budget|views$|visits$|_ms$|_seconds$|length|width|height"
)
_IDS = re.compile(r"(^|_)(id|ids|code|category|cat|type|zip|hash)$|^c\d+$")


def use_of(column: Column, uses: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """Return a column's use and the reason."""
    used = {use for use, _ in uses.values()}
    if not len(column.values):
        return "ignored", "no values"
    if column.is_time() and "time" not in used:
        return "time", "named as one; its last rows are held out"
    if column.low in _WEIGHTS and column.numbers is not None and column.numbers.min() >= 0:
        return "weight", "named as one"
    if column.num_values == 1 and not pa.types.is_null(column.array.type) and not column.array.null_count:
        return "ignored", "the same in every row"
    if column.dates is not None:
        return _date_use(column)
    if column.is_time():
        return "ignored", "a second time, as numbers; as dates (2026-01-31 12:00) they give hour and weekday"
    if pa.types.is_temporal(column.array.type):
        return "ignored", "neither dates nor numbers; as numbers they are a dense feature"
    is_quantity = bool(_COUNTS.search(column.low)) and not _IDS.search(column.low)
    if column.numbers is None or (column.is_whole and not is_quantity):
        reason = row_id_reason(column)
        if reason:
            return "ignored", reason
    if column.is_list or column.numbers is None:
        return "sparse", "texts" if column.is_text else "lists"
    if not column.is_whole:
        return "dense", "numbers with fractions"
    if _IDS.search(column.low):
        return "sparse", "named as an ID or a category"
    if is_quantity:
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
