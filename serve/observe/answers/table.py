"""Records of answered requests as a batch of the answer log's columns (``recsys.inputs.answer_columns``).

Shape letters: B rows of a request, R rows of all, N IDs (or texts) of one input in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recsys.inputs.answer_columns import AnswerLayout, is_number
from recsys.inputs.signature import DenseInput, Output, SparseInput
from serve.engine.answered_columns import DenseColumn, SparseColumn, columns_of, text_ids
from serve.engine.records import Answered

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


def table_of(
    records: Sequence[Answered], layout: AnswerLayout, key: bytes, kinds: SentKinds
) -> pa.RecordBatch:
    """Return the rows of requests with the layout's columns.

    Args:
        records: requests of one model's version.
        layout: the columns.
        key: the key of hashed inputs.
        kinds: gets how the inputs were sent.
    """
    schema = layout.schema()
    dense, sparse = columns_of([one.message for one in records], layout.dense, layout.sparse)
    num_rows = np.array([one.num_rows for one in records], np.int64)
    arrays = _request_arrays(records, num_rows)
    for dense_input, numbers in zip(layout.dense, dense, strict=True):
        arrays.append(_dense_array(dense_input, numbers))
    for sparse_input, bags in zip(layout.sparse, sparse, strict=True):
        arrays += _sparse_arrays(sparse_input, bags, layout, key, kinds)
    places = {output.name: i for i, output in enumerate(layout.signature.outputs)}
    for output in layout.outputs:
        values = [one.outputs[places[output.name]] for one in records]
        arrays.append(_output_array(output, values, num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _request_arrays(records: Sequence[Answered], num_rows: npt.NDArray[np.int64]) -> list[pa.Array]:
    total = int(num_rows.sum())
    first = records[0]
    micros = (np.array([one.time_s for one in records]) * 1e6).astype(np.int64)
    starts = np.cumsum(num_rows) - num_rows
    ids: pa.Array = pa.array([one.request_id for one in records], pa.string())
    protocols: pa.Array = pa.array([one.protocol for one in records], pa.string())
    if total != len(records):
        of_row = pa.array(np.repeat(np.arange(len(records)), num_rows))
        ids, protocols = ids.take(of_row), protocols.take(of_row)
    row = np.arange(total) - np.repeat(starts, num_rows)
    return [
        pa.array(np.repeat(micros, num_rows), pa.timestamp("us", "UTC")),
        ids,
        pa.array(row.astype(np.int32)),
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
    has_ids, has_texts = np.frombuffer(bags.has_ids, np.bool_), np.frombuffer(bags.has_texts, np.bool_)
    lengths, text_lengths = np.frombuffer(bags.lengths, "<i4"), np.frombuffer(bags.text_lengths, "<i4")
    ids = _lists(lengths, pa.array(np.frombuffer(bags.values, "<i8"), pa.int64()), has_ids)
    is_hashed = sparse.name in layout.hashed
    arrays = []
    if is_hashed:
        hashes = _hashed_ids(ids, key)
        if has_texts.any():
            texts = _texts(bags, pa.binary())
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
            return _lists(text_lengths, _texts(bags, pa.binary()).cast(pa.string()), has), ids
        except pa.ArrowInvalid:
            pass  # not UTF-8
    numbers = text_ids(sparse, _texts(bags, pa.binary()).to_pylist())
    of_texts = _lists(text_lengths, pa.array(numbers, pa.int64()), has)
    return pa.nulls(len(ids), pa.list_(pa.string())), pc.coalesce(ids, of_texts)


def _texts(bags: SparseColumn, kind: pa.DataType) -> pa.Array:
    sizes = np.frombuffer(bags.sizes, "<i4")
    return pa.Array.from_buffers(
        kind, len(sizes), [None, pa.py_buffer(_offsets(sizes)), pa.py_buffer(bags.texts)]
    )


def _output_array(output: Output, values: Sequence[bytes], num_rows: npt.NDArray[np.int64]) -> pa.Array:
    numbers: pa.Array = pa.array(
        np.frombuffer(b"".join(values), "<i8" if output.is_integer else "<f4"),
        pa.int64() if output.is_integer else pa.float32(),
    )
    if is_number(output):
        return numbers
    size = 8 if output.is_integer else 4
    total = int(num_rows.sum())
    counts = np.array([len(data) // size for data in values], np.int64)
    if 0 in output.batch_dims:
        each = np.divide(counts, num_rows, out=np.zeros(len(counts)), where=num_rows > 0).astype(np.int64)
        return _lists(np.repeat(each, num_rows), numbers, np.ones(total, np.bool_))
    # Without rows: the first row of the request has it.
    has = np.zeros(total, np.bool_)
    has[(np.cumsum(num_rows) - num_rows)[num_rows > 0]] = True
    lengths = np.zeros(total, np.int64)
    lengths[has] = counts[num_rows > 0]
    if not (num_rows > 0).all():
        kept = [data for data, rows in zip(values, num_rows, strict=True) if rows]
        numbers = pa.array(np.frombuffer(b"".join(kept), "<i8" if size == 8 else "<f4"), numbers.type)
    return _lists(lengths, numbers, has)


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
