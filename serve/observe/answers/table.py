"""Records of answered requests as a batch of the answer log's columns (``recsys.inputs.answer_columns``).

Shape letters: B rows of a request, R rows of all, N IDs (or texts) of one input in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recsys.inputs.answer_columns import AnswerLayout, is_number
from recsys.inputs.signature import DenseInput, Output, SparseInput
from serve.engine.answered_columns import (
    DenseColumn,
    Part,
    RequestColumns,
    SparseColumn,
    columns_of,
    text_ids,
)

_HASH_BYTES = 8
# The hashes are never negative, as the IDs of texts.
_HASH_MASK = np.int64(2**63 - 1)

Bools = npt.NDArray[np.bool_]


class SentKinds:
    """How requests gave their sparse inputs, collected over a file.

    Attributes:
        has_ids: names of inputs that some request gave as IDs.
        has_texts: names of those that some request gave as texts.
    """

    def __init__(self) -> None:
        self.has_ids: set[str] = set()
        self.has_texts: set[str] = set()

    def completed(self, layout: AnswerLayout) -> AnswerLayout:
        """Return a layout with what was collected."""
        return replace(layout, has_ids=frozenset(self.has_ids), has_texts=frozenset(self.has_texts))


def table_of(parts: Sequence[Part], layout: AnswerLayout, key: bytes, kinds: SentKinds) -> pa.RecordBatch:
    """Return the rows of requests with the layout's columns.

    Args:
        parts: requests of one model's version.
        layout: the columns.
        key: the key of hashed inputs.
        kinds: gets how the inputs were sent.
    """
    requests, dense, sparse = columns_of(parts, layout.dense, layout.sparse)
    num_rows = np.frombuffer(requests.num_rows, "<i8")
    arrays = _request_arrays(parts[0], requests, num_rows)
    for dense_input, numbers in zip(layout.dense, dense, strict=True):
        arrays.append(_dense_array(dense_input, numbers))
    for sparse_input, bags in zip(layout.sparse, sparse, strict=True):
        arrays += _sparse_arrays(sparse_input, bags, layout, key, kinds)
    places = {output.name: i for i, output in enumerate(layout.signature.outputs)}
    for output in layout.outputs:
        at = places[output.name]
        sizes = np.frombuffer(requests.output_sizes[at], "<i8")
        arrays.append(_output_array(output, requests.outputs[at], sizes, num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema())


def _request_arrays(first: Part, requests: RequestColumns, num_rows: npt.NDArray[np.int64]) -> list[pa.Array]:
    total = int(num_rows.sum())
    micros = (np.frombuffer(requests.times, "<f8") * 1e6).astype(np.int64)
    ids = _texts(requests.id_sizes, requests.ids, pa.string())
    protocols = _texts(requests.protocol_sizes, requests.protocols, pa.string())
    row = np.zeros(total, np.int32)
    if total != len(num_rows) or (num_rows != 1).any():
        of_row = np.repeat(np.arange(len(num_rows)), num_rows)
        ids, protocols = ids.take(pa.array(of_row)), protocols.take(pa.array(of_row))
        row = (np.arange(total) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)).astype(np.int32)
        micros = micros[of_row]
    return [
        pa.array(micros, pa.timestamp("us", "UTC")),
        ids,
        pa.array(row),
        pa.array(np.repeat(num_rows, num_rows).astype(np.int32)),
        pa.repeat(pa.scalar(first.model), total),
        pa.repeat(pa.scalar(first.version), total),
        protocols,
    ]


def _dense_array(dense: DenseInput, numbers: DenseColumn) -> pa.Array:
    has = np.frombuffer(numbers.has, np.bool_)
    values = np.frombuffer(numbers.values, "<f4")
    if dense.width == 1:
        return pa.array(values, pa.float32(), mask=None if has.all() else ~has)
    if not has.all():
        values = values.reshape(-1, dense.width)[has].reshape(-1)
    return _lists(np.where(has, dense.width, 0), pa.array(values, pa.float32()), has)


def _sparse_arrays(
    sparse: SparseInput, bags: SparseColumn, layout: AnswerLayout, key: bytes, kinds: SentKinds
) -> list[pa.Array]:
    """Return the input's arrays, as many as it has columns."""
    has_ids, lengths = np.frombuffer(bags.has_ids, np.bool_), np.frombuffer(bags.lengths, "<i4")
    has_texts, text_lengths = np.zeros_like(has_ids), np.zeros_like(lengths)
    if bags.has_texts:
        has_texts, text_lengths = (
            np.frombuffer(bags.has_texts, np.bool_),
            np.frombuffer(bags.text_lengths, "<i4"),
        )
    ids = _lists(lengths, pa.array(np.frombuffer(bags.values, "<i8"), pa.int64()), has_ids)
    is_hashed = sparse.name in layout.hashed
    arrays = []
    if is_hashed:
        hashes = _hashed_ids(ids, key)
        if has_texts.any():
            texts = _texts(bags.sizes, bags.texts, pa.binary())
            of_texts = _lists(text_lengths, _hashed(texts, key, b"text"), has_texts)
            hashes = pc.coalesce(hashes, of_texts)
        arrays.append(hashes)
    else:
        texts_array, ids = _ids_and_texts(sparse, bags, ids, text_lengths, has_texts)
        arrays.append(ids)
        if sparse.strings:
            arrays.append(texts_array)
            if texts_array.null_count < len(texts_array):
                kinds.has_texts.add(sparse.name)
        if ids.null_count < len(ids):
            kinds.has_ids.add(sparse.name)
    if sparse.weighted:
        weights = pa.array(np.frombuffer(bags.weights, "<f4"), pa.float32())
        arrays.append(_lists(lengths + text_lengths, weights, has_ids | has_texts))
    return arrays


