"""Columns that tell rows apart and nothing else: indexes, order numbers, UUIDs.

No other row has such a value, so a model that learns from them learns nothing for rows to come.
"""

from __future__ import annotations

import re

from recsys.data.tables.infer.column import DIFFERENT, Column

# What pandas calls an index without a name, in Parquet, in CSV and as a column.
_INDEX = re.compile(r"(__)?index(_level_\d+__)?|unnamed_?\d+(_level_\d+)?|level_\d+")
_EVENT = re.compile(
    r"(.*_)?(request|req|session|order|impression|imp|display|transaction|txn|event|auction|bid|trace|log|row|"
    r"record|visit|invoice|click|message)_?(id|no|nr|num|number|key|code|hash|uuid|guid)|uuid|guid|id|row|session"
)
_ENTITY = re.compile(
    r"(.*_)?(user|u|member|customer|visitor|account|person|profile|device|item|i|product|sku|movie|video|photo|song|"
    r"track|artist|article|news|book|business|creator|author|publisher|seller|shop|store|site|app|ad|adgroup|"
    r"campaign|advertiser|creative|category|poi|hotel|asin|reviewer|ip|cookie|email|phone|household|imei|idfa|gaid|"
    r"city|zip|postcode|domain|url|page|keyword|brand|model)(_?(id|ids|key|code|hash|uuid|guid|no|address))?"
)
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?")
_FEW_ROWS = 10
# In fewer rows, none of some hundred cities may come twice.
_SOME_ROWS = 50
# In fewer rows, none of a million users may come twice.
_MANY_ROWS = 10_000
# An event's ID in one of so many rows: a few rows each.
_ROWS_PER_EVENT = 20


def is_entity(name: str) -> bool:
    """Return whether a name in lower case is that of a user, an item or the like, or of its ID."""
    return bool(_ENTITY.fullmatch(name))


def row_id_reason(column: Column) -> str:
    """Return why a column's values are of their rows alone; empty if they are not.

    A column is if it is named as an index of pandas, or as the ID of an event (request, session, order, ...) and
    has few rows per value, or if no value comes twice in 50 rows or more: 10 of UUIDs, 10 000 of a column that is
    named as the ID of a user, an item or the like.
    """
    num_rows = len(column.values)
    if column.is_list or num_rows < _FEW_ROWS:
        return ""
    is_distinct = column.num_values == num_rows
    if _INDEX.fullmatch(column.low) and (is_distinct or (column.is_whole and column.num_values > 2)):
        return "an index that pandas wrote"
    if _EVENT.fullmatch(column.low) and column.num_values * _ROWS_PER_EVENT >= num_rows:
        each = "different in every row" if is_distinct else f"{num_rows / column.num_values:.1f} rows each"
        return f"named as the ID of an event: {each}"
    if not is_distinct or column.separator:
        return ""
    is_uuid = column.is_text and _UUID.fullmatch(column.values[0].as_py())
    if num_rows < (_MANY_ROWS if is_entity(column.low) else _FEW_ROWS if is_uuid else _SOME_ROWS):
        return ""
    return f"UUIDs, {DIFFERENT}" if is_uuid else DIFFERENT
