"""A column of the sample: what its values are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.labels import word_labels
from recsys.data.tables.columns import date_parts
from recsys.data.tables.infer.dates import Dates, dates_of
from recsys.data.tables.infer.kinds import HEAD, has_codes, has_digits, kind_of_ids, odd_entry, separator_of
from recsys.data.tables.values.arrow_types import is_bytes, is_date, is_list, is_number, is_text, why_unread
from recsys.data.tables.values.cells import split
from recsys.data.tables.values.conversions import OddValue, numbers_of
from recsys.inputs.columns import DATE_PARTS

_TIMES = re.compile(
    r"(event_|unix_|request_|click_|log_|server_|view_|review_|unix_review_|impression_|rating_)?"
    r"(time|timestamp|ts|datetime|time_stamp)(_?(ms|us|ns|s|sec|seconds|utc))?|date|date_time|hour|day|dt"
)
#: Why texts and IDs that occur once are not a feature.
DIFFERENT = "different in every row"
_MOST_WORDS = 20
_DAYS_PER_YEAR = 366
_TYPE_WIDTH = 40


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


class Column:
    """A column of the sample."""

    def __init__(self, name: str, array: pa.Array) -> None:
        self.name = name
        self.array = array
        self.low = _snake(name)
        self.is_list = is_list(array.type)
        self.unread = why_unread(array.type)
        values = array.flatten() if self.is_list else array
        self.is_text = is_text(values.type)
        if self.is_text or is_bytes(values.type):
            values = values.drop_null()
            if len(values) and not pc.min(pc.binary_length(values)).as_py():
                values = values.filter(pc.greater(pc.binary_length(values), 0))
        if self.is_list and pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        self.values = pa.nulls(0) if self.unread else values.drop_null()
        self.different = self.values.unique()
        self.num_values = len(self.different)
        self._odd_numbers = ""
        self.numbers = self._as_numbers()
        self.date_form = self._as_dates()
        self.dates = self.date_form.moments

    def _as_numbers(self) -> NDArray[np.float64] | None:
        """Return the values as numbers, without missing ones; None if they are texts."""
        if self.is_list or not (self.is_text or is_number(self.values.type)):
            return None
        numbers = self.values
        # Most texts are not numbers, as the first of them show.
        for part in (self.values[:HEAD], self.values) if self.is_text else ():
            numbers = OddValue(position=0, expected="no code") if has_codes(part) else numbers_of(part)
            if isinstance(numbers, OddValue):
                return None
        numbers = numbers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        is_finite = np.isfinite(numbers)
        odd = np.flatnonzero(~is_finite)
        if len(odd):
            self._odd_numbers = f"{len(odd)} missing, such as {str(self.values[int(odd[0])])[:24]!r}"
        numbers = numbers[is_finite]
        return numbers if len(numbers) else None

    def _as_dates(self) -> Dates:
        is_readable = self.is_text or is_date(self.array.type) or self.numbers is not None
        return Dates() if self.is_list or not is_readable else dates_of(self.array, self.low, self.numbers)

    @cached_property
    def date_parts(self) -> tuple[str, ...]:
        """The parts of the dates that differ between rows."""
        if self.dates is None:
            return ()
        dates = self.dates.drop_null()
        return tuple(part for part in DATE_PARTS if len(np.unique(date_parts(dates, part))) > 1)

    @property
    def num_missing(self) -> int:
        """Rows without a value."""
        if self.numbers is not None:
            return len(self.array) - len(self.numbers)
        counts_nulls = self.is_list or self.unread
        return int(self.array.null_count) if counts_nulls else len(self.array) - len(self.values)

    @cached_property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return self.numbers is not None and bool((self.numbers == np.floor(self.numbers)).all())

    @cached_property
    def is_truth(self) -> bool:
        """Whether the values are true and false."""
        return pa.types.is_boolean(self.array.type) or (
            self.is_text and self.numbers is not None and not has_digits(self.different)
        )

    @cached_property
    def is_binary(self) -> bool:
        """Whether all values are 0 or 1, or words for them."""
        if self.is_list or not 0 < self.num_values <= _MOST_WORDS:
            return False
        numbers = word_labels(self.values) if self.is_text else self.numbers
        return numbers is not None and bool(np.isin(numbers, (0.0, 1.0)).all())

    @cached_property
    def separator(self) -> str:
        """What separates several values in a text; empty if each text is one value."""
        if not self.is_text or self.is_list or self.numbers is not None or self.dates is not None:
            return ""
        return separator_of(self.values, self.num_values)

    def find_lists(self) -> None:
        """Find what separates values, and what they are as IDs, now and not when it is first read."""
        if self.dates is None:
            _ = self.ids

    @cached_property
    def items(self) -> pa.Array:
        """The different values, of lists in texts too; none is missing."""
        if not self.separator:
            return self.different
        items = pc.list_flatten(split(self.different, self.separator)).unique()
        return items.filter(pc.greater(pc.binary_length(items), 0))

    @cached_property
    def ids(self) -> str:
        """What the values are as IDs, see ``kind_of_ids``."""
        if self.numbers is not None and not self.is_whole:
            return "fractions"
        return kind_of_ids(self.items)

    def is_time(self) -> bool:
        """Return whether it is named as the time of the rows, and at least half of them have one."""
        if not _TIMES.fullmatch(self.low):
            return False
        if self.dates is not None:
            return bool(self.dates.null_count * 2 <= len(self.dates))
        # Numbers that count from another day than one of 1970 still order the rows.
        return (
            self.numbers is not None
            and len(self.numbers) * 2 >= len(self.array)
            and float(self.numbers.max()) > _DAYS_PER_YEAR
        )

    def report(self, use: str, reason: str) -> ColumnReport:
        """Return what was found."""
        if self.unread:
            kind = str(self.array.type)[:_TYPE_WIDTH]
        elif self.is_list:
            kind = "lists of texts" if self.is_text else "lists of numbers"
        elif self.dates is not None:
            kind = "dates"
        elif self.numbers is None:
            kind = "texts" if self.is_text else "bytes"
            kind += f" separated by {self.separator!r}" if self.separator else ""
        elif self.is_truth:
            kind = "true and false"
        else:
            kind = "whole numbers" if self.is_whole else "numbers"
        example = "" if not len(self.values) else str(self.array.drop_null()[0])[:24]
        note = self.note(use, reason)
        return ColumnReport(
            name=self.name,
            use=use,
            kind=kind,
            num_values=self.num_values,
            missing=self.num_missing / len(self.array),
            example=example,
            reason=f"{reason}; {note}" if note else reason,
        )

    @cached_property
    def _odd_entry(self) -> str:
        return odd_entry(self.values)

    def note(self, use: str, reason: str) -> str:
        """Return which entries are missing numbers, or made texts of a column, or how lists were found."""
        if self.numbers is not None:
            return self._odd_numbers if use != "sparse" or self.ids == "whole" else ""
        if (use != "sparse" and reason != DIFFERENT) or not self.is_text or self.is_list:
            return ""
        return f"such as {str(self.values[0])[:24]!r}" if self.separator else self._odd_entry


def _snake(name: str) -> str:
    """Return a name in lower case, with underscores between words: ``userId`` and ``user.ID`` become ``user_id``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(r"^\W+|\W+$", "", name))
    return re.sub(r"\W+", "_", words).lower()
