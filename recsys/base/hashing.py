"""Hashes that turn the text of a categorical value into an ID, and an ID into a row of its table.

N is the number of texts or IDs. Training data and requests must be hashed alike, so the definition of a hash never
changes; another one gets another name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

Int64s = npt.NDArray[np.int64]

#: The hashes that a sparse input's texts may have, by name.
STRING_HASHES = ("xxh64",)
#: IDs are never negative, so that every ID policy treats them alike: the hash's highest bit is cleared.
ID_MASK = 2**63 - 1
#: MurmurHash3's finalizer ``fmix64`` (Austin Appleby, MurmurHash3.cpp, public domain): twice a shift and a product,
#: and a last shift, all of unsigned 64-bit numbers.
FMIX64_SHIFT = 33
FMIX64_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


def hash_text(text: bytes | str) -> int:
    """Return the ID of a text: XXH64 with seed 0 of its UTF-8 bytes, without the highest bit.

    Args:
        text: A text, or its bytes, which are hashed as they are.

    Raises:
        UnicodeEncodeError: The text has a lone surrogate, which UTF-8 cannot encode.
    """
    data = text.encode() if isinstance(text, str) else text
    return xxhash.xxh64_intdigest(data) & ID_MASK


def hash_texts(texts: Sequence[bytes | str]) -> Int64s:
    """Return the IDs of texts, int64 ``[N]``; see ``hash_text``."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    hashes = np.fromiter(map(xxhash.xxh64_intdigest, encoded), np.uint64, len(texts))
    return (hashes & np.uint64(ID_MASK)).view(np.int64)


def mix_ids(ids: Int64s) -> Int64s:
    """Return the mixed IDs, int64 ``[N]``: ``fmix64`` of their 64 bits, without the highest bit.

    A row is a mixed ID modulo the table's rows. It depends on every bit of the ID, so IDs that differ in their high
    bits alone, such as multiples of 2^k or Snowflake IDs, are spread over a table of any number of rows. Mixed IDs are
    never negative: signed and unsigned division give the same row.

    Args:
        ids: Any int64.
    """
    bits = ids.astype(np.uint64)  # negative numbers by their two's complement
    for factor in FMIX64_FACTORS:
        bits = (bits ^ (bits >> np.uint64(FMIX64_SHIFT))) * np.uint64(factor)
    bits ^= bits >> np.uint64(FMIX64_SHIFT)
    return (bits & np.uint64(ID_MASK)).astype(np.int64)


def rows_of_ids(ids: Int64s, kind: str, num_rows: int) -> Int64s:
    """Return the rows of IDs, int64 ``[N]``, ``0 <= row < num_rows``.

    Args:
        ids: Any int64.
        kind: "hash": the ID modulo the rows, as Python's ``%``; "fmix64": the mixed ID modulo the rows.
        num_rows: The table's rows, at least 1.
    """
    mixed = mix_ids(ids) if kind == "fmix64" else ids
    return mixed % num_rows
