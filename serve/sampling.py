"""Random requests, made from what a server says of its model."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve.wire import predict_pb2 as wire

JsonRequest = dict[str, dict[str, Any]]


def random_request(
    metadata: wire.ModelMetadata, num_rows: int, ids_per_bag: int, generator: np.random.Generator
) -> wire.PredictRequest:
    """A valid request: standard normal dense inputs, uniform IDs, weights between 0 and 1.

    Args:
        metadata: the model's, as the server gives it.
        num_rows: rows of the request.
        ids_per_bag: IDs of each row in each sparse input.
        generator: where the numbers come from.
    """
    request = wire.PredictRequest(num_rows=num_rows)
    for dense in metadata.dense:
        values = generator.standard_normal((num_rows, dense.width), np.float32)
        request.dense.add(name=dense.name, values=values.astype("<f4").tobytes())
    lengths = np.full(num_rows, ids_per_bag, "<i4").tobytes()
    num_ids = num_rows * ids_per_bag
    for sparse in metadata.sparse:
        ids = generator.integers(0, _id_limit(sparse), num_ids, np.int64)
        weights = generator.random(num_ids, np.float32) if sparse.weighted else np.empty(0, np.float32)
        request.sparse.add(
            name=sparse.name,
            lengths=lengths,
            values=ids.astype("<i8").tobytes(),
            weights=weights.astype("<f4").tobytes(),
        )
    return request


def example_request(
    metadata: wire.ModelMetadata, num_rows: int, generator: np.random.Generator
) -> JsonRequest:
    """A request in its JSON form, to be filled in by hand: two IDs in each bag of a pooled input."""
    request: JsonRequest = {"dense": {}, "sparse": {}}
    for dense in metadata.dense:
        values = generator.standard_normal((num_rows, dense.width)).round(3)
        request["dense"][dense.name] = values.tolist()
    for sparse in metadata.sparse:
        ids = generator.integers(0, _id_limit(sparse), (num_rows, 2))
        request["sparse"][sparse.name] = ids.tolist()
        if sparse.weighted:
            weights = request.setdefault("weights", {})
            weights[sparse.name] = generator.random((num_rows, 2)).round(3).tolist()
    return request


def _id_limit(sparse: wire.SparseSignature) -> int:
    """Where any ID is taken, the tables' own rows are what is worth asking for."""
    if sparse.HasField("id_limit"):
        return int(sparse.id_limit)
    return max((table.num_embeddings for table in sparse.tables), default=1)
