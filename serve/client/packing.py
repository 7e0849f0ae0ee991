"""Packing of lists, arrays, tensors and KJTs into requests, and unpacking of responses into arrays.

Torch is not imported: tensors and jagged tensors are recognized by their methods.

Shape letters: B rows of a request, F sparse inputs, N number of IDs of one input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from serve.wire import predict_pb2 as wire

_Array = npt.NDArray[Any]
# An input: nested lists, an array, a tensor or a JaggedTensor.
ArrayLike = Any
# The wire's int32.
_MAX_ROWS = 2**31 - 1


@dataclass(frozen=True)
class Jagged:
    """The rows of one sparse input: lengths ``[B]``, values ``[N]``, weights ``[N]``."""

    lengths: _Array
    values: _Array
    weights: _Array | None


@dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs that all rows of a ranking request share, such as the user's. Each has one row.

    Attributes:
        dense: by name, float ``[1, width]``.
        sparse: by name, one row of IDs, in a form of ``build_request``.
        weights: by name, for weighted inputs.
        num_rows: rows of the request; required if there are no other inputs.
    """

    dense: Mapping[str, ArrayLike] = field(default_factory=dict)
    sparse: Mapping[str, ArrayLike] | Any = field(default_factory=dict)
    weights: Mapping[str, ArrayLike] | None = None
    num_rows: int | None = None


def build_request(
    dense: Mapping[str, ArrayLike],
    sparse: Mapping[str, ArrayLike] | Any,
    weights: Mapping[str, ArrayLike] | None = None,
    *,
    context: Context | None = None,
    model: str = "",
    request_id: str = "",
) -> wire.PredictRequest:
    """Pack one request.

    Args:
        dense: by name, float ``[B, width]`` (or ``[B]`` if the width is 1).
        sparse: by name, one of: a list of B rows of IDs (a bare ID is a row of one), an integer array or tensor
            ``[B, L]`` or ``[B]``, or a JaggedTensor; or a single KeyedJaggedTensor. In place of numbers, all IDs of an
            input may be texts (or bytes, sent as they are), in lists or arrays: the server turns them into IDs.
        weights: by name, in the form of the input's IDs; jagged tensors carry their own weights.
        context: the inputs that all B rows share.
        model: the model's name; empty for the one that the server holds.
        request_id: ID of the request in the server's log.

    Raises:
        ValueError: the message names the input, got and expected.
    """
    request = wire.PredictRequest(model=model, request_id=request_id)
    num_rows = _pack("", dense, sparse, weights, request.dense, request.sparse)
    if len(set(num_rows.values())) > 1:
        raise ValueError(f"rows: got {num_rows}, expected the same number of rows in every input")
    request.num_rows = _num_rows(num_rows, context)
    if context is not None:
        shared = _pack(
            "context_",
            context.dense,
            context.sparse,
            context.weights,
            request.context_dense,
            request.context_sparse,
        )
        for name, rows in shared.items():
            if rows != 1:
                raise ValueError(f"{name}: got {rows} rows, expected one, which stands for all")
    return request


def _num_rows(rows: Mapping[str, int], context: Context | None) -> int:
    """Return B of the inputs, or of the context."""
    given = None if context is None else context.num_rows
    if given is not None and not 0 <= given <= _MAX_ROWS:
        raise ValueError(f"context.num_rows: got {given}, expected 0 to {_MAX_ROWS}")
    first = next(iter(rows), None)
    if first is None:
        if given is None and context is not None:
            raise ValueError(
                "context: got every input, expected at least one with a row for each candidate, or num_rows"
            )
        return given or 0
    if given is not None and given != rows[first]:
        raise ValueError(f"context.num_rows: got {given}, expected {rows[first]}, as many as {first} has")
    return rows[first]


def _pack(
    prefix: str,
    dense: Mapping[str, ArrayLike],
    sparse: Mapping[str, ArrayLike] | Any,
    weights: Mapping[str, ArrayLike] | None,
    to_dense: Any,
    to_sparse: Any,
) -> dict[str, int]:
    """Add the inputs to a request's fields, and return the rows of each."""
    weights = weights or {}
    jagged = _by_feature(sparse)
    unknown = [name for name in weights if name not in jagged]
    if unknown:
        raise ValueError(
            f"{prefix}weights: got {unknown[0]!r}, expected only names of sparse inputs: {list(jagged)}"
        )
    num_rows: dict[str, int] = {}
    for name, values in dense.items():
        at = f"{prefix}dense[{name!r}]"
        array = _dense(at, values)
        num_rows[at] = len(array)
        to_dense.add(name=name, values=array.tobytes())
    for name, rows in jagged.items():
        at = f"{prefix}sparse[{name!r}]"
        lengths, ids, own_weights = _rows(at, rows)
        texts = _texts(at, ids)
        if name in weights:
            own_weights = _weights(f"{prefix}weights[{name!r}]", weights[name], lengths)
        num_rows[at] = len(lengths)
        to_sparse.add(
            name=name,
            lengths=lengths.astype("<i4").tobytes(),
            values=b"" if texts else _flat(at, ids, "<i8").tobytes(),
            weights=b"" if own_weights is None else own_weights.astype("<f4").tobytes(),
            strings=texts,
        )
    return num_rows


