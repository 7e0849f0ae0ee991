"""The kernels for columns of answers, against Python's."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from recsys.kernels.operators import delta_packer, text_hasher, why_missing

pytestmark = pytest.mark.skipif(bool(why_missing()), reason=why_missing())


@pytest.mark.parametrize(
    ("key", "person"), [(b"k", b""), (b"a secret of the tests", b"id"), (b"x" * 64, b"p" * 16)]
)
def test_texts_have_the_hashes_of_hashlib(key: bytes, person: bytes) -> None:
    rng = np.random.default_rng(0)
    texts = [rng.bytes(length) for length in (*range(140), 255, 256, 257, 1000)]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    hasher = text_hasher()
    assert hasher is not None
    found = hasher(offsets, b"".join(texts), key, person)
    expected = [hashlib.blake2b(text, key=key, digest_size=8, person=person).digest() for text in texts]
    assert found == b"".join(expected)
    assert hasher(offsets[:1], b"", key, person) == b""


@pytest.mark.parametrize("offsets", [[], [0, 2, 1], [-1, 2], [0, 4]])
def test_offsets_outside_the_texts_are_refused(offsets: list[int]) -> None:
    hasher = text_hasher()
    assert hasher is not None
    with pytest.raises(ValueError, match="offsets"):
        hasher(np.array(offsets, np.int32), b"abc", b"key", b"")


def test_wrong_keys_and_types_are_refused() -> None:
    hasher, pack = text_hasher(), delta_packer()
    assert hasher is not None
    assert pack is not None
    for key, person in ((b"", b""), (b"k" * 65, b""), (b"k", b"p" * 17)):
        with pytest.raises(ValueError, match="1 to 64"):
            hasher(np.zeros(1, np.int32), b"", key, person)
    for numbers in (np.zeros(3, np.float32), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2]):
        with pytest.raises(ValueError, match="contiguous int32 or int64"):
            pack(numbers)
