"""Conversion of the texts that a request gives in place of IDs.

N is the number of texts of one sparse input.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recsys.base.hashing import hash_texts
from recsys.inputs.signature import SparseInput
from serve.errors import RequestError, short

_RANGE = range(-(2**63), 2**63)
_MAX_DIGITS = 19
# Floats of 64 bits do not round so many digits.
_MAX_FLOAT_DIGITS = 15
_WHOLE = re.compile(rb"(-?)(?=[0-9])0*+([0-9]*+)(\.0*+)?")


def ids_of_texts(field: str, sparse: SparseInput, texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the ID of each text, int64 ``[N]``.

    A hash takes any bytes but none: an empty text is most likely a missing value, which would read a row like any
    other. Where tables of the training hold lists as texts, blanks around a text are no part of it, and a text that is
    such a list is refused: it would be hashed as one value, which the model never saw.

    Args:
        field: the request's field, for error texts.
        sparse: the input; its ``strings`` names the hash.
        texts: the texts, as bytes.

    Raises:
        RequestError: a text is empty, a list, or not a decimal int64 where the input has no hash.
    """
    values = [sparse.value_of(text) for text in texts] if sparse.separator else texts
    if sparse.strings and all(values):
        return hash_texts([value for value in values if value])
    ids = np.empty(len(values), np.int64)
    for i, value in enumerate(values):
        if value is None:
            expected = (
                f"one value, not a list as tables have it with {sparse.separator!r} between values: send each value "
                "as a text of its own"
            )
            raise _wrong(field, sparse, texts, i, expected)
        if sparse.strings and not value:
            expected = "a text of at least one byte; leave a missing value out"
            raise _wrong(field, sparse, texts, i, expected)
        if sparse.strings:
            continue
        number = _decimal(value)
        if number is None:
            expected = "a decimal int64: the model has no hash for texts of this input"
            raise _wrong(field, sparse, texts, i, expected)
        ids[i] = number
    return ids


def _decimal(text: bytes) -> int | None:
    """Return the number that a text stands for; None for other texts, and beyond int64.

    It is ``-?[0-9]+``, also as tables have it: with blanks around it, or a point and zeros behind at most 15 digits.
    """
    found = _WHOLE.fullmatch(text.strip(b" \t"))
    if found is None:
        return None
    sign, digits, point = found.groups()
    if len(digits) > (_MAX_DIGITS if point is None else _MAX_FLOAT_DIGITS):
        return None
    number = int(sign + (digits or b"0"))
    return number if number in _RANGE else None


def _wrong(field: str, sparse: SparseInput, texts: Sequence[bytes], at: int, expected: str) -> RequestError:
    return RequestError(
        f"{field}[{sparse.name!r}].strings: got {short(texts[at])} at position {at}, expected {expected}"
    )
