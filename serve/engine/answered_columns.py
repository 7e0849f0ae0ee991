"""The inputs of many requests of one model, put together column by column.

Shape letters: R rows of all requests, N IDs (or texts) of one input in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recsys.base.native_module import NotBuiltError
from recsys.inputs.signature import DenseInput, SparseInput
from serve.engine.native import load_binding
from serve.engine.reference.texts import ids_of_texts
from serve.wire import predict_pb2 as wire


class DenseColumn(NamedTuple):
    """One dense input.

    Attributes:
        has: uint8 ``[R]``: 1 for rows that have numbers; 0 for those of a request that gives the input once for all its
            rows, but for its first.
        values: float32 ``[R, width]``; zeros in rows without numbers.
    """

    has: bytes
    values: bytes


class SparseColumn(NamedTuple):
    """One sparse input.

    Attributes:
        has_ids: uint8 ``[R]``: 1 for rows that have IDs; as ``DenseColumn.has``, and 0 for those that have texts.
        lengths: int32 ``[R]``: the number of IDs of each row.
        values: int64 ``[N]``: the IDs.
        weights: float32 ``[N]`` of IDs and texts, row by row; empty where the input has none.
        has_texts: uint8 ``[R]``: 1 for rows that have texts.
        text_lengths: int32 ``[R]``: the number of texts of each row.
        sizes: int32 ``[N]``: the bytes of each text.
        texts: the texts.
    """

    has_ids: bytes
    lengths: bytes
    values: bytes
    weights: bytes
    has_texts: bytes
    text_lengths: bytes
    sizes: bytes
    texts: bytes


def columns_of(
    messages: Sequence[bytes], dense: Sequence[DenseInput], sparse: Sequence[SparseInput]
) -> tuple[list[DenseColumn], list[SparseColumn]]:
    """Return the columns of inputs; without the interpreter's lock where the native engine is built.

    Args:
        messages: serialized ``recsys.v1.PredictRequest``s, as ``Answered`` has them.
        dense: the dense inputs to return, in order.
        sparse: the sparse inputs to return, in order.
    """
    native = _binding()
    if native is None:
        return python_columns_of(messages, dense, sparse)
    found = native.answered_columns(
        list(messages), [(one.name, one.width) for one in dense], [one.name for one in sparse]
    )
    return [DenseColumn(*one) for one in found[0]], [SparseColumn(*one) for one in found[1]]


def text_ids(sparse: SparseInput, texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the IDs that an input's texts, which a server took, stand for, int64 ``[N]``."""
    return ids_of_texts("sparse", sparse, texts)


@functools.cache
def _binding() -> Any:
    try:
        return load_binding()
    except NotBuiltError:
        return None


def python_columns_of(
    messages: Sequence[bytes], dense: Sequence[DenseInput], sparse: Sequence[SparseInput]
) -> tuple[list[DenseColumn], list[SparseColumn]]:
    """Return the same as ``columns_of``, in Python alone."""
    dense_parts: list[list[list[bytes]]] = [[[], []] for _ in dense]
    sparse_parts: list[list[list[bytes]]] = [[[] for _ in SparseColumn._fields] for _ in sparse]
    for message in messages:
        request = wire.PredictRequest.FromString(message)
        num_rows = request.num_rows
        if not num_rows:
            continue
        rows = {one.name: (one, False) for one in request.dense}
        rows.update((one.name, (one, True)) for one in request.context_dense)
        for parts, dense_input in zip(dense_parts, dense, strict=True):
            one, is_context = rows[dense_input.name]
            rest = num_rows - 1 if is_context else 0
            parts[0].append(_marks(num_rows - rest, rest))
            parts[1] += [one.values, bytes(4 * dense_input.width * rest)]
        bags = {one.name: (one, False) for one in request.sparse}
        bags.update((one.name, (one, True)) for one in request.context_sparse)
        for parts, sparse_input in zip(sparse_parts, sparse, strict=True):
            bag, is_context = bags[sparse_input.name]
            _add_bags(parts, bag, num_rows, is_context)
    return (
        [DenseColumn(*map(b"".join, parts)) for parts in dense_parts],
        [SparseColumn(*map(b"".join, parts)) for parts in sparse_parts],
    )


def _add_bags(parts: list[list[bytes]], one: wire.SparseInput, num_rows: int, is_context: bool) -> None:
    has_ids, lengths, values, weights, has_texts, text_lengths, sizes, texts = parts
    rest = num_rows - 1 if is_context else 0
    marks, counts = _marks(num_rows - rest, rest), one.lengths + bytes(4 * rest)
    nothing, zeros = bytes(num_rows), bytes(4 * num_rows)
    is_text = bool(one.strings)
    has_ids.append(nothing if is_text else marks)
    lengths.append(zeros if is_text else counts)
    values.append(one.values)
    weights.append(one.weights)
    has_texts.append(marks if is_text else nothing)
    text_lengths.append(counts if is_text else zeros)
    sizes += [len(text).to_bytes(4, "little") for text in one.strings]
    texts += one.strings


def _marks(num_with: int, num_without: int) -> bytes:
    return b"\1" * num_with + bytes(num_without)
