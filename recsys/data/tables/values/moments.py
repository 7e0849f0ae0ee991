"""Moments in time: timestamps, texts of dates, and numbers that count from 1970, all as timestamps.

Shape letters: N number of values.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.tables.values.arrow_types import is_number, is_text
from recsys.data.tables.values.conversions import cast_or_none, without_missing

#: Units of numbers that count from 1970: their names, and how many make a second.
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
#: What dates may be, for messages.
DATES = "a date as 2026-01-31 or 2026-01-31 12:00:00, or seconds, milli-, micro- or nanoseconds since 1970"
_MICROSECONDS = pa.timestamp("us")
_ZONED = pa.timestamp("us", "UTC")
# The years 1980 to 2100 in seconds: a number that is such a time in one unit is none in another.
_FIRST, _LAST = 315_532_800, 4_102_444_800
_YEARS = (1900, 2200)
_FIRST_VALUES = 64
_ZERO_DATE = r"^(0000.00.00|00.00.0000|0001-01-01)\b.*$"


def unit_of(number: float) -> str:
    """Return the unit in which a number counts from 1970 to a day from 1980 to 2100; empty if there is none."""
    return next((unit for unit, per in UNITS.items() if _FIRST * per <= number < _LAST * per), "")


def unit_start(per_second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the first day in units that ``unit_of`` knows; ``per_second`` is how many make a second."""
    return _FIRST * per_second


def moments_of(array: pa.Array, form: str = "") -> pa.Array | None:
    """Return moments as timestamps without a zone, in UTC where they have one; null for missing ones.

    Args:
        array: Timestamps, dates, texts or numbers, ``[N]``.
        form: The format of the texts or whole numbers, as ``strptime`` takes it; empty for dates with the year
            first (ISO 8601) and numbers since 1970, whose unit follows from their size.

    Returns:
        The timestamps; None if a value is something else.
    """
    if form:
        return _parsed(_digits(array), form)
    if is_number(array.type):
        return _since_1970(array)
    if not is_text(array.type):
        return _timestamps(array)
    texts = without_missing(array)
    dates = _timestamps(texts)
    if dates is not None or _timestamps(_usual(texts[:_FIRST_VALUES])) is not None:
        return dates if dates is not None else _timestamps(_usual(texts))
    numbers = cast_or_none(texts, pa.float64())
    return None if numbers is None else _since_1970(numbers)


def seconds_of(moments: pa.Array) -> NDArray[np.float64]:
    """Return timestamps as seconds since 1970, NaN for missing ones."""
    counts: NDArray[np.float64] = (
        moments.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    )
    return counts / 1e6


def _timestamps(array: pa.Array) -> pa.Array | None:
    for kind in (_MICROSECONDS, _ZONED):
        dates = cast_or_none(array, kind, safe=is_text(array.type))
        if dates is not None:
            return dates.cast(_MICROSECONDS)
    return None


def _usual(texts: pa.Array) -> pa.Array:
    """Return texts of dates without blanks around them and before zones, and nanoseconds; null for zero dates."""
    texts = pc.utf8_trim_whitespace(texts)
    is_zero = pc.match_substring_regex(texts, _ZERO_DATE)
    texts = pc.if_else(is_zero, pa.scalar(None, texts.type), texts)
    texts = pc.replace_substring_regex(texts, r" ?(UTC|GMT)$", "Z")
    texts = pc.replace_substring_regex(texts, r"(:\d\d(?:\.\d+)?) ([+-]\d\d(?::?\d\d)?)$", r"\1\2")
    return pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")


def _digits(array: pa.Array) -> pa.Array:
    """Return whole numbers as texts."""
    if is_number(array.type):
        whole = cast_or_none(array, pa.int64())
        return (array if whole is None else whole).cast(pa.string())
    return pc.replace_substring_regex(array, r"^(\d+)\.0$", r"\1")


def _parsed(texts: pa.Array, form: str) -> pa.Array | None:
    texts = _usual(without_missing(texts))
    texts = pc.replace_substring_regex(texts, r"(:\d\d)[.,]\d+", r"\1")
    texts = pc.replace_substring_regex(texts, r" ?(Z|[+-]00:?00)$", "")
    dates = pc.strptime(texts, format=form, unit="us", error_is_null=True)
    if dates.null_count > texts.null_count:
        return None
    years = pc.min_max(pc.year(dates)).as_py()
    is_good = years["min"] is None or (_YEARS[0] <= years["min"] and years["max"] <= _YEARS[1])
    return dates if is_good and _are_written_so(dates, texts, form) else None


def _are_written_so(dates: pa.Array, texts: pa.Array, form: str) -> bool:
    """Return whether dates are those of the texts, where Arrow takes the 31st of February for the 3rd of March."""
    if re.search("%[aAbBpIZz]", form):
        return True  # names of days and months have several forms
    again = pc.strftime(dates.cast(pa.timestamp("s")), format=form)
    same = [
        pc.replace_substring_regex(pc.utf8_trim_whitespace(part), r"\b0+(\d)", r"\1")
        for part in (again, texts)
    ]
    return pc.all(pc.equal(*same)).as_py() is not False


def _since_1970(array: pa.Array) -> pa.Array | None:
    """Return numbers since 1970 as timestamps, null for those of at most 0."""
    numbers = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    is_missing = np.isnan(numbers) | (numbers <= 0)
    counts = np.zeros(len(numbers))
    is_known = is_missing.copy()
    for per in UNITS.values():
        of_unit = (numbers >= _FIRST * per) & (numbers < _LAST * per)
        counts[of_unit] = numbers[of_unit] / per * 1e6
        is_known |= of_unit
    if not is_known.all():
        return None
    return pa.array(counts.astype(np.int64), pa.int64(), mask=is_missing).cast(_MICROSECONDS)