def _ids_and_texts(
    sparse: SparseInput, bags: SparseColumn, ids: pa.Array, text_lengths: npt.NDArray[np.int32], has: Bools
) -> tuple[pa.Array, pa.Array]:
    """Return texts and IDs. Texts that are numbers, or not UTF-8, which Parquet's texts are, are written as IDs."""
    if not has.any():
        return pa.nulls(len(ids), pa.list_(pa.string())), ids
    if sparse.strings:
        try:
            return _lists(
                text_lengths, _texts(bags.sizes, bags.texts, pa.binary()).cast(pa.string()), has
            ), ids
        except pa.ArrowInvalid:
            pass  # not UTF-8
    numbers = text_ids(sparse, _texts(bags.sizes, bags.texts, pa.binary()).to_pylist())
    of_texts = _lists(text_lengths, pa.array(numbers, pa.int64()), has)
    return pa.nulls(len(ids), pa.list_(pa.string())), pc.coalesce(ids, of_texts)


def _texts(sizes: bytes, texts: bytes, kind: pa.DataType) -> pa.Array:
    lengths = np.frombuffer(sizes, "<i4")
    return pa.Array.from_buffers(
        kind, len(lengths), [None, pa.py_buffer(_offsets(lengths)), pa.py_buffer(texts)]
    )


def _output_array(
    output: Output, data: bytes, sizes: npt.NDArray[np.int64], num_rows: npt.NDArray[np.int64]
) -> pa.Array:
    """Return an output of all rows; ``sizes``: its bytes in each request."""
    values = np.frombuffer(data, "<i8" if output.is_integer else "<f4")
    numbers: pa.Array = pa.array(values)
    if is_number(output):
        return numbers
    counts = sizes // values.itemsize
    total, has_rows = int(num_rows.sum()), num_rows > 0
    if 0 in output.batch_dims:
        each = np.divide(counts, num_rows, out=np.zeros(len(counts)), where=has_rows).astype(np.int64)
        return _lists(np.repeat(each, num_rows), numbers, np.ones(total, np.bool_))
    # Without rows: the first row of the request has it.
    has = np.zeros(total, np.bool_)
    has[(np.cumsum(num_rows) - num_rows)[has_rows]] = True
    lengths = np.zeros(total, np.int64)
    lengths[has] = counts[has_rows]
    return _lists(lengths, pa.array(values[np.repeat(has_rows, counts)]), has)


def _lists(lengths: npt.NDArray[Any], values: pa.Array, has: Bools) -> pa.Array:
    """Return lists of these lengths; null where ``has`` is not."""
    mask = None if has.all() else pa.array(~has)
    return pa.ListArray.from_arrays(pa.array(_offsets(lengths), pa.int32()), values, mask=mask)


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _hashed_ids(ids: pa.Array, key: bytes) -> pa.Array:
    values = _hashed(ids.values.cast(pa.string()).cast(pa.binary()), key, b"id")
    mask = ids.is_null() if ids.null_count else None
    return pa.ListArray.from_arrays(ids.offsets, values, mask=mask)


def _hashed(texts: pa.Array, key: bytes, kind: bytes) -> pa.Array:
    """Return keyed hashes of 63 bits; each different value is hashed once."""
    encoded = texts.dictionary_encode()
    digests = b"".join(
        hashlib.blake2b(value, key=key, digest_size=_HASH_BYTES, person=kind).digest()
        for value in encoded.dictionary.to_pylist()
    )
    hashes = np.frombuffer(digests, "<i8") & _HASH_MASK
    return pa.array(hashes, pa.int64()).take(encoded.indices)
