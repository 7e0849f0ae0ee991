"""Records of answered requests as a batch of the answer log's columns (``recsys.inputs.answer_columns``).

Shape letters: R rows of all requests, N IDs of one input in all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recsys.inputs.answer_columns import AnswerLayout, is_number
from recsys.inputs.signature import DenseInput, Output, SparseInput
from recsys.kernels.operators import text_hasher
from serve.engine.answered import (
    Bools,
    Columns,
    DenseColumn,
    RequestColumns,
    SparseColumn,
    sizes_of_output,
)
from serve.observe.answers.parquet.pages import texts_of

#: Columns of texts that rarely repeat.
UNIQUE = ("request_id",)
_HASH_BYTES = 8
# The hashes are never negative, as the IDs of texts.
_HASH_MASK = np.int64(2**63 - 1)
_TEXTS = pa.list_(pa.string())
_TIMES = pa.timestamp("us", "UTC")


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


class VersionNames(NamedTuple):
    """The names of a model and its version."""

    model: str
    version: str


def table_of(
    columns: Columns, names: VersionNames, layout: AnswerLayout, key: bytes, kinds: SentKinds
) -> pa.RecordBatch:
    """Return the rows of requests with the layout's columns.

    Args:
        columns: requests of one model's version, with their inputs.
        names: the version.
        layout: the columns.
        key: the key of hashed inputs.
        kinds: gets how the inputs were sent.
    """
    requests = columns.requests
    arrays = _request_arrays(names, requests)
    for dense_input, numbers in zip(layout.signature.dense, columns.dense, strict=True):
        if dense_input.name not in layout.left_out:
            arrays.append(_dense_array(dense_input, numbers))
    for sparse_input, bags in zip(layout.signature.sparse, columns.sparse, strict=True):
        if sparse_input.name not in layout.left_out:
            arrays += _sparse_arrays(sparse_input, bags, layout, key, kinds)
    for output, values in zip(layout.signature.outputs, requests.outputs, strict=True):
        if output.name not in layout.left_out:
            arrays.append(_output_array(output, values, requests.num_rows))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema())


def _request_arrays(names: VersionNames, requests: RequestColumns) -> list[pa.Array]:
    num_rows = requests.num_rows
    total = int(num_rows.sum())
    micros = (requests.times * 1e6).astype(np.int64)
    ids = _texts(requests.id_offsets, requests.ids, pa.string())
    protocols = _named(requests.protocol_names, requests.protocols)
    row, of_each = np.zeros(total, np.int32), num_rows.astype(np.int32)
    if (num_rows != 1).any():
        of_row = np.repeat(np.arange(len(num_rows)), num_rows)
        ids, protocols = ids.take(_numbers(of_row)), protocols.take(_numbers(of_row))
        row = (np.arange(total) - np.repeat(np.cumsum(num_rows) - num_rows, num_rows)).astype(np.int32)
        micros, of_each = micros[of_row], of_each[of_row]
    return [
        pa.Array.from_buffers(_TIMES, total, [None, pa.py_buffer(micros)]),
        ids,
        _numbers(row),
        _numbers(of_each),
        _repeated(names.model, total),
        _repeated(names.version, total),
        protocols,
    ]


def _named(names: Sequence[str], places: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the name at each place."""
    if len(names) == 1:
        return _repeated(names[0], len(places))
    encoded = [name.encode() for name in names]
    ends = _offsets([len(name) for name in encoded])
    different = _texts(ends, np.frombuffer(b"".join(encoded), np.uint8), pa.string())
    return pa.DictionaryArray.from_arrays(_numbers(places), different).cast(pa.string())


def _repeated(name: str, count: int) -> pa.Array:
    text = name.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(text))
    return _texts(offsets, np.frombuffer(text * count, np.uint8), pa.string())


