"""Example requests fit the model's metadata."""

from __future__ import annotations

import numpy as np
import pytest

from serve.client.packing import build_request
from serve.client.sampling import example_request
from serve.wire import predict_pb2 as wire


@pytest.mark.parametrize(
    ("strings", "id_limit", "has_texts"),
    [("", None, False), ("", 50, False), ("xxh64", None, True), ("xxh64", 50, False)],
)
def test_texts_where_the_server_hashes_them_to_ids_that_it_takes(
    strings: str, id_limit: int | None, has_texts: bool
) -> None:
    tables = [wire.TableUse(name="sites", num_embeddings=50)]
    sparse = wire.SparseSignature(name="site", tables=tables, id_limit=id_limit, strings=strings)
    metadata = wire.ModelMetadata(sparse=[sparse])
    example = example_request(metadata, 3, np.random.default_rng(0))
    bags = example["sparse"]["site"]
    assert [len(bag) for bag in bags] == [2, 2, 2]
    assert {type(value) for bag in bags for value in bag} == {str if has_texts else int}
    (packed,) = build_request(**example).sparse
    assert (len(packed.strings), len(packed.values) // 8) == ((6, 0) if has_texts else (0, 6))


def test_bags_have_the_size_that_the_model_takes() -> None:
    tables = [wire.TableUse(name="items", num_embeddings=9)]
    sparse = wire.SparseSignature(name="slots", tables=tables, weighted=True, num_ids=3)
    example = example_request(wire.ModelMetadata(sparse=[sparse]), 4, np.random.default_rng(0))
    assert [len(bag) for bag in example["sparse"]["slots"]] == [3] * 4
    assert [len(bag) for bag in example["weights"]["slots"]] == [3] * 4
