"""Frames of pandas, polars or Arrow as the inputs of requests: a column for each input, or for each of its numbers.

Shape letters: B rows of a request, N number of IDs of one input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serve.client.packing import Answer, Jagged, build_request
from serve.wire import predict_pb2 as wire

if TYPE_CHECKING:
    from recsys.data.tables.columns import Columns


def is_frame(inputs: Any) -> bool:
    """Return whether the first argument of ``predict`` is a frame, and not dense inputs by name."""
    return inputs is not None and not isinstance(inputs, Mapping)


def check_alone(*others: Any) -> None:
    """Check that a frame comes without ``sparse``, ``weights`` and ``context``."""
    if any(other is not None for other in others):
        raise ValueError(
            "sparse, weights, context: got one with a frame, expected the frame to have all inputs"
        )


def frame_requests(
    frame: Any, metadata: wire.ModelMetadata, request_id: str = ""
) -> Iterator[wire.PredictRequest]:
    """Yield the rows of a frame as requests of as many rows as the server takes; at least one request.

    Columns that are no inputs are left out. Values are read as ``recsys-train`` reads them: a null is a missing number
    or an empty bag, a list is a bag, whole numbers may be floats or texts.

    Args:
        frame: What ``pyarrow.table`` takes.
        metadata: The model's inputs.
        request_id: ID of each request.

    Raises:
        ValueError: The package is the client alone, a column is missing, or a value is wrong.
    """
    try:
        from recsys.data.tables.columns import Columns, with_elements
        from recsys.data.tables.reading.pieces import Frame
    except ImportError as error:
        raise ValueError(
            f"dense: got a {type(frame).__name__}, which needs all of recsys-serving ({error}), expected arrays "
            "by name: install recsys-serving in place of recsys-serving-client"
        ) from None
    table = with_elements(Frame(frame).table, [name for one in metadata.dense for name in one.columns])
    _check_columns(table.column_names, metadata)
    most = metadata.limits.max_rows or max(table.num_rows, 1)
    for first in range(0, max(table.num_rows, 1), most):
        part = table.slice(first, most)
        columns = Columns(part, lambda row, first=first: f"data, row {first + row}")  # type: ignore[misc]
        dense = {one.name: _dense(part, columns, one) for one in metadata.dense}
        sparse = {one.name: _sparse(columns, one) for one in metadata.sparse}
        yield build_request(dense, sparse, request_id=request_id)


def joined(answers: list[Answer]) -> Answer:
    """Return the answers to parts of a frame as one; its version names all that answered."""
    first = answers[0]
    outputs = {name: np.concatenate([answer[name] for answer in answers]) for name in first}
    versions = {answer.version: None for answer in answers}
    return Answer(outputs, model=first.model, version=", ".join(versions))


def _check_columns(columns: list[str], metadata: wire.ModelMetadata) -> None:
    weighted = [one.name for one in metadata.sparse if one.weighted]
    if weighted:
        raise ValueError(
            f"dense: got a frame for the weighted input {weighted[0]!r}, expected arrays by name"
        )
    needed = [name for one in metadata.dense for name in (one.columns or [one.name])]
    needed += [one.name for one in metadata.sparse]
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ValueError(
            f"dense: got a frame without the columns {missing[:5]}, expected one for each input: {needed}"
        )


def _dense(table: Any, columns: Columns, one: wire.DenseSignature) -> Any:
    """Return ``[B, width]``, NaN for missing numbers."""
    if not one.columns and one.width > 1:
        return table.column(one.name).to_pylist()  # a list for each row
    return np.stack([columns.numbers(name) for name in one.columns or [one.name]], axis=1)


def _sparse(columns: Columns, one: wire.SparseSignature) -> Any:
    """Return the bags of B rows, of IDs or of texts."""
    from recsys.inputs.columns import RAW, TableSpec

    spec = TableSpec(
        name=one.name,
        num_embeddings=1,
        feature_names=(one.name,),
        ids=RAW,
        strings=one.strings,
        separator=one.separator,
    )
    if one.strings:
        texts = columns.texts(one.name, spec)
        if one.HasField("max_ids"):
            _check_sizes(columns, one, np.array([len(bag) for bag in texts], np.int64))
        return texts
    bags = columns.bags(one.name, spec)
    lengths = np.diff(bags.offsets)
    if one.HasField("max_ids"):
        _check_sizes(columns, one, lengths)
    return Jagged(lengths, bags.values, None)


def _check_sizes(columns: Columns, one: wire.SparseSignature, lengths: NDArray[np.int64]) -> None:
    expected = f"at most {one.max_ids}: the model crosses the column"
    columns.expect_at_most(one.max_ids, one.name, lengths, expected)
