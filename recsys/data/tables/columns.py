"""Arrow columns as arrays, with every value checked.

Columns of text files are texts, those of Parquet files and frames have types; both give the same arrays.

Shape letters: N number of examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.base.hashing import hash_texts, rows_of_ids
from recsys.data.examples import Bags, Ints
from recsys.data.labels import LABELS, is_positive, word_labels
from recsys.data.lines import DataError
from recsys.data.tables.values.arrow_types import encoded, is_bytes, is_list, is_number, is_text, plain
from recsys.data.tables.values.cells import are_bracketed, split
from recsys.data.tables.values.conversions import (
    OddValue,
    cast_or_none,
    first_failing,
    ids_of,
    numbers_of,
    without_missing,
)
from recsys.data.tables.values.moments import DATES, moments_of, seconds_of
from recsys.errors import DataWarning
from recsys.inputs.schema import DenseColumn, LabelColumn, TableSpec


@dataclass(frozen=True)
class Times:
    """A column of times.

    Attributes:
        values: float64 ``[N]``, NaN for missing ones.
        are_dates: Whether they are seconds since 1970, and not the column's own numbers.
    """

    values: NDArray[np.float64]
    are_dates: bool


def with_elements(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table with a column for each number of its vectors that is asked for: ``vector[0]`` of ``vector``.

    Args:
        table: The table.
        names: The columns that are asked for.

    Raises:
        DataError: A list has not as many numbers as are asked for.
    """
    given = set(table.column_names)
    of_vector: dict[str, list[str]] = {}
    for name in names:
        vector = name.rpartition("[")[0]
        if name not in given and name.endswith("]") and vector in given:
            of_vector.setdefault(vector, []).append(name)
    for vector, elements in of_vector.items():
        found = Columns(table, lambda row: f"row {row}").vectors(vector, len(elements))
        for i, name in enumerate(elements):
            table = table.append_column(name, pa.array(found[:, i], from_pandas=True))
    return table


