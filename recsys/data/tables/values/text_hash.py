"""The hashes of many short texts at once, in numpy: XXH64 as ``recsys.hashing`` has it.

The constants are those of the specification of XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).

Shape letters: L bytes of a text, N number of texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recsys.hashing import ID_MASK, hash_texts

_U64 = np.uint64
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    _U64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
# Texts of this length and longer are hashed in other steps, one by one here.
_LONG = 32
# Texts that are hashed together: few enough for the processor's caches.
_BLOCK = 8192

_Bits = NDArray[np.uint64]


def hash_array(values: pa.Array) -> NDArray[np.int64]:
    """Return the IDs of texts or bytes, int64 ``[N]``; the same as ``recsys.hashing.hash_texts``.

    Args:
        values: Without nulls, of a type that casts to large_binary.
    """
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    binary = values.cast(pa.large_binary())
    _, ends, content = binary.buffers()
    offsets = np.frombuffer(ends, np.int64)[binary.offset : binary.offset + len(binary) + 1]
    data = np.frombuffer(content, np.uint8) if content is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    found = np.empty(len(values), dtype=np.int64)
    for length in np.flatnonzero(np.bincount(np.minimum(lengths, _LONG))).tolist():
        if length == _LONG:
            places = np.flatnonzero(lengths >= _LONG)
            found[places] = hash_texts(binary.take(pa.array(places)).to_pylist())
            continue
        places = np.flatnonzero(lengths == length)
        for first in range(0, len(places), _BLOCK):
            some = places[first : first + _BLOCK]
            bits = _hash_short(_bytes_of(data, offsets[some], length), length)
            found[some] = (bits & _U64(ID_MASK)).view(np.int64)
    return found


def _bytes_of(data: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Return the bytes ``[N, L]`` of texts of one length."""
    first, num_texts = int(starts[0]), len(starts)
    if int(starts[-1]) - first == (num_texts - 1) * length:  # side by side
        return data[first : first + num_texts * length].reshape(num_texts, length)
    return np.lib.stride_tricks.sliding_window_view(data, length)[starts]


def _hash_short(texts: NDArray[np.uint8], length: int) -> _Bits:
    """Return XXH64 with seed 0 of texts ``[N, L]`` of one length below 32."""
    bits = np.full(len(texts), _PRIME_5 + _U64(length), dtype=np.uint64)
    at = 0
    while at + 8 <= length:
        bits ^= _rotated(_lane(texts, at, "<u8") * _PRIME_2, 31) * _PRIME_1
        bits = _rotated(bits, 27) * _PRIME_1 + _PRIME_4
        at += 8
    if at + 4 <= length:
        bits ^= _lane(texts, at, "<u4") * _PRIME_1
        bits = _rotated(bits, 23) * _PRIME_2 + _PRIME_3
        at += 4
    for i in range(at, length):
        bits ^= texts[:, i].astype(np.uint64) * _PRIME_5
        bits = _rotated(bits, 11) * _PRIME_1
    for shift, prime in ((33, _PRIME_2), (29, _PRIME_3)):
        bits ^= bits >> _U64(shift)
        bits *= prime
    return bits ^ (bits >> _U64(32))


def _lane(texts: NDArray[np.uint8], at: int, kind: str) -> _Bits:
    size = np.dtype(kind).itemsize
    lane: Any = np.ascontiguousarray(texts[:, at : at + size]).view(kind)
    return np.asarray(lane[:, 0], dtype=np.uint64)


def _rotated(bits: _Bits, count: int) -> _Bits:
    """Return the bits, rotated to the left."""
    return (bits << _U64(count)) | (bits >> _U64(64 - count))