def _dense_array(dense: DenseInput, numbers: DenseColumn) -> pa.Array:
    has, values = numbers
    if dense.width == 1:
        if not has.size:
            return _numbers(values)
        of_rows = np.zeros(len(has), np.float32)
        of_rows[has] = values
        return _numbers(of_rows, has)
    lengths = np.where(has, dense.width, 0) if has.size else np.full(len(values) // dense.width, dense.width)
    return _lists(_offsets(lengths), _numbers(values), has)


def _sparse_arrays(
    sparse: SparseInput, bags: SparseColumn, layout: AnswerLayout, key: bytes, kinds: SentKinds
) -> list[pa.Array]:
    """Return the input's arrays, as many as it has columns."""
    is_hashed = sparse.name in layout.hashed
    ids, texts = _ids_and_texts(bags, needs_utf8=not is_hashed)
    arrays = []
    if is_hashed:
        hashes = _hashed_ids(ids, key)
        if texts is not None:
            hashes = pc.coalesce(hashes, _hashed_texts(texts, key))
        arrays.append(hashes)
    else:
        arrays.append(ids)
        if sparse.strings:
            arrays.append(pa.nulls(len(ids), pa.list_(pa.string())) if texts is None else texts.cast(_TEXTS))
            if texts is not None and texts.null_count < len(texts):
                kinds.has_texts.add(sparse.name)
        if ids.null_count < len(ids):
            kinds.has_ids.add(sparse.name)
    if sparse.weighted:
        arrays.append(_lists(bags.offsets, _numbers(bags.weights), bags.has))
    return arrays


def _ids_and_texts(bags: SparseColumn, needs_utf8: bool) -> tuple[pa.Array, pa.Array | None]:
    """Return the IDs of the rows that were given as IDs, and the texts of the others, None if no row was.

    With ``needs_utf8``, as Parquet's texts do, rows with other texts count as given as the IDs of these texts.
    """
    values = _numbers(bags.values)
    if not bags.has_texts.size:
        return _lists(bags.offsets, values, bags.has), None
    has_texts = bags.has_texts & bags.has if bags.has.size else bags.has_texts
    texts = _texts(bags.text_ends, bags.texts, pa.binary())
    wrong = _without_utf8(texts) if needs_utf8 else np.zeros(0, np.bool_)
    if wrong.any():
        of_text = np.repeat(np.arange(len(has_texts)), np.diff(bags.text_offsets))
        has_texts = has_texts.copy()
        has_texts[of_text[wrong]] = False
    has_ids = ~has_texts & bags.has if bags.has.size else ~has_texts
    return _some_lists(bags.offsets, values, has_ids), _some_lists(bags.text_offsets, texts, has_texts)


def _without_utf8(texts: pa.Array) -> Bools:
    """Return which texts are not UTF-8."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([not _is_utf8(text) for text in texts.to_pylist()], np.bool_)
    return np.zeros(len(texts), np.bool_)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _texts(offsets: npt.NDArray[np.int32], texts: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(texts)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _output_array(output: Output, values: npt.NDArray[Any], num_rows: npt.NDArray[np.int64]) -> pa.Array:
    """Return an output of all rows."""
    if is_number(output):
        return _numbers(values)
    counts = sizes_of_output(output, num_rows)
    total, has_rows = int(num_rows.sum()), num_rows > 0
    if 0 in output.batch_dims:
        each = np.divide(counts, num_rows, out=np.zeros(len(counts)), where=has_rows).astype(np.int64)
        return _lists(_offsets(np.repeat(each, num_rows)), _numbers(values), np.empty(0, np.bool_))
    # Without rows: the first row of the request has it.
    has = np.zeros(total, np.bool_)
    has[(np.cumsum(num_rows) - num_rows)[has_rows]] = True
    lengths = np.zeros(total, np.int64)
    lengths[has] = counts[has_rows]
    return _lists(_offsets(lengths), _numbers(values[np.repeat(has_rows, counts)]), has)


def _lists(offsets: npt.NDArray[np.int32], values: pa.Array, has: Bools) -> pa.Array:
    """Return lists with these offsets; null where ``has`` is not, unless it is empty."""
    buffers = [_bits(has), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), len(offsets) - 1, buffers, children=[values])


def _some_lists(offsets: npt.NDArray[np.int32], values: pa.Array, has: Bools) -> pa.Array:
    """Return the lists of which ``has`` is true, and null in place of the others."""
    lengths = np.diff(offsets)
    kept = values.filter(_bools(np.repeat(has, lengths)))
    return _lists(_offsets(np.where(has, lengths, 0)), kept, has)


def _numbers(values: npt.NDArray[Any], has: Bools | None = None) -> pa.Array:
    """Return numbers without a copy; null where ``has`` is not.

    ``pa.array`` would import pandas, beside the first requests.
    """
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [_bits(has), pa.py_buffer(values)])


def _bools(values: Bools) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _packed(values)])


def _bits(has: Bools | None) -> pa.Buffer | None:
    """Return what is not null, bit by bit; None if nothing is, or ``has`` is empty."""
    return None if has is None or has.all() else _packed(has)


def _packed(values: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def _offsets(lengths: npt.ArrayLike) -> npt.NDArray[np.int32]:
    offsets = np.zeros(np.size(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _hashed_ids(ids: pa.Array, key: bytes) -> pa.Array:
    return _lists_like(ids, _hashed(ids.values.cast(pa.string()).cast(pa.binary()), key, b"id"))


def _hashed_texts(texts: pa.Array, key: bytes) -> pa.Array:
    return _lists_like(texts, _hashed(texts.values, key, b"text"))


def _lists_like(lists: pa.Array, values: pa.Array) -> pa.Array:
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(lists.offsets, values, mask=mask)


def _hashed(texts: pa.Array, key: bytes, kind: bytes) -> pa.Array:
    """Return keyed hashes of 63 bits; each different value is hashed once."""
    encoded = texts.dictionary_encode()
    different = encoded.dictionary
    hasher = text_hasher()
    if hasher is None:
        digests = b"".join(
            hashlib.blake2b(value, key=key, digest_size=_HASH_BYTES, person=kind).digest()
            for value in different.to_pylist()
        )
    else:
        digests = hasher(*texts_of(different), key, kind)
    hashes = np.frombuffer(digests, "<i8") & _HASH_MASK
    return _numbers(hashes).take(encoded.indices)
