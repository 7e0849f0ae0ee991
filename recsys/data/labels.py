"""Labels as they are in tables: words for zero and one, and the check that both occur.

Shape letters: N number of rows, L number of labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recsys.data.lines import DataError
from recsys.inputs.columns import LabelColumn

#: Texts that are labels, in any case.
_WORDS = {
    **dict.fromkeys(("yes", "y", "true", "t", "on", "positive", "pos"), 1.0),
    **dict.fromkeys(("no", "n", "false", "f", "off", "negative", "neg"), 0.0),
}
#: What a label may be, for messages.
LABELS = "0 or 1, yes or no, true or false (a schema's at_least or positive makes a label of other values)"


def word_labels(texts: pa.Array) -> NDArray[np.float64]:
    """Return texts as numbers: words for zero and one as these, NaN for missing ones, infinity for other words."""
    encoded = texts.dictionary_encode()
    numbers = [_number(text) for text in encoded.dictionary.to_pylist()]
    found = pa.array(numbers, pa.float64()).take(encoded.indices)
    words: NDArray[np.float64] = pc.fill_null(found, np.nan).to_numpy(zero_copy_only=False)
    return words


def _number(text: str) -> float:
    word = text.strip().lower()
    if not word or word in _WORDS:
        return _WORDS.get(word, np.nan)
    try:
        return float(word)
    except ValueError:
        return np.inf


def is_positive(values: pa.Array, positive: Sequence[str]) -> NDArray[np.float64]:
    """Return 1 where a value is one of some texts, else 0; NaN for missing ones."""
    texts = values.cast(pa.string())
    found = pc.is_in(texts, pa.array(positive, pa.string())).cast(pa.float64())
    is_missing = pc.fill_null(pc.equal(pc.utf8_length(texts), 0), fill_value=True)
    numbers: NDArray[np.float64] = pc.if_else(is_missing, np.nan, found).to_numpy(zero_copy_only=False)
    return numbers


def check_both_classes(labels: Sequence[LabelColumn], blocks: Iterable[NDArray[np.float32]]) -> None:
    """Check that each label is 0 in some rows and 1 in others; reads no more blocks than needed.

    Args:
        labels: The labels; numbers are not looked at.
        blocks: The labels of some rows each, ``[N, L]``.

    Raises:
        DataError: A label is the same in all rows.
    """
    has_zero = np.array([label.is_number for label in labels])
    has_one = has_zero.copy()
    if has_zero.all():
        return
    num_rows = 0
    for block in blocks:
        num_rows += len(block)
        has_zero |= (block == 0).any(axis=0)
        has_one |= (block == 1).any(axis=0)
        if has_zero.all() and has_one.all():
            return
    for label, zero, one in zip(labels, has_zero, has_one, strict=True):
        if zero != one:
            raise DataError(
                f"label: column {label.name!r}: got {int(one)} in all {num_rows:,} rows"
                f"{_why(label, one=bool(one))}, expected 0 in some and 1 in others"
            )


def _why(label: LabelColumn, *, one: bool) -> str:
    if label.at_least is not None:
        return f" ({'all are' if one else 'none is'} at least {label.at_least:g})"
    if label.positive:
        return f" ({'all are' if one else 'none is'} one of {', '.join(map(repr, label.positive[:5]))})"
    return ""
