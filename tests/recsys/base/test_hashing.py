"""Texts become IDs by XXH64, as its specification defines it."""

from __future__ import annotations

import numpy as np
import pytest

from recsys.base.hashing import STRING_HASHES, hash_text, hash_texts

# XXH64 with seed 0, all 64 bits. Manifests and training data depend on these numbers for ever.
DIGESTS = {
    "": 0xEF46DB3751D8E999,
    "a": 0xD24EC4F1A98C6E5B,
    "abc": 0x44BC2CF5AD770999,
    "Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


@pytest.mark.parametrize(("text", "digest"), DIGESTS.items())
def test_known_digests_without_their_highest_bit(text: str, digest: int) -> None:
    assert hash_text(text) == digest % 2**63


def test_texts_are_their_utf8_bytes() -> None:
    texts = ["85f751fd", "naïve", "日本語", "x" * 1000]
    assert [hash_text(text) for text in texts] == [hash_text(text.encode()) for text in texts]
    assert hash_text(b"\xff\xfe") != hash_text(b"\xff")


def test_many_at_once() -> None:
    texts = [f"value {i}" for i in range(1000)]
    ids = hash_texts(texts)
    assert ids.dtype == np.int64
    assert ids.tolist() == [hash_text(text) for text in texts]
    assert ids.min() >= 0
    assert hash_texts([text.encode() for text in texts]).tolist() == ids.tolist()
    assert hash_texts([]).shape == (0,)


def test_what_utf8_cannot_encode() -> None:
    with pytest.raises(UnicodeEncodeError):
        hash_text("\ud800")


def test_the_names_of_the_hashes() -> None:
    assert STRING_HASHES == ("xxh64",)
