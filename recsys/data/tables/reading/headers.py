"""The columns of a text file by its first row: names, or a published file without a header."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from recsys.data.lines import DataError, shown_names

_SEPARATORS = ",\t;|"
_RATING = ("userId", "movieId", "rating", "timestamp")
_NUMBERS, _CATEGORIES = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]


@dataclass(frozen=True, kw_only=True)
class Header:
    """The columns of a file.

    Attributes:
        names: The columns' names; empty texts are fields that hold nothing.
        separator: One character.
        num_bytes: The size of the header with its line end; 0 if there is none.
        kinds: What the header says of columns, by name: RecBole's ``token``, ``token_seq``, ``float``, ``float_seq``.
    """

    names: Sequence[str]
    separator: str
    num_bytes: int = 0
    kinds: dict[str, str] = field(default_factory=dict)


# Published files without a header line, by what their first line looks like.
_PUBLISHED = {
    # Criteo's display advertising challenge (train.txt) and terabyte logs (day_0).
    re.compile(r"[01](\t-?\d*){13}(\t([0-9a-f]{8})?){26}"): Header(
        names=("label", *_NUMBERS, *_CATEGORIES), separator="\t"
    ),
    # Criteo's test.txt, which has no labels.
    re.compile(r"-?\d*(\t-?\d*){12}(\t([0-9a-f]{8})?){26}"): Header(
        names=(*_NUMBERS, *_CATEGORIES), separator="\t"
    ),
    # MovieLens-100k's u.data.
    re.compile(r"\d+\t\d+\t[1-5]\t\d{9,10}"): Header(names=_RATING, separator="\t"),
    # MovieLens-1M's and -10M's ratings.dat; two colons enclose an empty field.
    re.compile(r"\d+::\d+::[0-5](\.5)?::\d{9,10}"): Header(
        names=[part for name in _RATING for part in (name, "")][:-1], separator=":"
    ),
    # Taobao's UserBehavior.csv.
    re.compile(r"\d+,\d+,\d+,(pv|buy|cart|fav),\d{9,10}"): Header(
        names=("user_id", "item_id", "category_id", "behavior", "timestamp"), separator=","
    ),
    # Ali-CCP's sample_skeleton_*.csv: lists of field, feature and value. The users' features lie in another file.
    re.compile(r"\d+,[01],[01],[^,\x01-\x03]+,\d+,[^,]*\x02[^,]*\x03[^,]*"): Header(
        names=("sample_id", "click", "conversion", "common_feature_index", "num_features", "features"),
        separator=",",
    ),
    # Amazon's ratings of 2018: product, reviewer, stars, time.
    re.compile(r"[A-Z0-9]{10},[A-Z0-9]{11,},[1-5]\.0,\d{9,10}"): Header(
        names=("item_id", "user_id", "rating", "timestamp"), separator=","
    ),
    # Amazon's ratings_*.csv: reviewer, product, stars, time.
    re.compile(r"[A-Z0-9]{8,},[A-Z0-9]{10},[1-5]\.0,\d{9,10}"): Header(
        names=("user_id", "item_id", "rating", "timestamp"), separator=","
    ),
}
_TYPED = re.compile(r"(.+):(token|token_seq|float|float_seq)")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")
_NUMBER = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
# Rows of features with their names or numbers, which have no columns.
_SPARSE_FORMS = {
    re.compile(rf"{_NUMBER}([ \t,]+\d+:\d+:{_NUMBER})+\s*"): "libFFM (label field:feature:value …)",
    re.compile(rf"{_NUMBER}([ \t]+(qid:)?\d+:{_NUMBER})+\s*(#.*)?"): "libsvm (label feature:value …)",
    re.compile(rf"[^\s:,]+:{_NUMBER}([ \t]+[^\s:,]+:{_NUMBER}){{2,}}\s*"): "slots (name:value name:value …)",
}


def read_header(row: bytes, suffix: str, name: str) -> Header:
    """Return the columns by a file's first row.

    Args:
        row: The row with its line end. Quoted names may have line ends, which become blanks.
        suffix: The separator that the file's name says; empty if it says none.
        name: The file, for messages.

    Raises:
        DataError: It is not a row of names.
    """
    if not row:
        raise DataError(f"{name}: got an empty file, expected a line with the columns' names")
    place = f"{name}, line 1"
    try:
        line = row.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 text ({error.reason})") from None
    if not line.strip():
        raise DataError(f"{place}: got an empty line, expected the columns' names")
    for pattern, header in _PUBLISHED.items():
        if pattern.fullmatch(line):
            return header
    if line.startswith("["):
        raise DataError(f"{place}: got a list of JSON, expected an object a line (jq -c '.[]' makes them)")
    for pattern, form in _SPARSE_FORMS.items():
        if pattern.fullmatch(line):
            raise DataError(
                f"{place}: got rows of {form}, expected columns: a line with their names, then a value each"
            )
    separator = suffix or separator_of(line)
    names, kinds = _names(line, separator, place)
    return Header(names=names, separator=separator, num_bytes=len(row), kinds=kinds)


def separator_of(line: str) -> str:
    """Return the separator that a line has most of outside of quotes."""
    outside = re.sub(r'"[^"]*"?', "", line)
    return max(_SEPARATORS, key=outside.count)


def _names(line: str, separator: str, place: str) -> tuple[list[str], dict[str, str]]:
    try:
        (fields,) = csv.reader([line], delimiter=separator)
    except (csv.Error, ValueError):
        raise DataError(f"{place}: the names of the columns cannot be read as CSV") from None
    # As names within one line, which options and files of settings can say.
    names = [" ".join(name.split()) if "\n" in name or "\r" in name else name.strip() for name in fields]
    typed = [_TYPED.fullmatch(name) for name in names]
    kinds = {match[1]: match[2] for match in typed if match} if all(typed) else {}
    names = list(kinds) if len(kinds) == len(names) else names
    num_numbers = sum(map(_is_number, names))
    doubled = [name for name, count in Counter(names).items() if count > 1]
    # Numbers in their order are names, as pandas writes them beside others.
    if (
        num_numbers == len(names)
        or "" in doubled
        or any(_CONTROL.search(name) for name in names)
        or (2 * num_numbers > len(names) and not _are_counted(names))
    ):
        raise DataError(
            f"{place}: got {separator.join(names)[:60]!r}, which looks like data, expected a line with the columns' "
            "names"
        )
    if doubled:
        raise DataError(f"{place}: column {shown_names(doubled[:1])} is named more than once")
    return names, kinds


def _are_counted(names: Sequence[str]) -> bool:
    """Return whether those of the names that are numbers go up by one."""
    numbers = [name for name in names if _is_number(name)]
    return all(name.isdecimal() for name in numbers) and all(
        int(b) == int(a) + 1 for a, b in pairwise(numbers)
    )


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name == ""
    return True
