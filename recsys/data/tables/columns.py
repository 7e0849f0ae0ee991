"""Arrow columns as arrays, with every value checked.

Columns of text files are texts, those of Parquet files and frames have types; both give the same arrays.

Shape letters: N number of examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.examples import Bags, Ints
from recsys.data.labels import LABELS, is_positive, word_labels
from recsys.data.lines import DataError
from recsys.data.tables.cells import split
from recsys.data.tables.conversions import (
    OddValue,
    cast_or_none,
    first_failing,
    ids_of,
    numbers_of,
    without_missing,
)
from recsys.data.tables.types import is_bytes, is_list, is_number, is_text, plain
from recsys.hashing import hash_texts, rows_of_ids
from recsys.schema import DenseColumn, LabelColumn, TableSpec

_MICROSECONDS = pa.timestamp("us")
_ZONED = pa.timestamp("us", "UTC")


class Columns:
    """The columns of some consecutive rows; wrong values raise a DataError that names their place.

    Args:
        table: The Arrow table.
        place: Returns the place of a row of the table, such as ``clicks.csv, line 7``.
    """

    def __init__(self, table: pa.Table, place: Callable[[int], str]) -> None:
        self._table = table
        self._place = place

    def label(self, label: LabelColumn) -> NDArray[np.float32]:
        """Return a column of zeros and ones."""
        array = plain(self._table.column(label.name))
        if label.positive:
            numbers = is_positive(array, label.positive)
        elif label.at_least is None and is_text(array.type):
            numbers = word_labels(without_missing(array))
        else:
            numbers = self.numbers(label.name)
        expected = LABELS if label.at_least is None else "a number"
        self._expect(~np.isnan(numbers), label.name, "a missing value", expected)
        if label.at_least is not None:
            return (numbers >= label.at_least).astype(np.float32)
        self._expect((numbers == 0) | (numbers == 1), label.name, array, expected)
        return numbers.astype(np.float32)

    def weight(self, name: str) -> NDArray[np.float32]:
        """Return a column of weights, finite and not negative."""
        numbers = self.numbers(name)
        self._expect(np.isfinite(numbers) & (numbers >= 0), name, numbers, "a finite weight of at least 0")
        return numbers.astype(np.float32)

    def dense(self, column: DenseColumn) -> NDArray[np.float32]:
        """Return a column of numbers; NaN for missing and infinite ones where the column has transforms."""
        numbers = self.numbers(column.name)
        with np.errstate(over="ignore"):
            floats = numbers.astype(np.float32)
        if not column.is_plain:
            floats[np.isinf(floats)] = np.nan
            return floats
        self._expect(
            ~np.isnan(floats),
            column.name,
            "a missing value",
            "a number (a schema's missing gives one in its place)",
        )
        self._expect(np.isfinite(floats), column.name, numbers, "a finite float32")
        return floats

    def times(self, name: str) -> NDArray[np.float64]:
        """Return a column of times as numbers that can be compared: as they are, or seconds since 1970."""
        array = plain(self._table.column(name))
        times = self.numbers(name) if is_number(array.type) else self._times(array, name)
        self._expect(~np.isnan(times), name, "a missing value", "a time")
        return times

    def dates(self, name: str) -> pa.Array:
        """Return a column of dates as timestamps without a zone, in UTC where it has one; null for missing ones."""
        array = plain(self._table.column(name))
        if is_text(array.type):
            array = without_missing(array)
        dates = _timestamps(array)
        if dates is None:
            bad = first_failing(array, lambda part: _timestamps(part) is not None)
            if _timestamps(array[bad : bad + 1]) is None:
                raise self._wrong(
                    bad, name, repr(str(array[bad]))[:60], "a date as 2026-01-31 or 2026-01-31 12:00:00"
                )
            raise DataError(f"{self._place(bad)}: column {name!r}: got dates with and without a time zone")
        return dates

    def bags(self, name: str, spec: TableSpec) -> Bags:
        """Return a feature's IDs: rows of its table, or raw IDs for a mapped table.

        The feature's column holds IDs or texts, or lists of them; that of a date's part holds dates.
        """
        if spec.date:
            return Bags.optional(date_parts(self.dates(spec.date), spec.part))
        values, lengths = self._values(name, spec)
        owners = np.repeat(np.arange(len(lengths)), lengths)
        ids = self._hashed(values) if spec.strings else self._whole(values, name, owners)
        if spec.is_hashed:
            ids = rows_of_ids(ids, spec.ids, spec.num_embeddings)
        elif spec.ids == "index":
            num_rows = spec.num_embeddings
            expected = f"an ID of 0 to {num_rows - 1} (table {spec.name!r} has {num_rows} rows)"
            self._expect((ids >= 0) & (ids < num_rows), name, ids, expected, owners)
        return Bags(ids, np.concatenate(([0], np.cumsum(lengths))))

    def texts(self, name: str, spec: TableSpec) -> list[list[str]]:
        """Return the texts of a feature whose IDs are their hashes, a list for each row."""
        values, lengths = self._values(name, spec)
        texts = iter(values.cast(pa.string()).to_pylist())
        return [[next(texts) for _ in range(length)] for length in lengths.tolist()]

    def _values(self, name: str, spec: TableSpec) -> tuple[pa.Array, Ints]:
        """Return all values of a column, and their number in each row."""
        array = plain(self._table.column(name))
        if spec.separator and is_text(array.type):
            array = split(array, spec.separator)
        elif not spec.strings and is_text(array.type):
            array = without_missing(array)
        if is_list(array.type):
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            values = pc.list_flatten(array)
            if is_text(values.type) or is_bytes(values.type):
                return self._without_empty(values, lengths.astype(np.int64))
            owners = np.repeat(np.arange(len(lengths)), lengths)
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            self._expect(is_valid, name, "a null", "none within a list", owners)
            return values, lengths.astype(np.int64)
        lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.drop_null()
        is_hashed = is_text(values.type) or is_bytes(values.type)
        return self._without_empty(values, lengths) if is_hashed else (values, lengths)

    @staticmethod
    def _without_empty(values: pa.Array, lengths: Ints) -> tuple[pa.Array, Ints]:
        """Drop empty texts, which are missing values."""
        is_kept = pc.fill_null(pc.greater(pc.binary_length(values), 0), fill_value=False)
        if pc.all(is_kept).as_py() is not False:
            return values, lengths
        owners = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(owners[is_kept.to_numpy(zero_copy_only=False)], minlength=len(lengths))
        return values.filter(is_kept), kept.astype(np.int64)

    @staticmethod
    def _hashed(values: pa.Array) -> Ints:
        """Return the texts' IDs; each different text is hashed once."""
        if not (is_text(values.type) or is_bytes(values.type)):
            values = values.cast(pa.string())
        encoded = values.dictionary_encode()
        hashes: Ints = hash_texts(encoded.dictionary.cast(pa.large_binary()).to_pylist())
        ids: Ints = hashes[encoded.indices.to_numpy(zero_copy_only=False)]
        return ids

    def _whole(self, values: pa.Array, name: str, owners: Ints) -> Ints:
        self._expect_no_bytes(values, name)
        ids = ids_of(values)
        if isinstance(ids, OddValue):
            odd = ids.position
            raise self._wrong(int(owners[odd]), name, repr(str(values[odd]))[:60], ids.expected)
        return ids

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, NaN for missing ones."""
        array = plain(self._table.column(name))
        self._expect_no_bytes(array, name)
        if is_text(array.type):
            parsed = numbers_of(array)
            if isinstance(parsed, OddValue):
                raise self._wrong(
                    parsed.position, name, repr(str(array[parsed.position]))[:60], parsed.expected
                )
            array = parsed
        numbers: NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers

    def _times(self, array: pa.Array, name: str) -> NDArray[np.float64]:
        if is_text(array.type) and not isinstance(numbers_of(array.drop_null()[:1]), OddValue):
            return self.numbers(name)
        moments: NDArray[np.float64] = (
            self.dates(name).cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        )
        return moments / 1e6

    def _expect(
        self,
        good: NDArray[np.bool_],
        name: str,
        got: NDArray[Any] | pa.Array | str,
        expected: str,
        owners: Ints | None = None,
    ) -> None:
        """Raise for the first bad value; ``owners`` is the row of each value if that is not its position."""
        bad = np.flatnonzero(~good)
        if len(bad):
            first = int(bad[0])
            row = first if owners is None else int(owners[first])
            raise self._wrong(
                row, name, got if isinstance(got, str) else repr(str(got[first]))[:60], expected
            )

    def _expect_no_bytes(self, array: pa.Array, name: str) -> None:
        if is_bytes(array.type):
            raise self._wrong(
                0, name, "bytes in this or a later row that are not UTF-8", "numbers, or texts of them"
            )

    def _wrong(self, row: int, name: str, got: str, expected: str) -> DataError:
        """Return the error for what a row holds."""
        return DataError(f"{self._place(row)}: column {name!r}: got {got}, expected {expected}")


def _timestamps(array: pa.Array) -> pa.Array | None:
    """Return times without a zone, in UTC where they have one; None if a value is something else."""
    for kind in (_MICROSECONDS, _ZONED):
        dates = cast_or_none(array, kind, safe=is_text(array.type))
        if dates is not None:
            return dates.cast(_MICROSECONDS)
    return None


def date_parts(dates: pa.Array, part: str) -> Ints:
    """Return a part of each date, one of ``recsys.schema.DATE_PARTS``; -1 for missing dates."""
    found = pc.hour(dates) if part == "hour" else pc.day_of_week(dates)
    parts: Ints = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)
    return parts


def time_of(text: str) -> float:
    """Return a time that a user wrote, as ``Columns.times`` returns a column's.

    Raises:
        DataError: It is neither a number nor a date.
    """
    return float(Columns(pa.table({"time": [text]}), lambda _: "time").times("time")[0])