class Answer(dict[str, npt.NDArray[Any]]):
    """The outputs of a request by name: float32 or int64 ``[B, ...]``, read-only views of the response.

    Attributes:
        model: name of the model that answered.
        version: its version.
    """

    def __init__(
        self, outputs: Mapping[str, npt.NDArray[Any]], *, model: str = "", version: str = ""
    ) -> None:
        super().__init__(outputs)
        self.model = model
        self.version = version


def read_response(response: wire.PredictResponse) -> Answer:
    """Return the outputs of a response."""
    outputs = {output.name: output_array(output) for output in response.outputs}
    return Answer(outputs, model=response.model, version=response.version)


def output_array(output: wire.Output) -> _Array:
    """Return an output's numbers as an array, a read-only view of the message."""
    if output.HasField("int64_values"):
        return np.frombuffer(output.int64_values, "<i8").reshape(tuple(output.dims))
    return np.frombuffer(output.values, "<f4").reshape(tuple(output.dims))


def _by_feature(sparse: Any) -> dict[str, Any]:
    """Return one entry per sparse input, for a mapping or a KeyedJaggedTensor."""
    if isinstance(sparse, Mapping):
        return dict(sparse)
    if not all(hasattr(sparse, method) for method in ("keys", "values", "lengths")):
        raise ValueError(f"sparse: got {type(sparse).__name__}, expected rows by name or a KeyedJaggedTensor")
    names = list(sparse.keys())
    lengths = _array(sparse.lengths()).reshape(len(names), -1)
    values = _array(sparse.values())
    weights = _own_weights(sparse)
    ends = lengths.sum(axis=1).cumsum()
    return {
        name: Jagged(lengths[i], values[start:end], None if weights is None else weights[start:end])
        for i, (name, start, end) in enumerate(zip(names, [0, *ends[:-1]], ends, strict=True))
    }


def _own_weights(jagged: Any) -> _Array | None:
    weights = jagged.weights_or_none() if hasattr(jagged, "weights_or_none") else None
    return None if weights is None else _array(weights)


def _array(values: Any) -> _Array:
    """Return an array for an array or a tensor on any device, with or without gradients."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _dense(at: str, values: ArrayLike) -> _Array:
    try:
        array = np.ascontiguousarray(_array(values), dtype="<f4")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{at}: expected numbers [B, width] ({error})") from None
    if array.ndim == 1:
        array = array[:, np.newaxis]
    if array.ndim != 2:
        raise ValueError(f"{at}: got shape {list(array.shape)}, expected [B, width]")
    return array


def _rows(field: str, rows: Any) -> tuple[_Array, _Array | list[Any], _Array | None]:
    """Return lengths ``[B]``, unchecked values ``[N]`` and, for weighted jagged tensors, weights ``[N]``."""
    if isinstance(rows, Jagged):
        return rows.lengths, rows.values, rows.weights
    if callable(getattr(rows, "lengths", None)) and callable(getattr(rows, "values", None)):
        return _array(rows.lengths()), _array(rows.values()), _own_weights(rows)
    if hasattr(rows, "shape"):
        array = _array(rows)
        if array.ndim not in (1, 2):
            raise ValueError(f"{field}: got shape {list(array.shape)}, expected [B, L] or [B]")
        width = 1 if array.ndim == 1 else array.shape[1]
        return np.full(len(array), width, np.int64), array.reshape(-1), None
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise ValueError(f"{field}: got {type(rows).__name__}, expected a list of rows")
    lists = [_list(row) for row in rows]
    flat = [value for row in lists for value in row]
    return np.array([len(row) for row in lists], np.int64), flat, None


def _list(row: Any) -> list[Any]:
    if isinstance(row, list):
        return row
    if hasattr(row, "tolist"):
        row = row.tolist()
    return list(row) if isinstance(row, Iterable) and not isinstance(row, (str, bytes)) else [row]


def _texts(field: str, values: _Array | list[Any]) -> list[bytes]:
    """Return texts as the bytes to send; none for numbers."""
    if len(values) == 0 or not isinstance(values[0], (str, bytes)):
        return []
    texts = []
    for i, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise ValueError(f"{field}: got {type(value).__name__} at position {i}, expected texts alone")
        try:
            texts.append(value.encode() if isinstance(value, str) else bytes(value))
        except UnicodeEncodeError:
            raise ValueError(
                f"{field}: got half a surrogate pair at position {i}, expected text in UTF-8"
            ) from None
    return texts


def _flat(field: str, values: Any, dtype: str) -> _Array:
    """Return a one-dimensional, contiguous array of the wire's type; never rounds an ID."""
    try:
        array = np.asarray(values)
        kinds = "iu" if dtype == "<i8" else "iuf"
        if array.size and (array.ndim != 1 or array.dtype.kind not in kinds):
            raise ValueError(f"got {array.dtype} {list(array.shape)}")
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise ValueError(f"got {array.max()}")
    except (ValueError, OverflowError) as error:
        expected = "whole numbers of at most 64 bits, or texts alone," if dtype == "<i8" else "numbers"
        raise ValueError(f"{field}: expected {expected} in each row ({error})") from None
    return np.ascontiguousarray(array, dtype=dtype)


def _weights(field: str, given: ArrayLike, lengths: _Array) -> _Array:
    own_lengths, values, _ = _rows(field, given)
    if not np.array_equal(own_lengths, lengths):
        raise ValueError(
            f"{field}: got {own_lengths.tolist()[:8]} weights per row, "
            f"expected one per ID: {lengths.tolist()[:8]}"
        )
    return _flat(field, values, "<f4")
