"""The inputs of many requests of one model, put together column by column.

Shape letters: Q requests, R rows of all of them, N IDs (or texts) of one input in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from recsys.base.native_module import NotBuiltError
from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.engine.native import load_binding
from serve.engine.native_events import NativeAnswered
from serve.engine.records import Answered
from serve.engine.reference.texts import ids_of_texts
from serve.wire import predict_pb2 as wire

# Python objects of a record, beside its bytes.
_RECORD_BYTES = 600


class RequestColumns(NamedTuple):
    """The requests themselves.

    Attributes:
        times: float64 ``[Q]``: when they were answered, in seconds since 1970.
        num_rows: int64 ``[Q]``.
        id_sizes: int32 ``[Q]``: the bytes of each request ID.
        ids: the request IDs.
        protocol_sizes: int32 ``[Q]``: the bytes of each protocol's name.
        protocols: the names.
        output_sizes: int64 ``[Q]`` of each output: its bytes.
        outputs: the bytes of each output of the signature.
    """

    times: bytes
    num_rows: bytes
    id_sizes: bytes
    ids: bytes
    protocol_sizes: bytes
    protocols: bytes
    output_sizes: list[bytes]
    outputs: list[bytes]


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
        has_texts: uint8 ``[R]``: 1 for rows that have texts; empty, like the next two, where no request has any.
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


class Columns(NamedTuple):
    """Requests and their inputs, column by column."""

    requests: RequestColumns
    dense: list[DenseColumn]
    sparse: list[SparseColumn]


class Part(NamedTuple):
    """Some answered requests of one version, ready to be put together with others.

    Attributes:
        model: the model that answered.
        version: its version.
        signature: its inputs and outputs.
        num_requests: how many there are.
        num_bytes: the memory that they take.
        requests: the requests: the native engine's block, or records.
    """

    model: str
    version: str
    signature: Signature
    num_requests: int
    num_bytes: int
    requests: Any


def part_of(records: Sequence[Answered], share: float) -> Part | None:
    """Return those of the requests, at least one, of one version, whose draw is below ``share``; None for none."""
    if isinstance(records, NativeAnswered):
        block = records.block if share >= 1 else records.block.below(share)
        if not len(block):
            return None
        model, version = records.names
        return Part(model, version, records.signature, len(block), block.num_bytes(), block)
    chosen = [one for one in records if one.draw < share]
    if not chosen:
        return None
    first = chosen[0]
    num_bytes = sum(_RECORD_BYTES + len(one.message) for one in chosen)
    return Part(first.model, first.version, first.signature, len(chosen), num_bytes, chosen)


def columns_of(parts: Sequence[Part], dense: Sequence[DenseInput], sparse: Sequence[SparseInput]) -> Columns:
    """Return the columns of requests; without the interpreter's lock where the native engine is built.

    Args:
        parts: requests of one version.
        dense: the dense inputs to return, in order.
        sparse: the sparse inputs to return, in order.
    """
    native = _binding()
    if native is None:
        return python_columns_of([one for part in parts for one in part.requests], dense, sparse)
    blocks = [
        native.AnsweredBlock([tuple(one[:-1]) for one in part.requests])
        if isinstance(part.requests, list)
        else part.requests
        for part in parts
    ]
    requests, numbers, bags = native.answered_columns(
        blocks, [(one.name, one.width) for one in dense], [one.name for one in sparse]
    )
    return Columns(
        RequestColumns(*requests),
        [DenseColumn(*one) for one in numbers],
        [SparseColumn(*one) for one in bags],
    )


def text_ids(sparse: SparseInput, texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return the IDs that an input's texts, which a server took, stand for, int64 ``[N]``."""
    return ids_of_texts("sparse", sparse, texts)


def is_native() -> bool:
    """Return whether columns are put together without the interpreter's lock."""
    return _binding() is not None


@functools.cache
def _binding() -> Any:
    try:
        return load_binding()
    except NotBuiltError:
        return None


def python_columns_of(
    records: Sequence[Answered], dense: Sequence[DenseInput], sparse: Sequence[SparseInput]
) -> Columns:
    """Return the same as ``columns_of``, in Python alone."""
    dense_parts: list[list[list[bytes]]] = [[[], []] for _ in dense]
    sparse_parts: list[list[list[bytes]]] = [[[] for _ in SparseColumn._fields] for _ in sparse]
    for record in records:
        request = wire.PredictRequest.FromString(record.message)
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
    return Columns(
        _request_columns(records),
        [DenseColumn(*map(b"".join, parts)) for parts in dense_parts],
        [_without_texts(SparseColumn(*map(b"".join, parts))) for parts in sparse_parts],
    )


def _request_columns(records: Sequence[Answered]) -> RequestColumns:
    ids = [one.request_id.encode() for one in records]
    protocols = [one.protocol.encode() for one in records]
    outputs = list(zip(*(one.outputs for one in records), strict=True))
    return RequestColumns(
        times=np.array([one.time_s for one in records], "<f8").tobytes(),
        num_rows=np.array([one.num_rows for one in records], "<i8").tobytes(),
        id_sizes=np.array([len(text) for text in ids], "<i4").tobytes(),
        ids=b"".join(ids),
        protocol_sizes=np.array([len(text) for text in protocols], "<i4").tobytes(),
        protocols=b"".join(protocols),
        output_sizes=[np.array([len(data) for data in of], "<i8").tobytes() for of in outputs],
        outputs=[b"".join(of) for of in outputs],
    )


def _without_texts(column: SparseColumn) -> SparseColumn:
    """Return a column whose parts about texts are empty if no request has some."""
    return column if any(column.has_texts) else column._replace(has_texts=b"", text_lengths=b"")


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
