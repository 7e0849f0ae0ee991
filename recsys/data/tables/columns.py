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
from recsys.hashing import hash_texts
from recsys.schema import DenseColumn, LabelColumn, TableSpec

#: What stands for a missing number in a text file.
MISSING_NUMBERS = ("", "NA", "N/A", "NULL", "null", "NaN", "nan", "None", "\\N")
_MICROSECONDS = pa.timestamp("us")
_FIRST_VALUES = 64
_ZONED = pa.timestamp("us", "UTC")


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_whole(kind: pa.DataType) -> bool:
    """Return whether an Arrow type holds whole numbers that fit an int64."""
    return bool(pa.types.is_integer(kind) and not pa.types.is_uint64(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether an Arrow type converts to float: whole numbers, floats, decimals, bool."""
    types = pa.types
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    )


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without dictionary encoding."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # no chunks at all
        array = pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


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
            numbers = word_labels(_without_missing(array))
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
        """Return a column of numbers; NaN for missing ones where the column has transforms."""
        numbers = self.numbers(column.name)
        is_missing = np.isnan(numbers)
        if column.is_plain:
            self._expect(
                ~is_missing,
                column.name,
                "a missing value",
                "a number (a schema's missing gives one in its place)",
            )
        with np.errstate(over="ignore"):
            floats = numbers.astype(np.float32)
        self._expect(np.isfinite(floats) | is_missing, column.name, numbers, "a finite float32")
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
            array = _without_missing(array)
        dates = _timestamps(array)
        if dates is None:
            bad = _first_failing(array, lambda part: _timestamps(part) is not None)
            if _timestamps(array[bad : bad + 1]) is None:
                raise self._wrong(bad, name, array[bad], "a date as 2026-01-31 or 2026-01-31 12:00:00")
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
        if spec.ids == "hash":
            ids %= spec.num_embeddings
        elif spec.ids == "index":
            num_rows = spec.num_embeddings
            expected = f"an ID of 0 to {num_rows - 1} (table {spec.name!r} has {num_rows} rows)"
            self._expect((ids >= 0) & (ids < num_rows), name, ids, expected, owners)
        return Bags(ids, np.concatenate(([0], np.cumsum(lengths))))

    def _values(self, name: str, spec: TableSpec) -> tuple[pa.Array, Ints]:
        """Return all values of a column, and their number in each row."""
        array = plain(self._table.column(name))
        if spec.separator and is_text(array.type):
            array = pc.split_pattern(array, spec.separator)
        elif not spec.strings and is_text(array.type):
            array = _without_missing(array)
        if is_list(array.type):
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            values = pc.list_flatten(array)
            if is_text(values.type):
                return self._without_empty(values, lengths.astype(np.int64))
            owners = np.repeat(np.arange(len(lengths)), lengths)
            is_valid = values.is_valid().to_numpy(zero_copy_only=False)
            self._expect(is_valid, name, "a null", "none within a list", owners)
            return values, lengths.astype(np.int64)
        lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.drop_null()
        return self._without_empty(values, lengths) if is_text(values.type) else (values, lengths)

    @staticmethod
    def _without_empty(values: pa.Array, lengths: Ints) -> tuple[pa.Array, Ints]:
        """Drop empty texts, which are missing values."""
        is_kept = pc.fill_null(pc.greater(pc.utf8_length(values), 0), fill_value=False)
        if pc.all(is_kept).as_py() is not False:
            return values, lengths
        owners = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(owners[is_kept.to_numpy(zero_copy_only=False)], minlength=len(lengths))
        return values.filter(is_kept), kept.astype(np.int64)

    @staticmethod
    def _hashed(values: pa.Array) -> Ints:
        """Return the texts' IDs; each different text is hashed once."""
        if not is_text(values.type):
            values = values.cast(pa.string())
        encoded = values.dictionary_encode()
        hashes: Ints = hash_texts([text.encode() for text in encoded.dictionary.to_pylist()])
        ids: Ints = hashes[encoded.indices.to_numpy(zero_copy_only=False)]
        return ids

    def _whole(self, values: pa.Array, name: str, owners: Ints) -> Ints:
        expected = "a whole number of 64 bits (a schema's strings takes texts)"
        if is_text(values.type):
            try:
                values = values.cast(pa.int64())
            except pa.ArrowInvalid:
                good = np.array([_is_whole(text) for text in values.to_pylist()])
                self._expect(good, name, values, expected, owners)
                values = pa.array([int(float(text)) for text in values.to_pylist()], pa.int64())
        if pa.types.is_floating(values.type):  # pandas writes whole numbers with gaps as floats
            numbers: NDArray[np.float64] = values.to_numpy(zero_copy_only=False)
            self._expect(
                np.isfinite(numbers) & (numbers == np.floor(numbers)), name, numbers, expected, owners
            )
            return numbers.astype(np.int64)
        ids: Ints = values.to_numpy(zero_copy_only=False).astype(np.int64)
        return ids

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, NaN for missing ones."""
        array = plain(self._table.column(name))
        if is_text(array.type):
            array = self._parsed(array, name)
        numbers: NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers

    def _parsed(self, array: pa.Array, name: str) -> pa.Array:
        array = _without_missing(array)
        try:
            return array.cast(pa.float64())
        except pa.ArrowInvalid:
            pass
        lowered = pc.utf8_lower(pc.utf8_trim_whitespace(array))
        as_digits = pc.replace_with_mask(
            lowered, pc.fill_null(pc.equal(lowered, "true"), fill_value=False), "1"
        )
        as_digits = pc.replace_with_mask(
            as_digits, pc.fill_null(pc.equal(lowered, "false"), fill_value=False), "0"
        )
        try:
            return as_digits.cast(pa.float64())
        except pa.ArrowInvalid:
            bad = _first_failing(as_digits, _are_numbers)
            raise self._wrong(bad, name, array[bad], "a number") from None

    def _times(self, array: pa.Array, name: str) -> NDArray[np.float64]:
        if is_text(array.type) and any(_is_number(text) for text in array.drop_null()[:1].to_pylist()):
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
            raise self._wrong(row, name, got if isinstance(got, str) else got[first], expected)

    def _wrong(self, row: int, name: str, got: Any, expected: str) -> DataError:
        """Return the error for a value; ``got`` is the value, or a text that says what it is."""
        found = got if isinstance(got, str) else repr(str(got))[:60]
        return DataError(f"{self._place(row)}: column {name!r}: got {found}, expected {expected}")


def _first_failing(array: pa.Array, converts: Callable[[pa.Array], bool]) -> int:
    """Return the first position up to which an array does not convert, which it does not as a whole."""
    good, size = 0, 1
    while converts(array[good : good + size]):
        good += size
        size *= 4
    bad = min(good + size, len(array))
    while bad - good > 1:
        middle = (good + bad) // 2
        if converts(array[good:middle]):
            good = middle
        else:
            bad = middle
    return good


def _are_numbers(array: pa.Array) -> bool:
    try:
        array.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _timestamps(array: pa.Array) -> pa.Array | None:
    """Return times without a zone, in UTC where they have one; None if a value is something else."""
    for kind in (_MICROSECONDS, _ZONED):
        try:
            # A cast goes on after a value that it cannot take, which costs much: a few values come first.
            for part in (array[:_FIRST_VALUES], array):
                dates = part.cast(kind, safe=is_text(array.type)).cast(_MICROSECONDS)
            return dates
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
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


def _without_missing(array: pa.Array) -> pa.Array:
    """Return an array of texts with nulls for what stands for a missing number."""
    is_missing = pc.is_in(pc.utf8_trim_whitespace(array), pa.array(MISSING_NUMBERS, array.type))
    return pc.if_else(is_missing, pa.scalar(None, array.type), array)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    return _is_number(text) and float(text).is_integer() and abs(float(text)) < 2**53
