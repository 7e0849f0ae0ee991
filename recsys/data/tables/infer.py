"""Inference of a schema from a table's names, types and first rows.

What is inferred is a proposal, which ``recsys-data inspect`` shows with the reason of each choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.lines import DataError
from recsys.data.tables.columns import Columns, date_parts, is_list, is_number, is_text, plain
from recsys.data.tables.dataset import open_files
from recsys.schema import DATE_PARTS, DenseColumn, LabelColumn, Schema, TableSpec

#: Rows that are looked at.
SAMPLE_ROWS = 100_000
_LABELS = (
    *(
        "label",
        "click",
        "clicked",
        "is_click",
        "is_clicked",
        "target",
        "conversion",
        "converted",
        "is_conversion",
    ),
    *("purchase", "purchased", "liked", "like", "y", "rating"),
)
_TIMES = ("time", "timestamp", "ts", "datetime", "date", "event_time", "unix_timestamp", "hour", "day")
_WEIGHTS = ("sample_weight", "example_weight", "importance")
_ROW_IDS = ("id", "row_id", "event_id", "impression_id", "request_id", "session_row", "index", "unnamed: 0")
_COUNTS = re.compile(
    r"^i\d+$|count|price|amount|score|rate$|ratio|age$|num_|^n_|_n$|total|avg|mean|duration|position|distance|days|size"
)
_IDS = re.compile(r"(^|_)(id|ids|code|category|cat|type|zip|hash)$|^c\d+$")
# A code and not a number, which would lose the zeros: "05db9164", "007".
_CODE = r"^0\d"
_SEPARATORS = "|;,"
_LIKED = 4.0  # a rating of at least this is a click, on a scale up to 5
_MIN_ROWS = 1_000
# Rows per different value of a hashed table, so that few values share one.
_ROWS_PER_VALUE = 16
_LARGE = 100.0
_FIRST_DIGITS_OF_TIMES = 100_000


@dataclass(frozen=True, kw_only=True)
class ColumnReport:
    """What was found in a column.

    Attributes:
        name: The column.
        use: ``label``, ``time``, ``weight``, ``dense``, ``sparse``, ``date`` or ``ignored``.
        kind: Its type, in a word.
        num_values: Different values in the sample.
        missing: The share of rows without a value.
        example: A value.
        reason: Why it was given its use.
    """

    name: str
    use: str
    kind: str
    num_values: int
    missing: float
    example: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """A schema and what it was inferred from.

    Attributes:
        schema: The schema.
        columns: What was found in each column, in the table's order.
        num_rows: Rows that were looked at.
    """

    schema: Schema
    columns: tuple[ColumnReport, ...]
    num_rows: int


def infer(data: Any, labels: Sequence[str] = (), hash_rows: int = 100_000) -> Inferred:
    """Infer the schema of a table from its first rows.

    Args:
        data: A file, a folder of files, or a frame of pandas, polars or Arrow.
        labels: The labels' columns; found by their names if empty.
        hash_rows: Rows of tables with many different values; smaller tables have fewer.

    Raises:
        DataError: The table cannot be read, or has no label or no sparse column.
    """
    if hash_rows < 1:
        raise DataError(f"hash_rows: got {hash_rows}, expected at least 1")
    sample = _sample(data)
    found = [_Column(name, plain(sample.column(name))) for name in sample.column_names]
    chosen = _labels(found, labels)
    uses = {label.name: ("label", "named as one") for label in chosen}
    for column in found:
        if column.name not in uses:
            uses[column.name] = _use(column, uses, sample.num_rows)
    by_use = {
        use: [c for c in found if uses[c.name][0] == use]
        for use in ("time", "weight", "dense", "sparse", "date")
    }
    if not by_use["sparse"] and not by_use["date"]:
        raise DataError(
            f"data: got columns {sample.column_names[:20]}, of which none looks like an ID or a category; a schema "
            "file (--schema) names them"
        )
    time, weight = ([c.name for c in by_use[use]][:1] for use in ("time", "weight"))
    schema = Schema(
        labels=tuple(chosen),
        dense=tuple(_dense(column) for column in by_use["dense"]),
        tables=(
            *(_table(column, hash_rows) for column in by_use["sparse"]),
            *(table for column in by_use["date"] for table in _date_tables(column, sample.column_names)),
        ),
        weight=weight[0] if weight else None,
        time=time[0] if time else None,
    )
    reports = tuple(column.report(*uses[column.name]) for column in found)
    return Inferred(schema=schema, columns=reports, num_rows=sample.num_rows)


def _sample(data: Any) -> pa.Table:
    files = open_files(data)
    parts, num_rows = [], 0
    for piece in files[0].pieces():
        parts.append(piece.read(list(files[0].types)))
        num_rows += piece.num_rows
        if num_rows >= SAMPLE_ROWS:
            break
    if not num_rows:
        raise DataError("data: got no rows, expected at least 2")
    return pa.concat_tables(parts).slice(0, SAMPLE_ROWS)


class _Column:
    """A column of the sample."""

    def __init__(self, name: str, array: pa.Array) -> None:
        self.name = name
        self.array = array
        self.low = _snake(name)
        self.is_list = is_list(array.type)
        values = pc.list_flatten(array) if self.is_list else array
        self.is_text = is_text(values.type)
        if self.is_text:
            values = values.filter(pc.fill_null(pc.greater(pc.utf8_length(values), 0), fill_value=False))
        self.values = values.drop_null()
        self.num_values = pc.count_distinct(self.values).as_py()
        self.numbers = self._as_numbers()
        self.dates = self._as_dates()

    def _as_numbers(self) -> NDArray[np.float64] | None:
        """Return the values as numbers, without missing ones; None if they are texts."""
        if self.is_list or not (self.is_text or is_number(self.values.type)):
            return None
        if self.is_text and pc.any(pc.match_substring_regex(self.values, _CODE)).as_py():
            return None
        column = Columns(pa.table({self.name: self.array}), lambda row: f"row {row}")
        try:
            numbers = column.numbers(self.name)
        except DataError:
            return None
        numbers = numbers[np.isfinite(numbers)]
        return numbers if len(numbers) else None

    def _as_dates(self) -> pa.Array | None:
        """Return the values as timestamps, null for missing ones; None if they are something else."""
        is_date = pa.types.is_timestamp(self.array.type) or pa.types.is_date(self.array.type)
        if self.is_list or self.numbers is not None or not (self.is_text or is_date):
            return None
        try:
            return Columns(pa.table({self.name: self.array}), lambda row: f"row {row}").dates(self.name)
        except DataError:
            return None

    @cached_property
    def date_parts(self) -> tuple[str, ...]:
        """The parts of the dates that differ between rows."""
        if self.dates is None:
            return ()
        dates = self.dates.drop_null()
        return tuple(part for part in DATE_PARTS if len(np.unique(date_parts(dates, part))) > 1)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numbers is not None and bool((self.numbers == np.floor(self.numbers)).all())

    @cached_property
    def is_binary(self) -> bool:
        """Whether all values are 0 or 1, and none is missing."""
        return (
            self.numbers is not None
            and len(self.numbers) == len(self.array)
            and bool(np.isin(self.numbers, (0.0, 1.0)).all())
        )

    @cached_property
    def separator(self) -> str:
        """What separates several values in a text; empty if each text is one value."""
        if not self.is_text or self.is_list or self.numbers is not None or not len(self.values):
            return ""
        for separator in _SEPARATORS:
            share = pc.mean(pc.match_substring(self.values, separator).cast(pa.float64())).as_py()
            if share > 0.05:
                lists = pc.split_pattern(self.values, separator)
                # Lists differ in length, and their parts recur; a text with a comma in it is one value.
                has_lengths = pc.count_distinct(pc.list_value_length(lists)).as_py() > 1
                if has_lengths and pc.count_distinct(pc.list_flatten(lists)).as_py() <= self.num_values:
                    return separator
        return ""

    def is_time(self) -> bool:
        """Whether it is named like a time and its values are times."""
        if self.low not in _TIMES:
            return False
        if self.numbers is not None:
            return bool(self.numbers.min() >= _FIRST_DIGITS_OF_TIMES)
        return self.dates is not None and not self.dates.null_count

    def report(self, use: str, reason: str) -> ColumnReport:
        if self.is_list:
            kind = "lists of texts" if self.is_text else "lists of numbers"
        elif self.dates is not None:
            kind = "dates"
        elif self.numbers is None:
            kind = f"texts separated by {self.separator!r}" if self.separator else "texts"
        else:
            kind = "whole numbers" if self.is_whole else "numbers"
        missing = 1 - (len(self.array) - self.array.null_count) / len(self.array)
        example = "" if not len(self.values) else str(self.array.drop_null()[0])[:24]
        return ColumnReport(
            name=self.name,
            use=use,
            kind=kind,
            num_values=self.num_values,
            missing=missing,
            example=example,
            reason=reason,
        )


def _snake(name: str) -> str:
    """Return a name in lower case, with underscores between words: ``userId`` becomes ``user_id``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip()


