"""An example request, generated from a model's metadata."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve.wire import predict_pb2 as wire

JsonRequest = dict[str, dict[str, Any]]


def example_request(
    metadata: wire.ModelMetadata, num_rows: int, generator: np.random.Generator
) -> JsonRequest:
    """Return a request in its JSON form, to be edited: rows of the metadata's examples, or random rows if it has none.

    Random rows have two IDs or texts in each bag, or as many as the model takes.
    """
    if metadata.examples.num_rows:
        return _picked(metadata.examples, num_rows, generator)
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


def _picked(examples: wire.PredictRequest, num_rows: int, generator: np.random.Generator) -> JsonRequest:
    """Return rows of the examples in a random order, each as often as the others."""
    count = examples.num_rows
    rows = np.resize(generator.permutation(count), num_rows).tolist()
    request: JsonRequest = {"dense": {}, "sparse": {}}
    for dense in examples.dense:
        values = np.frombuffer(dense.values, "<f4").reshape(count, -1)
        request["dense"][dense.name] = [[short(value) for value in values[row]] for row in rows]
    for sparse in examples.sparse:
        ends = np.cumsum(np.frombuffer(sparse.lengths, "<i4"), dtype=np.int64).tolist()
        ids: list[int] | list[str] = [text.decode() for text in sparse.strings]
        ids = ids or np.frombuffer(sparse.values, "<i8").tolist()
        request["sparse"][sparse.name] = [ids[ends[row - 1] if row else 0 : ends[row]] for row in rows]
    return request


def short(value: np.float32) -> float | None:
    """Return a float32 as the shortest number that stands for it; None for a missing one."""
    return None if np.isnan(value) else float(str(value))


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
