"""Columns of dates in the sample, and how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.tables.split import digits_of
from recsys.data.tables.values.arrow_types import is_text
from recsys.data.tables.values.conversions import MISSING_NUMBERS, without_missing
from recsys.data.tables.values.moments import moments_of, seconds_of, unit_of

_NAMED = re.compile(
    r"(.*_)?(time|timestamp|timestamps|time_stamp|ts|date|datetime|dt|day|hour)(_?(ms|us|ns|s|sec|seconds|utc|gmt))?|"
    r"(.*_)?(at|on)|(unix|epoch)_.*"
)
# Names of dates that other numbers have too.
_MAYBE = re.compile(
    r"(.*_)?(login|sign_?up|registered|registration|created|updated|modified|published|released|birthday|dob|seen|"
    r"joined|expires|expiry|since|until|start|end)"
)
_DAYS = (
    *(
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%d-%m-%Y",
        "%m-%d-%Y",
        "%d.%m.%Y",
        "%Y/%m/%d",
        "%Y.%m.%d",
        "%Y-%m-%d",
        "%Y%m%d",
    ),
    *(
        "%d/%m/%y",
        "%m/%d/%y",
        "%d.%m.%y",
        "%d %b %Y",
        "%d-%b-%Y",
        "%d/%b/%Y",
        "%d-%b-%y",
        "%b %d, %Y",
        "%b %d %Y",
    ),
    *("%m %d, %Y", "%a, %d %b %Y", "%a %b %d %Y", "%A, %d %B %Y"),
)
_OTHERS = (
    "%Y%m%d%H",
    "%Y%m%d%H%M%S",
    "%Y%m%dT%H%M%S",
    "%a %b %d %H:%M:%S %Y",
    "%Y-%m-%d-%H",
    "%Y-%m-%d %H.%M.%S",
)
_CLOCK = re.compile(r"(T|, | |:)\d{1,2}:\d\d(:\d\d)?([.,]\d+)?( ?[AaPp][Mm])?( ?(Z|UTC|GMT|[+-]00:?00))?\s*$")
_LOOKS_LIKE_A_DATE = re.compile(
    r"\s*([A-Za-z]{3,9},? )?(\d{1,4}\W|\d{1,2} ?[A-Za-z]{3}|[A-Za-z]{3,9} \d).{0,30}|\d{8,14}"
)
# ISO dates and numbers since 1970 begin without letters.
_WORD = re.compile(r"[^\W\d_eE]")
_LEAST_DATE = 8
_FEW = 100
# The right order of day and month gives days that lie this much closer together.
_CLOSER = 2.0


@dataclass(frozen=True, kw_only=True)
class Dates:
    """What a column's values are as dates.

    Attributes:
        moments: Timestamps ``[N]``, null for missing ones; None if the values are not dates.
        form: Their format, see ``moments_of``.
        note: How they are read, or why they are not dates; empty if that is plain.
        is_unclear: Whether they are dates in one of two formats.
    """

    moments: pa.Array | None = None
    form: str = ""
    note: str = ""
    is_unclear: bool = False


def is_named_as_date(name: str) -> bool:
    """Return whether a name in lower case is that of a time or a date."""
    return bool(_NAMED.fullmatch(name))


def dates_of(array: pa.Array, name: str, numbers: NDArray[np.float64] | None) -> Dates:
    """Return a column's values as dates.

    Numbers are dates where the column's name says so.

    Args:
        array: The column, ``[N]``.
        name: Its name in lower case.
        numbers: Its values that are not missing if they are numbers; else None.
    """
    if numbers is not None and (is_named_as_date(name) or _MAYBE.fullmatch(name)):
        found = _of_numbers(array, name, numbers)
        return Dates() if found.moments is None and not is_named_as_date(name) else found
    if numbers is not None:
        return Dates()
    if is_text(array.type) and not is_named_as_date(name) and not _may_begin_dates(array):
        return Dates()
    moments = moments_of(array) if moments_of(array[:_FEW]) is not None else None
    if moments is not None:
        return Dates(moments=moments) if moments.null_count < len(moments) else Dates()
    return _of_texts(array, name) if is_text(array.type) else Dates()


def _may_begin_dates(texts: pa.Array) -> bool:
    """Return whether the first text looks like a date, which takes less than to parse some."""
    known = (
        text for text in texts[:_FEW].to_pylist() if text and text.strip().lower() not in MISSING_NUMBERS
    )
    first = next(known, None)
    if first is None or _LOOKS_LIKE_A_DATE.fullmatch(first):
        return True
    return not _WORD.search(first.strip()[:_LEAST_DATE])


def _of_numbers(array: pa.Array, name: str, numbers: NDArray[np.float64]) -> Dates:
    known = numbers[numbers > 0]
    if len(known) and (known == np.floor(known)).all() and known.max() < 1e15:
        first = "%y%m%d%H" if name.endswith("hour") else ""
        some = np.unique(known)[:_FEW].astype(np.int64)
        form = digits_of(pa.array(some), first)
        moments = moments_of(array, form) if form else None
        if moments is not None:
            return Dates(moments=moments, form=form, note=f"read as {form}")
    units = {unit_of(number) for number in (known.min(), known.max())} if len(known) else {""}
    moments = None if "" in units else moments_of(array)
    if moments is not None:
        return Dates(moments=moments, note=f"{' and '.join(sorted(units))} since 1970")
    return Dates(
        note=f"not dates: {numbers.min():.15g} to {numbers.max():.15g} are outside of the years 1980 to 2100"
    )


def _of_texts(array: pa.Array, name: str) -> Dates:
    few = without_missing(array.drop_null()[:_FEW]).drop_null().unique()
    if not len(few):
        return Dates()
    is_named = is_named_as_date(name)
    if not (is_named or _LOOKS_LIKE_A_DATE.fullmatch(few[0].as_py())):
        return Dates()
    found: dict[str, pa.Array] = {}
    for form in _forms(few[0].as_py()):
        moments = moments_of(array, form) if moments_of(few, form) is not None else None
        if moments is not None:
            found[form] = moments
    if not found:
        return Dates(note=_odd_text(array, few) if is_named else "")
    forms = list(found)
    if len(forms) == 1 or bool(pc.all(pc.equal(found[forms[0]], found[forms[1]])).as_py()):
        return Dates(moments=found[forms[0]], form=forms[0], note=f"read as {forms[0]}")
    best = _closer(found, forms)
    if best:
        other = forms[1 - forms.index(best)]
        return Dates(
            moments=found[best], form=best, note=f"read as {best}: as {other}, days would lie far apart"
        )
    note = f"dates, of which {few[0].as_py()!r} may be {forms[0]} or {forms[1]}: a schema's format says which"
    return Dates(note=note, is_unclear=True)


def _forms(text: str) -> list[str]:
    """Return the formats that a text may have: those of days, with the text's time of day."""
    clock = _CLOCK.search(text)
    suffix = ""
    if clock is not None:
        join, seconds, _, half, *_ = clock.groups()
        suffix = join + ("%I:%M" if half else "%H:%M") + (":%S" if seconds else "")
        suffix += "" if not half else " %p" if half[0] == " " else "%p"
    return [*(day + suffix for day in _DAYS), *_OTHERS]


def _closer(found: dict[str, pa.Array], forms: list[str]) -> str:
    """Return the format that puts the days closer together; empty if neither clearly does."""
    if "%H" not in forms[0] and "%I" not in forms[0]:
        return ""
    spans = [float(np.ptp(seconds_of(found[form].drop_null()))) for form in forms[:2]]
    if max(spans) < _CLOSER * max(min(spans), 1.0):
        return ""
    return forms[int(np.argmin(spans))]


def _odd_text(array: pa.Array, few: pa.Array) -> str:
    """Return the first text that is not written as most of the first ones are, as a note."""
    texts = without_missing(array).drop_null()
    forms = _forms(few[0].as_py())
    parsed = {form: pc.strptime(few, format=form, unit="s", error_is_null=True) for form in forms}
    best = min(parsed, key=lambda form: parsed[form].null_count)
    odd = pc.index(pc.strptime(texts, format=best, unit="s", error_is_null=True).is_valid(), value=False)
    return f"{texts[max(odd.as_py(), 0)].as_py()[:40]!r} is not a date in a known format"