class Columns:
    """The columns of some consecutive rows; wrong values raise a DataError that names their place.

    Args:
        table: The Arrow table.
        place: Returns the place of a row of the table, such as ``clicks.csv, line 7``.
    """

    def __init__(self, table: pa.Table, place: Callable[[int], str]) -> None:
        self._table = table
        self._place = place
        self._vectors: dict[str, NDArray[np.float64]] = {}

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self._table.num_rows)

    def label(self, label: LabelColumn) -> NDArray[np.float32]:
        """Return a column of zeros and ones, or of a label's numbers."""
        array = plain(self._table.column(label.name))
        if label.is_number:
            numbers = self.numbers(label.name)
            with np.errstate(over="ignore"):
                floats = numbers.astype(np.float32)
            self._expect(~np.isnan(numbers), label.name, "a missing value", f"a number ({label.loss})")
            self._expect(np.isfinite(floats), label.name, numbers, "a finite float32")
            return floats
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
        if column.size:
            numbers = self.vectors(column.column, column.size)[:, column.element]
        elif column.since:
            until, since = (
                seconds_of(self.dates(name, column.format)) for name in (column.until, column.since)
            )
            numbers = until - since
        else:
            numbers = self.numbers(column.name, column.decimal)
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

    def vectors(self, name: str, size: int) -> NDArray[np.float64]:
        """Return a column of lists of as many numbers, ``[N, size]``; NaN for a missing list or number.

        Texts are lists as JSON and NumPy write them.
        """
        if name not in self._vectors:
            array = plain(self._table.column(name))
            if is_text(array.type):
                array = split(array, ",")
            if pa.types.is_null(array.type):
                self._vectors[name] = np.full((len(array), size), np.nan)
                return self._vectors[name]
            lengths = pc.fill_null(pc.list_value_length(array), size).to_numpy(zero_copy_only=False)
            # An empty list is a missing one.
            self._expect(
                (lengths == size) | (lengths == 0), name, lengths, f"a list of {size} numbers in each row"
            )
            values = pc.list_flatten(array)
            numbers = numbers_of(values) if is_text(values.type) else cast_or_none(values, pa.float64())
            if numbers is None or isinstance(numbers, OddValue):
                raise DataError(
                    f"{self._place(0)}: column {name!r}: got lists of {values.type}, expected of numbers"
                )
            found = np.full((len(array), size), np.nan)
            has_one = (lengths == size) & array.is_valid().to_numpy(zero_copy_only=False)
            found[has_one] = numbers.to_numpy(zero_copy_only=False).reshape(-1, size)
            self._vectors[name] = found
        return self._vectors[name]

    def times(self, name: str, form: str = "") -> Times:
        """Return a column of times as numbers that can be compared; ``form`` as ``moments_of`` takes it."""
        array = plain(self._table.column(name))
        is_number_text = is_text(array.type) and _starts_with_number(array)
        if not form and (is_number(array.type) or is_number_text):
            return Times(self.numbers(name), are_dates=False)
        return Times(seconds_of(self.dates(name, form)), are_dates=True)

    def dates(self, name: str, form: str = "") -> pa.Array:
        """Return a column of dates as timestamps, see ``moments_of``."""
        array = plain(self._table.column(name))
        dates = moments_of(array, form)
        if dates is None:
            bad = first_failing(array, lambda part: moments_of(part, form) is not None)
            if moments_of(array[bad : bad + 1], form) is None:
                expected = f"a date in the form {form!r}" if form else DATES
                raise self._wrong(bad, name, repr(str(array[bad]))[:60], expected)
            raise DataError(f"{self._place(bad)}: column {name!r}: got dates with and without a time zone")
        return dates

    def bags(self, name: str, spec: TableSpec) -> Bags:
        """Return a feature's IDs: rows of its table, or raw IDs for a mapped table.

        The feature's column holds IDs or texts, or lists of them; that of a date's part holds dates.
        """
        if spec.date:
            return Bags.optional(date_parts(self.dates(spec.date, spec.format), spec.part))
        texts = encoded(self._table.column(name)) if spec.strings and not spec.separator else None
        if texts is not None:
            _warn_of_lists(plain(self._table.column(name)[:NUM_TEXTS]), name, spec)
            return self._looked_up(texts, spec)
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

    def _looked_up(self, texts: pa.DictionaryArray, spec: TableSpec) -> Bags:
        """Return the IDs of texts with a dictionary; each different text is hashed once."""
        different = plain(pa.chunked_array([texts.dictionary]))
        ids = self._hashed(different)
        if spec.is_hashed:
            ids = rows_of_ids(ids, spec.ids, spec.num_embeddings)
        # Empty texts are missing values; the last place is that of nulls.
        is_known = pc.greater(pc.binary_length(different), 0).to_numpy(zero_copy_only=False)
        of_places = np.append(np.where(is_known, ids, -1), -1)
        places = texts.indices if texts.indices.type == pa.int32() else texts.indices.cast(pa.int32())
        return Bags.optional(of_places[pc.fill_null(places, -1).to_numpy()])

    def texts(self, name: str, spec: TableSpec) -> list[list[str]]:
        """Return the texts of a feature whose IDs are their hashes, a list for each row."""
        values, lengths = self._values(name, spec)
        texts = iter(values.cast(pa.string()).to_pylist())
        return [[next(texts) for _ in range(length)] for length in lengths.tolist()]

    def _values(self, name: str, spec: TableSpec) -> tuple[pa.Array, Ints]:
        """Return all values of a column, and their number in each row."""
        array = plain(self._table.column(name))
        _warn_of_lists(array, name, spec)
        if spec.separator and is_text(array.type):
            array = split(array, spec.separator)
        elif not spec.strings and is_text(array.type):
            array = without_missing(array)
        if is_list(array.type):
            lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
            values = pc.list_flatten(array)
            if is_text(values.type) and not spec.strings:
                values = without_missing(values)
            if is_text(values.type) or is_bytes(values.type):
                return self._without_empty(values, lengths.astype(np.int64))
            is_kept = pc.invert(values.is_null(nan_is_null=True))
            return self._filtered(values, is_kept, lengths.astype(np.int64))
        lengths = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.drop_null()
        is_hashed = is_text(values.type) or is_bytes(values.type)
        return self._without_empty(values, lengths) if is_hashed else (values, lengths)

    def _without_empty(self, values: pa.Array, lengths: Ints) -> tuple[pa.Array, Ints]:
        """Drop empty texts, which are missing values."""
        is_kept = pc.fill_null(pc.greater(pc.binary_length(values), 0), fill_value=False)
        return self._filtered(values, is_kept, lengths)

    @staticmethod
    def _filtered(values: pa.Array, is_kept: pa.Array, lengths: Ints) -> tuple[pa.Array, Ints]:
        """Return the kept values, and their number in each row."""
        if pc.all(is_kept).as_py() is not False:
            return values, lengths
        owners = np.repeat(np.arange(len(lengths)), lengths)
        kept = np.bincount(owners[is_kept.to_numpy(zero_copy_only=False)], minlength=len(lengths))
        return values.filter(is_kept), kept.astype(np.int64)

    @staticmethod
    def _hashed(values: pa.Array) -> Ints:
        """Return the texts' IDs."""
        if not (is_text(values.type) or is_bytes(values.type)):
            values = values.cast(pa.string())
        return hash_texts(values.cast(pa.large_binary()).to_pylist())

    def _whole(self, values: pa.Array, name: str, owners: Ints) -> Ints:
        self._expect_no_bytes(values, name)
        ids = ids_of(values)
        if isinstance(ids, OddValue):
            odd = ids.position
            raise self._wrong(int(owners[odd]), name, repr(str(values[odd]))[:60], ids.expected)
        return ids

    def numbers(self, name: str, decimal: str = ".") -> NDArray[np.float64]:
        """Return a column of numbers, NaN for missing ones. ``decimal``: what is before the decimals of texts."""
        array = plain(self._table.column(name))
        self._expect_no_bytes(array, name)
        if is_text(array.type):
            parsed = numbers_of(array, decimal)
            if isinstance(parsed, OddValue):
                raise self._wrong(
                    parsed.position, name, repr(str(array[parsed.position]))[:60], parsed.expected
                )
            array = parsed
        numbers: NDArray[np.float64] = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return numbers

    def expect_at_most(self, most: int, name: str, lengths: Ints, expected: str) -> None:
        """Raise for the first row that has more values of a feature than ``most``."""
        bad = np.flatnonzero(lengths > most)
        if len(bad):
            raise self._wrong(int(bad[0]), name, f"{lengths[bad[0]]} values", expected)

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


