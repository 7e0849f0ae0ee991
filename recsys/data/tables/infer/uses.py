"""The use of each column that is not a label, and the reason."""

from __future__ import annotations

import re

import pyarrow as pa

from recsys.data.tables.infer.column import DIFFERENT, Column
from recsys.data.tables.infer.kinds import are_prose
from recsys.data.tables.infer.labels import RATINGS, is_outcome

_WEIGHTS = ("sample_weight", "example_weight", "importance")
_COUNTS = re.compile(
    r"^i\d+$|count|price|amount|score|rate$|ratio|age$|num_|^n_|_n$|total|avg|mean|duration|position|distance|days|size|"
    r"quantity|qty|cost|revenue|income|salary|budget|views$|visits$|_ms$|_seconds$|length|width|height"
)
_IDS = re.compile(r"(^|_)(id|ids|code|category|cat|type|zip|hash)$|^c\d+$")
# RecBole's types.
_KINDS = {"token": "sparse", "float": "dense"}
_DAYS_PER_YEAR = 366
# Sentences that were written for their rows: at least this share of them are different.
_MOST_PROSE = 0.5
# Words for parts of the day recur.
_ROWS_PER_WORD = 20


def use_of(column: Column, uses: dict[str, tuple[str, str]], kind: str = "") -> tuple[str, str]:
    """Return a column's use and the reason, which says why a column named as a time is not one.

    Args:
        column: The column.
        uses: The uses of those before it, by name.
        kind: What the file's header says of it, ``token`` or ``float``; empty if nothing.
    """
    use, reason = _use(column, uses)
    if use in ("dense", "sparse") and kind in _KINDS and (kind == "token" or column.numbers is not None):
        use, reason = _KINDS[kind], f"a {kind}, as the header says"
    note = column.date_form.note
    if not note or (use == "ignored" and reason != DIFFERENT):
        return use, reason
    if use in ("time", "date") or column.dates is not None:
        return use, f"{reason}; {note}"
    if column.numbers is not None:
        is_count = use == "sparse" and column.is_whole and column.numbers.max() > _DAYS_PER_YEAR
        return ("dense", f"named as a time; {note}") if is_count else (use, f"{reason}; {note}")
    if column.date_form.is_unclear:
        return "ignored", note
    if column.num_values * _ROWS_PER_WORD <= len(column.values):
        return use, f"{reason}; named as a time, but {note}"
    return "ignored", f"named as a time, but {note}: write 2026-01-31 12:00, or seconds since 1970"


def _use(column: Column, uses: dict[str, tuple[str, str]]) -> tuple[str, str]:
    if column.unread:
        return "ignored", column.unread
    if not len(column.values):
        return "ignored", "no values"
    is_constant = (
        column.num_values == 1 and not pa.types.is_null(column.array.type) and not column.array.null_count
    )
    if is_outcome(column) and not is_constant:
        return "ignored", _outcome_reason(column, uses)
    if column.is_time() and not any(use == "time" for use, _ in uses.values()):
        return "time", _time_reason(column)
    if column.low in _WEIGHTS and column.numbers is not None and column.numbers.min() >= 0:
        return "weight", "named as one"
    if is_constant:
        return "ignored", "the same in every row"
    if column.dates is not None:
        return _date_use(column)
    if column.is_time():
        return "ignored", f"a second time; {column.date_form.note}"
    is_quantity = bool(_COUNTS.search(column.low)) and not _IDS.search(column.low)
    is_amount = column.numbers is not None and column.is_text and column.ids == "amounts"
    if column.numbers is None or (column.is_whole and not is_quantity and not is_amount):
        reason = _row_id_reason(column)
        if reason:
            return "ignored", reason
    if column.is_text and not column.separator and column.numbers is None and _is_prose(column):
        return (
            "ignored",
            f"texts in sentences, of which {column.num_values / len(column.values):.0%} are different",
        )
    if column.is_list or column.numbers is None:
        return _list_use(column)
    if not column.is_whole:
        return "dense", "numbers with fractions"
    if column.ids == "texts":
        return "sparse", "texts: true and false"
    if column.is_truth:
        return "sparse", "true and false, as 1 and 0"
    if is_amount:
        return "dense", f"amounts, such as {str(column.values[0])[:24]!r}"
    if column.ids == "beyond":
        return "sparse", "whole numbers beyond 64 bits, which are hashed as texts"
    if column.ids == "signed" and not is_quantity:
        return "sparse", "whole numbers, some behind a plus, which are hashed as texts"
    if column.ids == "rounded":
        return _rounded_use(column)
    if _IDS.search(column.low):
        return "sparse", "named as an ID or a category"
    if is_quantity:
        return "dense", "named as a quantity"
    return "sparse", "whole numbers, which may be IDs"


def _outcome_reason(column: Column, uses: dict[str, tuple[str, str]]) -> str:
    label = next((name for name, (use, _) in uses.items() if use == "label"), None)
    if label is None:
        return f"named as a label or a measure of what follows; --label {column.name} makes it the label"
    reason = f"known only when {label!r} is, as a rule"
    if not column.is_binary and column.low not in RATINGS:
        return f"named as a measure of what follows, {reason}"
    if column.num_missing:
        return f"named as a label, and {reason}"
    return f"named as a label, and {reason}; --label {label} --label {column.name} learns both"


def _is_prose(column: Column) -> bool:
    return column.num_values > _MOST_PROSE * len(column.values) and are_prose(column.different)


def _time_reason(column: Column) -> str:
    if column.num_values == 1 and not column.num_missing:
        return "named as one; while it is the same in all rows, the last ones of the table are held out"
    return "named as one; its last rows are held out"


def _list_use(column: Column) -> tuple[str, str]:
    """Return the use of a column of texts, bytes or lists."""
    is_list = column.is_list or bool(column.separator)
    if is_list and column.ids in ("fractions", "rounded"):
        what = "numbers with fractions" if column.ids == "fractions" else "numbers that were rounded"
        return "ignored", f"lists of {what}; as columns of their own they are dense features"
    if column.separator:
        of = "texts" if column.ids in ("texts", "beyond", "signed") else "whole numbers"
        return "sparse", f"lists of {of} separated by {column.separator!r}"
    if column.is_list:
        return "sparse", "lists of texts" if column.is_text else "lists of whole numbers"
    return "sparse", "texts" if column.is_text else "bytes, which are hashed"


def _rounded_use(column: Column) -> tuple[str, str]:
    """Return the use of whole numbers that have lost digits."""
    if _IDS.search(column.low) or _is_entity(column.low):
        return "ignored", "IDs that were rounded, as by a spreadsheet; write all their digits"
    return "dense", "numbers too large for IDs"


def _date_use(column: Column) -> tuple[str, str]:
    parts = column.date_parts
    if not parts:
        return "ignored", "dates of the same hour and weekday"
    return (
        "date",
        f"dates, of which {' and '.join(parts)} {'is an input' if len(parts) == 1 else 'are inputs'}",
    )


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
# The most rows, on average, that have the same event's ID.
_ROWS_PER_EVENT = 20


def _is_entity(name: str) -> bool:
    """Return whether a name in lower case is that of a user, an item or the like, or of its ID."""
    return bool(_ENTITY.fullmatch(name))


def _row_id_reason(column: Column) -> str:
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
    if num_rows < (_MANY_ROWS if _is_entity(column.low) else _FEW_ROWS if is_uuid else _SOME_ROWS):
        return ""
    return f"UUIDs, {DIFFERENT}" if is_uuid else DIFFERENT
