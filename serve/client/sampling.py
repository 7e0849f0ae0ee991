"""An example request, generated from a model's metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve.wire import predict_pb2 as wire

JsonRequest = dict[str, dict[str, Any]]


def example_request(
    metadata: wire.ModelMetadata, num_rows: int, generator: np.random.Generator
) -> JsonRequest:
    """Return a request in its JSON form, to be edited: two IDs or texts in each bag, or as many as the model takes."""
    request: JsonRequest = {"dense": {}, "sparse": {}}
    for dense in metadata.dense:
        values = generator.standard_normal((num_rows, dense.width)).round(3)
        request["dense"][dense.name] = values.tolist()
    for sparse in metadata.sparse:
        has_texts = takes_texts(sparse)
        shape = (num_rows, sparse.num_ids if sparse.HasField("num_ids") else 2)
        ids = generator.integers(0, 1 << 32 if has_texts else id_limit(sparse), shape).tolist()
        request["sparse"][sparse.name] = [[text_of(i) for i in bag] for bag in ids] if has_texts else ids
        if sparse.weighted:
            weights = request.setdefault("weights", {})
            weights[sparse.name] = generator.random(shape).round(3).tolist()
    return request


def takes_texts(sparse: wire.SparseSignature) -> bool:
    """Return whether clients send texts: the server hashes them to IDs that the tables take."""
    return bool(sparse.strings) and not sparse.HasField("id_limit")


def text_of(number: int) -> str:
    """Return a text that stands for a number, as those of published click logs: 8 hexadecimal digits."""
    return f"{number:08x}"


def id_limit(sparse: wire.SparseSignature) -> int:
    """Return the upper limit of useful IDs; if the input accepts any ID, the number of the table's rows."""
    if sparse.HasField("id_limit"):
        return int(sparse.id_limit)
    return max((table.num_embeddings for table in sparse.tables), default=1)
