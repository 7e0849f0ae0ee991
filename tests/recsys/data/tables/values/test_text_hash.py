"""Many texts are hashed at once as each is by itself."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from recsys.data.tables.values.text_hash import hash_array
from recsys.hashing import hash_texts


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_texts_of_every_length_have_their_own_hash(kind: pa.DataType) -> None:
    generator = np.random.default_rng(0)
    texts = ["é" * (length // 2) + "x" * (length % 2) for length in range(70)]
    texts += ["".join(map(chr, generator.integers(32, 126, length))) for length in [*range(70), *range(40)]]
    generator.shuffle(texts)
    values = pa.array([text.encode() for text in texts]).cast(kind)
    expected = hash_texts(texts)
    assert hash_array(values).tolist() == expected.tolist()
    assert hash_array(values.slice(7, 50)).tolist() == expected[7:57].tolist()


def test_there_may_be_no_texts_and_no_bytes() -> None:
    assert hash_array(pa.array([], pa.string())).tolist() == []
    assert hash_array(pa.array(["", ""])).tolist() == hash_texts(["", ""]).tolist()


def test_all_bytes_are_hashed() -> None:
    values = [bytes(range(i, i + 20)) for i in range(236)]
    assert hash_array(pa.array(values, pa.binary())).tolist() == hash_texts(values).tolist()
