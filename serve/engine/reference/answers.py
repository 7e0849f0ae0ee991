"""Records of answered requests, which the reference engine collects into blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.engine.answered import AnsweredBlock, Columns, DenseColumn, RequestColumns, SparseColumn
from serve.engine.reference.texts import ids_of_texts
from serve.wire import predict_pb2 as wire

# Python objects of a record, beside its bytes.
_RECORD_BYTES = 600
# A block has so many records or bytes, or is so old.
_MAX_RECORDS, _MAX_BYTES, _MAX_AGE_S = 256, 1 << 20, 0.25


class Answered(NamedTuple):
    """One answered request of those that ``Sampling`` chooses.

    Attributes:
        time_s: when it was answered, in seconds since 1970.
        protocol: ``recsys``, ``kserve``, ``torchrec`` or ``rest``.
        model: the model that answered.
        version: version of the model.
        request_id: the client's own name for it; empty if it has none.
        num_rows: rows of the request, B.
        draw: see ``RequestColumns.draws``.
        message: a serialized ``recsys.v1.PredictRequest`` with its inputs as they were sent, whatever its protocol was;
            None if they are not recorded.
        outputs: values of each output of the signature: little-endian float32 or int64, row-major ``[B, *shape]``.
        signature: the model's inputs and outputs.
    """

    time_s: float
    protocol: str
    model: str
    version: str
    request_id: str
    num_rows: int
    draw: float
    message: bytes | None
    outputs: Sequence[bytes]
    signature: Signature

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        return _RECORD_BYTES + len(self.message or b"") + sum(map(len, self.outputs))


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """See ``AnsweredBlock``.

    Attributes:
        records: at least one, of one version, all with inputs or all without.
    """

    records: Sequence[Answered]

    @property
    def model(self) -> str:
        """See ``AnsweredBlock``."""
        return self.records[0].model

    @property
    def version(self) -> str:
        """See ``AnsweredBlock``."""
        return self.records[0].version

    @property
    def signature(self) -> Signature:
        """See ``AnsweredBlock``."""
        return self.records[0].signature

    @property
    def has_inputs(self) -> bool:
        """See ``AnsweredBlock``."""
        return self.records[0].message is not None

    @property
    def num_requests(self) -> int:
        """See ``AnsweredBlock``."""
        return len(self.records)

    @property
    def num_bytes(self) -> int:
        """See ``AnsweredBlock``."""
        return sum(one.num_bytes for one in self.records)

    def draws(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """See ``AnsweredBlock``."""
        return np.array([one.draw for one in self.records], np.float64)

    def columns(self) -> Columns:
        """See ``AnsweredBlock``.

        Raises:
            DecodeError: a message is no request.
            RequestError: a text stands for no ID.
        """
        messages = [
            wire.PredictRequest.FromString(one.message) for one in self.records if one.message is not None
        ]
        messages = [one for one in messages if one.num_rows]
        dense = self.signature.dense if self.has_inputs else ()
        sparse = self.signature.sparse if self.has_inputs else ()
        return Columns(
            self._requests(),
            [_dense_column(one, messages) for one in dense],
            [_sparse_column(one, messages) for one in sparse],
        )

    def _requests(self) -> RequestColumns:
        ids = [one.request_id.encode() for one in self.records]
        names = sorted({one.protocol for one in self.records})
        outputs = zip(*(one.outputs for one in self.records), strict=True)
        return RequestColumns(
            times=np.array([one.time_s for one in self.records]),
            draws=self.draws(),
            num_rows=np.array([one.num_rows for one in self.records], np.int64),
            id_offsets=_offsets([len(text) for text in ids]),
            ids=np.frombuffer(b"".join(ids), np.uint8),
            protocols=np.array([names.index(one.protocol) for one in self.records], np.uint8),
            protocol_names=names,
            outputs=[
                np.frombuffer(b"".join(data), "<i8" if output.is_integer else "<f4")
                for output, data in zip(self.signature.outputs, outputs, strict=True)
            ],
        )


class AnswerCollector:
    """Collects records into blocks. Belongs to the event loop.

    Args:
        hand_over: takes blocks.
    """

    def __init__(self, hand_over: Callable[[AnsweredBlock], None]) -> None:
        self._hand_over = hand_over
        self._waiting: dict[tuple[str, str, bool], list[Answered]] = {}
        self._num_records = self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, record: Answered) -> None:
        """Add a record to the block of its version."""
        records = self._waiting.setdefault((record.model, record.version, record.message is not None), [])
        if records and records[0].signature is not record.signature:  # the version was loaded again
            self.flush()
            records = self._waiting.setdefault((record.model, record.version, record.message is not None), [])
        records.append(record)
        self._num_records += 1
        self._num_bytes += record.num_bytes
        if self._num_records >= _MAX_RECORDS or self._num_bytes >= _MAX_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_AGE_S, self.flush)

    def flush(self) -> None:
        """Hand over what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        self._num_records = self._num_bytes = 0
        for records in waiting.values():
            self._hand_over(RecordedBlock(records))


def _offsets(lengths: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.array(lengths, np.int32), out=offsets[1:])
    return offsets


def _dense_column(dense: DenseInput, messages: Sequence[wire.PredictRequest]) -> DenseColumn:
    has, values = b"", b""
    for message in messages:
        marks = b"\1" * message.num_rows
        one = next((one for one in message.dense if one.name == dense.name), None)
        if one is None:
            one = next(one for one in message.context_dense if one.name == dense.name)
            marks = b"\1" + bytes(message.num_rows - 1)
        has += marks
        values += one.values
    return DenseColumn(_marks(has), np.frombuffer(values, "<f4"))


def _sparse_column(sparse: SparseInput, messages: Sequence[wire.PredictRequest]) -> SparseColumn:
    has, weights = b"", b""
    lengths: list[int] = []
    text_lengths: list[int] = []
    values = []
    has_texts: list[bool] = []
    texts: list[bytes] = []
    for message in messages:
        rest = 0
        one = next((one for one in message.sparse if one.name == sparse.name), None)
        if one is None:
            one = next(one for one in message.context_sparse if one.name == sparse.name)
            rest = message.num_rows - 1
        has += b"\1" * (message.num_rows - rest) + bytes(rest)
        given = [*np.frombuffer(one.lengths, "<i4").tolist(), *[0] * rest]
        lengths += given
        weights += one.weights
        values.append(
            ids_of_texts("sparse", sparse, one.strings) if one.strings else np.frombuffer(one.values, "<i8")
        )
        is_text = bool(sparse.strings and one.strings)
        has_texts += [is_text] * message.num_rows
        text_lengths += given if is_text else [0] * message.num_rows
        texts += one.strings if is_text else ()
    nothing, no_offsets = np.empty(0, np.bool_), np.empty(0, np.int32)
    return SparseColumn(
        has=_marks(has),
        offsets=_offsets(lengths),
        values=np.concatenate([np.empty(0, np.int64), *values]),
        weights=np.frombuffer(weights, "<f4"),
        has_texts=np.array(has_texts, np.bool_) if texts else nothing,
        text_offsets=_offsets(text_lengths) if texts else no_offsets,
        text_ends=_offsets([len(text) for text in texts]) if texts else no_offsets,
        texts=np.frombuffer(b"".join(texts), np.uint8),
    )


def _marks(has: bytes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the marks of rows; none where all have an input."""
    marks = np.frombuffer(has, np.bool_)
    return marks[:0] if marks.all() else marks
