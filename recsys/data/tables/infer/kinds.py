"""What the values of a column are: IDs, texts, or lists in texts; and the entries that make them so."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.tables.values.arrow_types import is_bytes, is_text
from recsys.data.tables.values.cells import are_bracketed, split
from recsys.data.tables.values.conversions import OddValue, are_numbers, ids_of, numbers_of, without_missing

_SEPARATORS = "\x01|;,"
# A text is a list where this share of a column's texts is within brackets, or has a separator.
_MOST_BRACKETED = 0.95
_SEPARATED = 0.05
# A code and not a number, which would lose the zeros: "05db9164", "007".
_CODE = r"^0\d"
# One pattern for most IDs.
_PLAIN_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
# "12,5" and "1,234" are numbers of other countries as well as lists of two.
_COMMA_NUMBER = (
    r"^\s*[-+]?[$£€¥]?(\d+,\d+|\d{1,3}(,\d{3})+|\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3})+|\d+)( ?[$£€¥%])?\s*$"
)
# "{'a': 1}", "{"a": 1}", DuckDB's and Spark's "{a=1}".
_PADDED = r"""(?s)^\s.*\S|\S.*\s$|^'.*'$|^".*"$"""
_OBJECT = r"(?s)^\s*\{\s*(['\"][^'\"]*['\"]\s*:|\w+\s*[=:]).*\}\s*$"
_AMOUNT = r"[$£€¥]|\d,\d"
_WITH_UNIT = r"^\s*[-+]?\d[\d.,]*\s?([^\d\s.,|;-]{1,4})\s*$"
# Thousands behind blanks or apostrophes, minus signs of print, amounts in brackets.
_NUMBER_LIKE = r"^[-+\x{2212}(\s]*\d{1,3}([.,'\x{2019}\s\x{a0}\x{202f}]?\d{3})*([.,]\d+)?\)?\s*$"
# Further separators, which only a schema names.
_OTHER_SEPARATORS = "\t^#~&\x02\x03"
_SPACED_NUMBER = r"^[-+]?\d{1,3}( \d{3})*$"
_SPACED_IDS = r"^-?\d+( +-?\d+)*$"
# Codes with a digit each, such as products' in a history: "B07X C9Q1". Words have none.
_SPACED_CODES = r"^[\w-]*\d[\w-]*( +[\w-]*\d[\w-]*)*$"
# What programs write for missing values, which may be names too.
_MARKS = ("na", "n/a", "<na>", "#n/a", "null", "(null)", "<null>", "nil", "nan", "none")
_NOT_A_NUMBER = "is not a number"
#: Patterns are tried on this many texts before all.
HEAD = 256
# Shares are measured on this many texts.
_SOME = 10_000
_PROSE_BLANKS, _PROSE_LETTERS = 3, 20
# A column is of the kind that more than this share of its texts have; the others are named.
_MOSTLY = 0.5


def has_codes(texts: pa.Array) -> bool:
    """Return whether a text has a zero in front, which a number would lose."""
    return _any(texts.filter(pc.starts_with(texts, "0")), _CODE)


def has_digits(texts: pa.Array) -> bool:
    """Return whether a text has a digit in it."""
    return any(_any(part, r"\d") for part in (texts[:HEAD], texts))


def are_prose(texts: pa.Array) -> bool:
    """Return whether most texts are sentences: several words, and more letters than names have."""
    some = texts[:HEAD]
    words = pc.count_substring_regex(some, r"\S\s+\S")
    is_prose = pc.and_(
        pc.greater_equal(words, _PROSE_BLANKS), pc.greater_equal(pc.utf8_length(some), _PROSE_LETTERS)
    )
    return _share(is_prose) > _MOSTLY


def separator_of(texts: pa.Array, num_different: int) -> str:
    """Return what separates the values of lists in texts; empty if each text is one value.

    Args:
        texts: The texts.
        num_different: The number of different ones.
    """
    if not len(texts):
        return ""
    some = texts[:_SOME]
    if _share(pc.match_substring_regex(texts[:HEAD], _OBJECT)) > _MOSTLY:
        return ""
    if _share(are_bracketed(texts[:HEAD])) > _MOSTLY and _share(are_bracketed(some)) >= _MOST_BRACKETED:
        return _separator_in_brackets(some)
    for separator in _within(some, _SEPARATORS):
        if (
            _share(pc.match_substring(some, separator)) > _SEPARATED
            and not (separator == "," and are_comma_numbers(texts))
            and _recur(texts, separator, num_different)
        ):
            return separator
    is_spaced = _share(pc.match_substring(some, " ")) > _SEPARATED
    if (
        is_spaced
        and (_all(texts, _SPACED_IDS) or _all(texts, _SPACED_CODES))
        and not _all(texts, _SPACED_NUMBER)
        and _recur(texts, " ", num_different)
    ):
        return " "
    return ""


def _separator_in_brackets(texts: pa.Array) -> str:
    shares = {separator: _share(pc.match_substring(texts, separator)) for separator in ",;|"}
    best = max(shares, key=lambda separator: shares[separator])
    if shares[best]:
        return best
    # NumPy writes arrays with blanks.
    if _share(pc.match_substring_regex(texts, r"[^\s\[{(]\s+[^\s\]})]")):
        return " "
    return "," if _all(texts, r"^\s*\[") else ""  # other brackets around one value may be part of it


def _recur(texts: pa.Array, separator: str, num_different: int) -> bool:
    """Return whether parts of texts recur and differ in number; a text with a comma in it is one value."""
    lists = split(texts, separator)
    has_lengths = len(pc.list_value_length(lists).unique()) > 1
    return has_lengths and len(pc.list_flatten(lists).unique()) <= num_different


def are_comma_numbers(texts: pa.Array) -> bool:
    """Return whether texts are numbers whose commas may be decimal ones, or missing."""
    return all(_all(without_missing(part).drop_null(), _COMMA_NUMBER) for part in (texts[:HEAD], texts))


_TRUTH = r"(?i)^\s*(true|false)\s*$"


def kind_of_ids(values: pa.Array) -> str:
    """Return what different values without nulls are as IDs.

    ``whole``: whole numbers of 64 bits. ``texts``: texts or bytes. ``beyond``: whole numbers of more bits, which are
    hashed as texts. ``amounts``: whole numbers with signs of currencies or commas. ``rounded``: whole numbers that lost
    digits. ``signed``: whole numbers of which some have a plus in front, as telephone numbers. ``fractions``: other
    numbers.
    """
    if is_bytes(values.type):
        return "texts"
    if is_text(values.type):
        if _all(values, _PLAIN_WHOLE):
            return "whole"
        if _all(values[:HEAD], _TRUTH) and _all(values, _TRUTH):
            return "texts"
        for part in (values[:HEAD], values):
            if has_codes(part) or not pc.all(are_numbers(part)).as_py():
                return "texts"
        values = without_missing(values).drop_null()
    if not isinstance(ids_of(values), OddValue):
        return "whole"
    has_signs = False
    if is_text(values.type):
        if _all(values, r"^\s*-?\d+\s*$"):
            return "beyond"
        if _all(values, r"^\s*[-+]?\d+\s*$"):
            return "signed"
        has_signs = _any(values, _AMOUNT)
        values = numbers_of(values)
    if not pa.types.is_floating(values.type):
        return "beyond" if _all(values.cast(pa.string()), r"^-?\d+$") else "fractions"
    numbers = values.to_numpy(zero_copy_only=False)
    if not (numbers == np.floor(numbers)).all():
        return "fractions"
    return "amounts" if has_signs else "rounded"


def odd_texts(texts: pa.Array) -> tuple[str, int] | None:
    """Return the first text that is not a number, and how many there are, where most texts are numbers."""
    if _share(are_numbers(texts[:HEAD])) < _MOSTLY:
        return None
    is_number = are_numbers(texts)
    if not _MOSTLY <= _share(is_number) < 1:
        return None
    odd = pc.index(is_number, False).as_py()
    return str(texts[odd]), len(texts) - pc.sum(is_number).as_py()


def padded_text(texts: pa.Array) -> str:
    """Return a text with blanks or quotes around it where most texts have some; empty otherwise."""
    is_padded = pc.match_substring_regex(texts[:HEAD], _PADDED)
    return str(texts[:HEAD].filter(is_padded)[0]) if _share(is_padded) > _MOSTLY else ""


def odd_entry(texts: pa.Array) -> str:
    """Return why texts that look like numbers or lists are neither; empty if they do not."""
    if pc.all(are_numbers(texts[:HEAD])).as_py() and pc.all(are_numbers(texts)).as_py():
        code = texts.filter(pc.match_substring_regex(texts, _CODE))[0]
        return f"{str(code)!r} has a zero in front, which numbers lose"
    found = odd_texts(texts)
    if found is not None:
        text, number = found
        return (
            f"{text[:24]!r} {_NOT_A_NUMBER}, nor are {number - 1} others"
            if number > 1
            else f"{text[:24]!r} {_NOT_A_NUMBER}"
        )
    if _any(texts[:HEAD], ",") and are_comma_numbers(texts):
        text = str(texts.filter(pc.match_substring(texts, ","))[0])[:24]
        return f"{text!r} {_NOT_A_NUMBER}: its comma may separate thousands or decimals"
    unit = _unit_of(texts[:HEAD])
    if unit:
        return f"{str(texts[0])[:24]!r} {_NOT_A_NUMBER}; without {unit!r} it is"
    if _share(pc.match_substring_regex(texts[:HEAD], _NUMBER_LIKE)) > _MOSTLY:
        return f"{str(texts[0])[:24]!r} {_NOT_A_NUMBER}; write those as -1234.5"
    if _share(pc.match_substring_regex(texts[:HEAD], _OBJECT)) > _MOSTLY:
        return f"objects such as {str(texts[0])[:24]!r}; not split"
    if _share(are_bracketed(texts[:HEAD])) > _SEPARATED:
        return "some are within brackets; not split"
    for separator in _within(texts[:_SOME], _SEPARATORS):
        share = _share(pc.match_substring(texts[:_SOME], separator))
        if share > _SEPARATED:
            return f"{share:.0%} have {separator!r} in them; not split"
    some = texts[:HEAD]
    for separator in _within(some, _OTHER_SEPARATORS):
        share = _share(pc.match_substring(some, separator))
        if share > _SEPARATED and _recur(some, separator, len(some.unique())):
            return f"{share:.0%} have {separator!r} in them; not split: a schema's separator does"
    marks = texts.filter(pc.is_in(pc.ascii_lower(texts), pa.array(_MARKS, texts.type)))
    if len(marks):
        return f"{len(marks)} are {str(marks[0])!r}, a value like others; only an empty field is missing"
    return ""


def look_like_numbers(note: str) -> bool:
    """Return whether what ``odd_entry`` returned is of texts meant as numbers; codes have letters and digits."""
    text, found, rest = note.partition(f" {_NOT_A_NUMBER}")
    return bool(found) and (rest.startswith((":", ";")) or not re.search(r"\d", text))


def _within(texts: pa.Array, separators: str) -> str:
    """Return the separators; none if no text has one of them, which takes less to find out."""
    return separators if _any(texts, f"[{re.escape(separators)}]") else ""


def _unit_of(texts: pa.Array) -> str:
    """Return what stands behind most texts that are numbers without it: a unit or a sign, one for all of them."""
    is_so = pc.match_substring_regex(texts, _WITH_UNIT)
    if _share(is_so) <= _MOSTLY:
        return ""
    units = pc.replace_substring_regex(texts.filter(is_so), _WITH_UNIT, r"\1").unique()
    return str(units[0]) if len(units) == 1 else ""


def _share(is_so: pa.Array) -> float:
    return float(pc.mean(is_so).as_py() or 0.0)


def _all(texts: pa.Array, pattern: str) -> bool:
    return all(pc.all(pc.match_substring_regex(part, pattern)).as_py() for part in (texts[:HEAD], texts))


def _any(texts: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())
