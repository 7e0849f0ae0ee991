"""Conversion of the texts that a request gives in place of IDs.

N is the number of texts of one sparse input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recsys.hashing import hash_texts
from recsys.signature import SparseInput
from serve.errors import RequestError, short

_RANGE = range(-(2**63), 2**63)
_MAX_DIGITS = 19


def ids_of_texts(field: str, sparse: SparseInput, texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the ID of each text, int64 ``[N]``.

    A hash takes any bytes but none: an empty text is most likely a missing value, which would read a row like any
    other.

    Args:
        field: the request's field, for error texts.
        sparse: the input; its ``strings`` names the hash.
        texts: the texts, as bytes.

    Raises:
        RequestError: a text is empty, or not a decimal int64 where the input has no hash.
    """
    if sparse.strings:
        if not all(texts):
            expected = "a text of at least one byte; leave a missing value out"
            raise _wrong(field, sparse, texts, next(i for i, text in enumerate(texts) if not text), expected)
        return hash_texts(texts)
    ids = np.empty(len(texts), np.int64)
    for i, text in enumerate(texts):
        number = _decimal(text)
        if number is None:
            expected = "a decimal int64: the model has no hash for texts of this input"
            raise _wrong(field, sparse, texts, i, expected)
        ids[i] = number
    return ids


def _decimal(text: bytes) -> int | None:
    """Return the number that ``-?[0-9]+`` stands for; None for other texts, and beyond int64."""
    digits = text.removeprefix(b"-")
    significant = digits.lstrip(b"0")
    if not digits.isdigit() or len(significant) > _MAX_DIGITS:
        return None
    number = int(significant or b"0")
    number = -number if text.startswith(b"-") else number
    return number if number in _RANGE else None


def _wrong(field: str, sparse: SparseInput, texts: Sequence[bytes], at: int, expected: str) -> RequestError:
    return RequestError(
        f"{field}[{sparse.name!r}].strings: got {short(texts[at])} at position {at}, expected {expected}"
    )