def date_parts(dates: pa.Array, part: str) -> Ints:
    """Return a part of each date, one of ``recsys.inputs.columns.DATE_PARTS``; -1 for missing dates."""
    found = pc.hour(dates) if part == "hour" else pc.day_of_week(dates)
    parts: Ints = pc.fill_null(found, -1).to_numpy(zero_copy_only=False)
    return parts


def _starts_with_number(texts: pa.Array) -> bool:
    """Return whether the first text that is not missing is a number."""
    first = without_missing(texts).drop_null()[:1]
    return len(first) == 1 and cast_or_none(first, pa.float64()) is not None


#: The number of first texts that are looked at; more than a share of them must be lists.
NUM_TEXTS = 256
_SHARE = 0.5
_SEPARATORS = r"[|;,]"


def _warn_of_lists(array: pa.Array, name: str, spec: TableSpec) -> None:
    """Warn of texts that look like lists and are read as one value each, and of lists where a separator is for texts.

    Args:
        array: The column, of a plain type.
        name: Its name.
        spec: The table that its values are looked up in.
    """
    if is_list(array.type) and spec.separator:
        _warn(
            f"column {name!r}: got lists, expected texts with separator = {spec.separator!r}; the values of the "
            "lists are not split"
        )
    elif is_text(array.type) and spec.strings and not spec.separator:
        texts = array[:NUM_TEXTS].drop_null()
        is_separated = pc.match_substring_regex(texts, _SEPARATORS)
        # MEAN is the pooling of lists.
        is_list_text = is_separated if spec.pooling == "MEAN" else pc.and_(is_separated, are_bracketed(texts))
        if (pc.sum(is_list_text).as_py() or 0) > _SHARE * len(texts):
            example = str(texts.filter(is_list_text)[0])[:40]
            _warn(
                f"column {name!r}: got texts such as {example!r}, each of which is read as one value; if they are "
                "lists, a schema's separator splits them"
            )


def _warn(text: str) -> None:
    warnings.warn(text, DataWarning, stacklevel=2)