def _labels(columns: Sequence[_Column], names: Sequence[str]) -> list[LabelColumn]:
    by_name = {column.name: column for column in columns}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise DataError(f"label: got {unknown[0]!r}, expected one of the columns {list(by_name)[:20]}")
    if not names:
        known = {column.low: column for column in reversed(columns)}
        found = [known[name] for name in _LABELS if name in known and known[name].numbers is not None]
        names = [found[0].name] if found else [columns[0].name] if columns[0].is_binary else []
    if not names:
        raise DataError(
            f"label: found none among the columns {list(by_name)[:20]}; name it with --label COLUMN"
        )
    return [_label(by_name[name]) for name in names]


def _label(column: _Column) -> LabelColumn:
    if column.is_binary:
        return LabelColumn(name=column.name)
    if column.numbers is None:
        raise DataError(f"label: column {column.name!r}: got texts, expected 0 and 1, or numbers")
    middle = (
        _LIKED if column.numbers.min() >= 0 and column.numbers.max() <= 5 else float(np.mean(column.numbers))
    )
    return LabelColumn(name=column.name, at_least=middle)


def _use(column: _Column, uses: dict[str, tuple[str, str]], num_rows: int) -> tuple[str, str]:
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


def _date_use(column: _Column) -> tuple[str, str]:
    parts = column.date_parts
    if not parts:
        return "ignored", "dates of the same hour and weekday"
    return (
        "date",
        f"dates, of which {' and '.join(parts)} {'is an input' if len(parts) == 1 else 'are inputs'}",
    )


