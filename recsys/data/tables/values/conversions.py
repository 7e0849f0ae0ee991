"""Texts as numbers, and values of any plain type as IDs.

Texts that are not numbers or IDs are found and never changed: requests send the same texts and numbers, and servers
take what training takes.

Shape letters: N number of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.examples import Ints
from recsys.data.tables.values.arrow_types import is_text

#: What stands for a missing number in a text, in lower case: programs' marks, spreadsheets' errors, and dashes.
MISSING_NUMBERS = (
    *("", "na", "n/a", "n.a.", "<na>", "null", "(null)", "<null>", "nil", "nan", "-nan", "none", "\\n"),
    *("#n/a", "#n/a n/a", "#na", "#null!", "#div/0!", "#value!", "#num!", "#ref!", "#name?"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "-", "--", "\u2013", "\u2014", "?", "."),
)
_BLANKS = " \t\r\n"
# Thousands are apart where a point or a sign of a currency shows which mark is which: "1,234" alone may be 1.234.
_THOUSANDS = r"^[-+]?([$£€¥] ?)?\d{1,3}(,\d{3})+\.\d*$|^[-+]?[$£] ?\d{1,3}(,\d{3})+$"
_CURRENCY = r"^([-+]?)[$£€¥] ?(\.?\d)"
# "1.234,5 €": points, blanks and apostrophes are between thousands there.
_DECIMAL_COMMA = (
    r"^[-+]?([$£€¥] ?)?(\d{1,3}([. '\x{a0}\x{202f}\x{2019}]\d{3})+|\d*)(,\d*)?([eE][-+]?\d+)?( ?[$£€¥])?$"
)
_NO_DECIMAL_COMMA = r"[$£€¥. '\x{a0}\x{202f}\x{2019}]"
# Floats of 64 bits round numbers of more than 15 digits.
_WHOLE = r"^[ \t]*-?([0-9]+|0*[0-9]{1,15}\.0*)[ \t]*$"
_AROUND_WHOLE = r"^[ \t]+|\.0*[ \t]*$|[ \t]+$"
# A cast continues after a value that it cannot convert, which is slow: a few values are tried first.
_FIRST_VALUES = 64


@dataclass(frozen=True, kw_only=True)
class OddValue:
    """A value that is not as expected.

    Attributes:
        position: The place of the first such value.
        expected: What it is not, and what to do.
    """

    position: int
    expected: str


def cast_or_none(array: pa.Array, kind: pa.DataType, *, safe: bool = True) -> pa.Array | None:
    """Return an array in another type, or None if a value does not convert."""
    try:
        for part in (array[:_FIRST_VALUES], array):
            result = part.cast(kind, safe=safe)
        return result
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def first_failing(array: pa.Array, converts: Callable[[pa.Array], bool]) -> int:
    """Return the position of the first value that does not convert, where the array does not."""
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


def without_missing(texts: pa.Array) -> pa.Array:
    """Return texts with nulls for what stands for a missing number."""
    lowered = pc.ascii_lower(pc.utf8_trim(texts, _BLANKS))
    is_missing = pc.is_in(lowered, pa.array(MISSING_NUMBERS, texts.type))
    return pc.if_else(is_missing, pa.scalar(None, texts.type), texts)


def numbers_of(texts: pa.Array, decimal: str = ".") -> pa.Array | OddValue:
    """Return texts as float64, null for missing ones.

    ``true`` and ``false`` are 1 and 0. A currency's sign is dropped, and so are commas between thousands where a
    decimal point follows.

    Args:
        texts: The texts.
        decimal: What is before the decimals: ``"."``, or ``","`` with points or blanks between thousands.
    """
    numbers = cast_or_none(texts, pa.float64()) if decimal == "." else None
    if numbers is not None:
        return numbers
    encoded = texts.dictionary_encode()
    # Most have marks of missing numbers alone; the other forms take longer.
    for forms in (without_missing, _number_texts) if decimal == "." else (_comma_number_texts,):
        different = forms(encoded.dictionary)
        numbers = cast_or_none(different, pa.float64())
        if numbers is not None:
            return numbers.take(encoded.indices)
    odd = first_failing(different, lambda part: cast_or_none(part, pa.float64()) is not None)
    text = encoded.dictionary[odd].as_py()
    hint = ""
    if decimal == ",":
        hint = ' with a decimal comma, as the schema\'s decimal = "," says'
    elif "," in text:
        hint = (
            ' with a decimal point and no comma, which may separate thousands or decimals (decimal = "," in the '
            "schema takes decimals)"
        )
    return OddValue(position=pc.index(encoded.indices, odd).as_py(), expected=f"a number{hint}")


def are_numbers(texts: pa.Array) -> pa.Array:
    """Return whether each text is a number or missing, bool ``[N]``."""
    forms = _number_texts(texts)
    is_number = pc.match_substring_regex(forms, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?inf(inity)?$")
    return pc.fill_null(is_number, fill_value=True)


def _number_texts(texts: pa.Array) -> pa.Array:
    """Return texts in the form that Arrow parses where they are numbers; null for missing ones."""
    texts = pc.ascii_lower(pc.utf8_trim(without_missing(texts), _BLANKS))
    for word, digit in (("true", "1"), ("false", "0")):
        texts = pc.if_else(pc.equal(texts, word), pa.scalar(digit, texts.type), texts)
    has_thousands = pc.match_substring_regex(texts, _THOUSANDS)
    texts = pc.if_else(has_thousands, pc.replace_substring(texts, ",", ""), texts)
    return pc.replace_substring_regex(texts, _CURRENCY, r"\1\2")


def _comma_number_texts(texts: pa.Array) -> pa.Array:
    """Return texts as ``_number_texts`` does, of numbers with decimal commas; others stay, but are not numbers."""
    texts = pc.utf8_trim(without_missing(texts), _BLANKS)
    is_number = pc.match_substring_regex(texts, _DECIMAL_COMMA)
    with_point = pc.replace_substring(pc.replace_substring_regex(texts, _NO_DECIMAL_COMMA, ""), ",", ".")
    mark, blank = (pa.scalar(text, texts.type) for text in ("no number:", " "))
    return pc.if_else(is_number, with_point, pc.binary_join_element_wise(mark, texts, blank))


def ids_of(values: pa.Array) -> Ints | OddValue:
    """Return values without nulls as IDs, int64 ``[N]``.

    Texts are decimal, as in requests: ``12`` and, as pandas writes numbers of columns with gaps, ``12.0``. Floats are
    whole and small enough to be exact.
    """
    if is_text(values.type):
        return _ids_of_texts(values)
    if pa.types.is_floating(values.type):
        return _ids_of_floats(values)
    ids = cast_or_none(values, pa.int64())
    if ids is None:
        odd = first_failing(values, lambda part: cast_or_none(part, pa.int64()) is not None)
        return OddValue(position=odd, expected=_EXPECTED)
    found: Ints = ids.to_numpy(zero_copy_only=False).astype(np.int64)  # a copy that can be written to
    return found


_EXPECTED = "a whole number of 64 bits (a schema's strings takes texts)"
_ROUNDED = r"^[-+]?[\d.,]+[eE][-+]?\d+$|[0-9]{16,}\."


def _ids_of_texts(texts: pa.Array) -> Ints | OddValue:
    ids = cast_or_none(texts, pa.int64())
    # Arrow takes "0x10", which is a text.
    if ids is None or pc.any(pc.match_substring(texts, "x", ignore_case=True)).as_py():
        is_whole = pc.match_substring_regex(texts, _WHOLE)
        num_whole = len(texts) if pc.all(is_whole).as_py() else pc.index(is_whole, False).as_py()
        digits = pc.replace_substring_regex(texts[:num_whole], _AROUND_WHOLE, "")
        ids = cast_or_none(digits, pa.int64())
        if ids is None:
            odd = first_failing(digits, lambda part: cast_or_none(part, pa.int64()) is not None)
            return OddValue(position=odd, expected=_EXPECTED)
        if num_whole < len(texts):
            is_rounded = pc.match_substring_regex(texts[num_whole : num_whole + 1], _ROUNDED)[0].as_py()
            hint = ", all digits written: this one was rounded" if is_rounded else ""
            return OddValue(position=num_whole, expected=_EXPECTED + hint)
    found: Ints = ids.to_numpy(zero_copy_only=False).astype(np.int64)  # a copy that can be written to
    return found


def _ids_of_floats(values: pa.Array) -> Ints | OddValue:
    numbers = values.to_numpy(zero_copy_only=False)
    limit = 2.0 ** (np.finfo(numbers.dtype).nmant + 1)
    is_good = (numbers == np.floor(numbers)) & (np.abs(numbers.astype(np.float64)) < limit)
    if not is_good.all():
        odd = int(np.flatnonzero(~is_good)[0])
        hint = f": {values.type} rounds numbers from {limit:.0f} on" if abs(numbers[odd]) >= limit else ""
        return OddValue(position=odd, expected=_EXPECTED + hint)
    found: Ints = numbers.astype(np.int64)
    return found
