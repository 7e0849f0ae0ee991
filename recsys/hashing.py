"""Hashes that turn the text of a categorical value into an ID.

N is the number of texts. Training data and requests must be hashed alike, so the definition of a hash never changes;
another one gets another name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

#: The hashes that a sparse input's texts may have, by name.
STRING_HASHES = ("xxh64",)
#: IDs are never negative, so that every ID policy treats them alike: the hash's highest bit is cleared.
_MASK = 2**63 - 1


def hash_text(text: bytes | str) -> int:
    """Return the ID of a text: XXH64 with seed 0 of its UTF-8 bytes, without the highest bit.

    Args:
        text: A text, or its bytes, which are hashed as they are.

    Raises:
        UnicodeEncodeError: The text has a lone surrogate, which UTF-8 cannot encode.
    """
    data = text.encode() if isinstance(text, str) else text
    return xxhash.xxh64_intdigest(data) & _MASK


def hash_texts(texts: Sequence[bytes | str]) -> npt.NDArray[np.int64]:
    """Return the IDs of texts, int64 ``[N]``; see ``hash_text``."""
    return np.fromiter(map(hash_text, texts), np.int64, len(texts))