def _date_tables(column: _Column, taken: Sequence[str]) -> Iterator[TableSpec]:
    """Yield a table for each part of a column of dates."""
    for part in column.date_parts:
        name = f"{column.name}_{part}"
        while name in taken:
            name += "_"
        yield TableSpec(
            name=_table_name(name),
            num_embeddings=DATE_PARTS[part],
            feature_names=(name,),
            date=column.name,
            part=part,
        )


def _dense(column: _Column) -> DenseColumn:
    """Return a dense column, scaled by the sample's mean and standard deviation."""
    numbers = column.numbers
    assert numbers is not None
    is_large = float(np.abs(numbers).max()) > _LARGE
    values = np.sign(numbers) * np.log1p(np.abs(numbers)) if is_large else numbers
    std = float(values.std())
    mean = float(values.mean())
    return DenseColumn(
        name=column.name,
        missing=0.0 if is_large else _rounded(mean),
        log1p=is_large,
        mean=_rounded(mean),
        std=_rounded(std) if std > 1e-6 * max(1.0, abs(mean)) else 1.0,
    )


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _table_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)


def _table(column: _Column, hash_rows: int) -> TableSpec:
    separator = column.separator
    num_values = column.num_values
    if separator:
        num_values = pc.count_distinct(pc.list_flatten(pc.split_pattern(column.values, separator))).as_py()
    # A table whose values the sample has seen is made small; other values share its rows.
    is_seen = num_values * _ROWS_PER_VALUE <= max(len(column.values), _MIN_ROWS)
    rows = max(_MIN_ROWS, 1 << (num_values * _ROWS_PER_VALUE - 1).bit_length()) if is_seen else hash_rows
    is_text = column.is_text and column.numbers is None
    return TableSpec(
        name=_table_name(column.name),
        num_embeddings=min(rows, hash_rows),
        feature_names=(column.name,),
        pooling="MEAN" if separator or column.is_list else "SUM",
        ids="hash",
        strings="xxh64" if is_text else "",
        separator=separator,
    )
