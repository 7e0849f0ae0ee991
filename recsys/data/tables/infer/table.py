"""The schema of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.base.machine import num_processors
from recsys.base.table_modules import TAKEN_NAMES
from recsys.data.labels import check_both_classes
from recsys.data.lines import DataError, shown_names
from recsys.data.tables.infer.column import Column, ColumnReport
from recsys.data.tables.infer.kinds import look_like_numbers, padded_text
from recsys.data.tables.infer.labels import Label, LabelValueError, NoLabelError, choose_labels
from recsys.data.tables.infer.shadows import shadow_of
from recsys.data.tables.infer.uses import use_of
from recsys.data.tables.kept_rows import label_blocks
from recsys.data.tables.reading.files import listed, open_files
from recsys.data.tables.reading.pieces import Piece, TableFile
from recsys.data.tables.reading.sample import sample_rows
from recsys.data.tables.values.arrow_types import plain
from recsys.inputs.columns import DATE_PARTS, DenseColumn, TableSpec
from recsys.inputs.schema import Schema

#: Rows that are looked at.
SAMPLE_ROWS = 100_000


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """A schema and what it was inferred from.

    Attributes:
        schema: The schema.
        columns: What was found in each column, in the table's order.
        num_rows: Rows that were looked at.
        sample: These rows.
        notices: What a user should know of the columns, one line each.
        label_texts: The labels' names, with the positive values and their share.
    """

    schema: Schema
    columns: tuple[ColumnReport, ...]
    num_rows: int
    sample: pa.Table = field(repr=False, compare=False)
    notices: tuple[str, ...] = ()
    label_texts: tuple[str, ...] = ()


def infer(
    data: Any, labels: Sequence[str] = (), hash_rows: int = 100_000, ignore: Sequence[str] = ()
) -> Inferred:
    """Infer the schema of a table from a sample of its rows.

    Args:
        data: What ``open_files`` takes: a file, a folder of files, a frame and others.
        labels: The labels' columns, each of which may say what is positive (``rating>=4``, ``action=buy,cart``);
            found by their names if empty.
        hash_rows: Rows of tables with many different values; smaller tables have fewer.
        ignore: Columns to leave out.

    Raises:
        NoLabelError: There is no label; the error has what was found in the columns.
        DataError: The table cannot be read, has no sparse column, or a label is the same in all rows.
    """
    if hash_rows < 1:
        raise DataError(f"hash_rows: got {hash_rows}, expected at least 1")
    files = open_files(data)
    sample = sample_rows(files, SAMPLE_ROWS)
    if sample.num_rows < 2:
        raise DataError("data: got 1 row, expected at least 2 rows: one to learn from, one to measure on")
    unknown = [name for name in ignore if name not in sample.column_names]
    if unknown:
        raise DataError(
            f"ignore: got {unknown[0]!r}, expected one of the columns {shown_names(sample.column_names)}"
        )
    given = dict.fromkeys(ignore, ("ignored", "left out as given"))
    found = _look_at(sample)
    # From here on each column is one array instead of one for each part.
    sample = pa.table({column.name: column.array for column in found})
    try:
        chosen = choose_labels([column for column in found if column.name not in given], labels)
    except NoLabelError as error:
        uses = _uses_of(found, given, files[0].kinds)
        error.columns = tuple(column.report(*uses[column.name]) for column in found)
        raise
    except LabelValueError as error:
        # Reading the values again names the line of their file.
        for _ in label_blocks(_pieces_with(error.label.name, files), [error.label]):
            pass
        raise
    _check_classes(data, chosen)
    of_labels = {label.column.name: ("label", label.reason) for label in chosen}
    uses = _uses_of(found, {**given, **of_labels}, files[0].kinds)
    by_use = {
        use: [c for c in found if uses[c.name][0] == use]
        for use in ("time", "weight", "dense", "sparse", "date")
    }
    if not by_use["sparse"] and not by_use["date"]:
        raise DataError(
            f"data: got columns {shown_names(sample.column_names)}, of which none looks like an ID or a category; a "
            "schema file (--schema) names them"
        )
    weight = [column.name for column in by_use["weight"]]
    time = by_use["time"]
    schema = Schema(
        labels=tuple(label.column for label in chosen),
        dense=tuple(_dense_column(column) for column in by_use["dense"]),
        tables=_with_unique_names(
            [
                *(_table_spec(column, hash_rows) for column in by_use["sparse"]),
                *(table for column in by_use["date"] for table in _date_tables(column, sample.column_names)),
            ]
        ),
        weight=weight[0] if weight else None,
        time=time[0].name if time else None,
        time_format=time[0].date_form.form if time else "",
    )
    shadows = _shadows(by_use, chosen)
    for name, (label, text) in shadows.items():
        uses[name] = (uses[name][0], f"{uses[name][1]}; {text} (label {label!r})")
    return Inferred(
        schema=schema,
        columns=tuple(column.report(*uses[column.name]) for column in found),
        num_rows=sample.num_rows,
        sample=sample,
        notices=(
            *_number_notices(found, uses),
            *_shadow_notices(shadows),
            *_padding_notices(by_use["sparse"]),
        ),
        label_texts=tuple(label.text for label in chosen),
    )


def _pieces_with(name: str, files: Sequence[TableFile]) -> Iterator[Piece]:
    """Yield the pieces of the files that have a column."""
    for file in files:
        if name in file.types:
            yield from file.pieces()


def _uses_of(
    columns: Sequence[Column], known: Mapping[str, tuple[str, str]], kinds: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return the use of each column, with the reason; that of labels, and of columns left out, is known."""
    uses = dict(known)
    for column in (*_time_of([column for column in columns if column.name not in uses]), *columns):
        if column.name not in uses:
            uses[column.name] = use_of(column, uses, kinds.get(column.name, ""))
    return uses


