"""Answered requests of one version, column by column, as engines hand them to the answer log and to quality.

Shape letters: Q requests, R rows of all of them, N IDs of one input in all rows, T texts of one input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from recsys.inputs.signature import Output, Signature

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]


class RequestColumns(NamedTuple):
    """The requests themselves.

    Attributes:
        times: float64 ``[Q]``: when they were answered, in seconds since 1970.
        draws: float64 ``[Q]``, in [0, 1): ``draw_of`` the request ID where there is one, else random. A reader with a
            smaller share than the engine's takes those whose draw is below its own.
        num_rows: int64 ``[Q]``.
        id_offsets: int32 ``[Q + 1]``: offsets of the request IDs.
        ids: the bytes of the request IDs, UTF-8; of a request without one, none.
        protocols: uint8 ``[Q]``: places in ``protocol_names``.
        protocol_names: the names, such as ``recsys``.
        outputs: of each output of the signature its numbers, float32 or int64, row-major, request by request.
    """

    times: npt.NDArray[np.float64]
    draws: npt.NDArray[np.float64]
    num_rows: npt.NDArray[np.int64]
    id_offsets: Ints
    ids: Bytes
    protocols: Bytes
    protocol_names: Sequence[str]
    outputs: Sequence[npt.NDArray[Any]]


class DenseColumn(NamedTuple):
    """One dense input.

    Attributes:
        has: bool ``[R]``: whether a row has numbers; empty if all have. Of a request that gives the input once for all
            its rows, the first has.
        values: float32 ``[rows that have numbers * width]``.
    """

    has: Bools
    values: npt.NDArray[np.float32]


class SparseColumn(NamedTuple):
    """One sparse input.

    Attributes:
        has: bool ``[R]``, as ``DenseColumn.has``: whether a row has a list, which may have no IDs.
        offsets: int32 ``[R + 1]``: offsets of the IDs.
        values: int64 ``[N]``: the IDs; of texts those that they stand for.
        weights: float32 ``[N]``; empty where the input has none.
        has_texts: bool ``[R]``, of an input that hashes texts: whether a row was given as texts; empty, like the next
            three, if no row was.
        text_offsets: int32 ``[R + 1]``: offsets of the texts; a row that was given as IDs has none.
        text_ends: int32 ``[T + 1]``: offsets of the texts' bytes.
        texts: the bytes.
    """

    has: Bools
    offsets: Ints
    values: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    has_texts: Bools
    text_offsets: Ints
    text_ends: Ints
    texts: Bytes


class Columns(NamedTuple):
    """Requests, and where they were recorded with their inputs, those in the signature's order."""

    requests: RequestColumns
    dense: Sequence[DenseColumn]
    sparse: Sequence[SparseColumn]


class AnsweredBlock(Protocol):
    """Answered requests of one version, at least one. Immutable; its columns are views of its memory."""

    @property
    def model(self) -> str:
        """The model that answered."""
        ...

    @property
    def version(self) -> str:
        """The model's version."""
        ...

    @property
    def signature(self) -> Signature:
        """The version's inputs and outputs."""
        ...

    @property
    def has_inputs(self) -> bool:
        """Whether the inputs were recorded too; else ``dense`` and ``sparse`` of the columns are empty."""
        ...

    @property
    def num_requests(self) -> int:
        """Q."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that it takes."""
        ...

    def draws(self) -> npt.NDArray[np.float64]:
        """Return ``RequestColumns.draws`` alone, which costs little."""
        ...

    def columns(self) -> Columns:
        """Return its columns."""
        ...


def num_chosen(block: AnsweredBlock, share: float) -> int:
    """Return how many of its requests ``chosen`` takes."""
    return block.num_requests if share >= 1 else int((block.draws() < share).sum())


def sizes_of_output(output: Output, num_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many numbers an output has in each request, int64 ``[Q]``."""
    return np.int64(np.prod(output.shape, dtype=np.int64)) * num_rows ** len(output.batch_dims)


def chosen(columns: Columns, share: float, outputs: Sequence[Output]) -> Columns | None:
    """Return the requests whose draws are below a share: the same columns if all are, None if none is."""
    return selected(columns, columns.requests.draws < share, outputs)


def selected(columns: Columns, takes: Bools, outputs: Sequence[Output]) -> Columns | None:
    """Return the requests for which ``takes``, ``[Q]``, is true, as ``chosen`` does."""
    requests = columns.requests
    if takes.all():
        return columns
    places = np.flatnonzero(takes)
    if not len(places):
        return None
    rows = _ranges(_offsets(requests.num_rows), places)
    id_offsets, ids = _taken_lists(requests.id_offsets, places)
    numbers = []
    for output, values in zip(outputs, requests.outputs, strict=True):
        counts = sizes_of_output(output, requests.num_rows)
        numbers.append(values[_ranges(_offsets(counts), places)])
    return Columns(
        requests._replace(
            times=requests.times[places],
            draws=requests.draws[places],
            num_rows=requests.num_rows[places],
            id_offsets=id_offsets,
            ids=requests.ids[ids],
            protocols=requests.protocols[places],
            outputs=numbers,
        ),
        [_dense_rows(one, rows, int(requests.num_rows.sum())) for one in columns.dense],
        [_sparse_rows(one, rows) for one in columns.sparse],
    )


def _dense_rows(column: DenseColumn, rows: npt.NDArray[np.int64], num_rows: int) -> DenseColumn:
    has, num_with = column.has, num_rows
    if has.size:
        places = np.cumsum(has) - 1
        num_with, has = int(has.sum()), has[rows]
        rows = places[rows[has]]
    values = column.values.reshape(num_with, -1)[rows] if num_with else column.values
    return DenseColumn(has, values.reshape(-1))


def _sparse_rows(column: SparseColumn, rows: npt.NDArray[np.int64]) -> SparseColumn:
    offsets, places = _taken_lists(column.offsets, rows)
    found = column._replace(
        has=column.has[rows] if column.has.size else column.has,
        offsets=offsets,
        values=column.values[places],
        weights=column.weights[places] if column.weights.size else column.weights,
    )
    if not column.has_texts.size:
        return found
    text_offsets, of_texts = _taken_lists(column.text_offsets, rows)
    text_ends, of_bytes = _taken_lists(column.text_ends, of_texts)
    return found._replace(
        has_texts=column.has_texts[rows],
        text_offsets=text_offsets,
        text_ends=text_ends,
        texts=column.texts[of_bytes],
    )


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _taken_lists(
    offsets: npt.NDArray[Any], places: npt.NDArray[np.int64]
) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Return the offsets of some lists alone, and where their elements are."""
    lengths = np.diff(offsets)[places]
    return _offsets(lengths).astype(np.int32), _ranges(offsets, places)


def _ranges(offsets: npt.NDArray[Any], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers from ``offsets[p]`` to ``offsets[p + 1]`` for each place."""
    starts = offsets[places].astype(np.int64)
    lengths = offsets[places + 1] - starts
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    found: npt.NDArray[np.int64] = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return found