def _shadow_notices(shadows: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name, (label, text) in shadows.items():
        yield (
            f"label {label!r}: column {name!r} {text} (learned on half of the rows, measured on the other): if it is "
            f"known only after the label, leave it out: --ignore {name}"
        )


def _padding_notices(columns: Sequence[Column]) -> Iterator[str]:
    for column in columns:
        padded = padded_text(column.different) if column.ids == "texts" and not column.separator else ""
        if padded:
            what = "quotes" if padded == padded.strip() else "blanks"
            yield (
                f"column {column.name!r}: the {what} around texts such as {padded[:24]!r} are part of the values: "
                "requests have to send them too, or take them out of the table"
            )


def _number_notices(columns: Sequence[Column], uses: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each column of texts that look like numbers."""
    for column in columns:
        use, reason = uses[column.name]
        note = column.note(use, reason)
        if look_like_numbers(note):
            what = "the column is left out" if use == "ignored" else "the model takes the values as texts"
            how = ' or set decimal = "," in the schema,' if "its comma" in note else ""
            yield f"column {column.name!r}: {note}; {what}: write numbers as 1234.5{how} to have them learned as such"


def _time_of(columns: Sequence[Column]) -> list[Column]:
    """Return the column that orders the rows best: of dates rather than other numbers, the most different ones."""
    times = [column for column in columns if not column.unread and len(column.values) and column.is_time()]
    return sorted(times, key=lambda column: (column.dates is None, -column.num_values))[:1]


def _shadows(by_use: Mapping[str, Sequence[Column]], labels: Sequence[Label]) -> dict[str, tuple[str, str]]:
    """Return the features that alone nearly decide a label, with the label and what was found."""
    dense = {column.name for column in by_use["dense"]}
    columns = [*by_use["dense"], *by_use["sparse"], *by_use["date"]]

    def first(column: Column) -> tuple[str, str] | None:
        for label in (label for label in labels if not label.column.is_number):
            shadow = shadow_of(column, label, is_dense=column.name in dense)
            if shadow is not None and shadow.text:
                return label.column.name, shadow.text
        return None

    with ThreadPoolExecutor(num_processors()) as threads:
        found = list(threads.map(first, columns))
    return {column.name: shadow for column, shadow in zip(columns, found, strict=True) if shadow}


def _look_at(sample: pa.Table) -> list[Column]:
    """Return the columns; Arrow's work on them is done on several cores."""

    def column(name: str) -> Column:
        found = Column(name, plain(sample.column(name)))
        found.find_lists()
        return found

    with ThreadPoolExecutor(num_processors()) as threads:
        return list(threads.map(column, sample.column_names))


def _check_classes(data: Any, labels: Sequence[Label]) -> None:
    """Check that each label is 0 and 1 in some rows, beyond the sample where that has one of them."""
    rest = [
        label.column for label in labels if not label.column.is_number and not 0 < label.values.mean() < 1
    ]
    if rest:
        check_both_classes(rest, label_blocks(listed(open_files(data)), rest))


_MIN_ROWS = 1_000
# Rows per different value of a hashed table, so that few values share one.
_ROWS_PER_VALUE = 16
_LARGE = 100.0


def _date_tables(column: Column, taken: Sequence[str]) -> Iterator[TableSpec]:
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
            format=column.date_form.form,
        )


def _dense_column(column: Column) -> DenseColumn:
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
    """Return a name of letters, digits and underscores, those of any alphabet, that no attribute of modules has."""
    name = re.sub(r"\W+", "_", name)
    return f"{name}_table" if name in TAKEN_NAMES else name


def _with_unique_names(tables: Iterable[TableSpec]) -> tuple[TableSpec, ...]:
    """Return tables with a number behind names that occurred before: columns ``a-b`` and ``a.b`` have one each."""
    taken: set[str] = set()
    unique = []
    for table in tables:
        name, number = table.name, 1
        while name in taken:
            number += 1
            name = f"{table.name}_{number}"
        taken.add(name)
        unique.append(replace(table, name=name))
    return tuple(unique)


def _table_spec(column: Column, hash_rows: int) -> TableSpec:
    """Return the table of a sparse column."""
    separator = column.separator
    num_values = len(column.items)
    # A table whose values the sample has seen is made small; other values share its rows.
    is_seen = num_values * _ROWS_PER_VALUE <= max(len(column.values), _MIN_ROWS)
    rows = max(_MIN_ROWS, 1 << (num_values * _ROWS_PER_VALUE - 1).bit_length()) if is_seen else hash_rows
    are_texts = column.ids in ("texts", "beyond", "signed")
    return TableSpec(
        name=_table_name(column.name),
        num_embeddings=min(rows, hash_rows),
        feature_names=(column.name,),
        pooling="MEAN" if separator or column.is_list else "SUM",
        ids="hash" if are_texts else "fmix64",  # the IDs of texts are hashes already
        strings="xxh64" if are_texts else "",
        separator=separator,
    )
