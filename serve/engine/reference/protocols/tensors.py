"""Conversion of Open Inference's named tensors to a request for one model.

Shape letters: B rows of a request, L IDs per row if all rows have the same number, N number of IDs of one
input.

Open Inference has no jagged tensors. A sparse input ``user`` is sent as two (or three) tensors, or as one:

* ``user.values`` INT64 ``[N]`` and ``user.lengths`` INT32 ``[B]``;
* ``user`` INT64 ``[B, L]``, or ``[B]`` for one ID a row;
* in either form, for weighted inputs, ``user.weights`` FP32, of the shape of the IDs.

The tensor with the IDs may be BYTES: a text in place of each ID.

A dense input is FP32 ``[B, width]``, or ``[B]`` if its width is 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.config.models import BatchLimits
from serve.engine.reference.raw_request import RawDense, RawRequest, RawSparse
from serve.errors import MAX_CHARS, RequestError, listed
from serve.protocols.calls import check_size
from serve.protocols.open_inference import DTYPES, FLOAT, ID, LENGTH, TEXT, input_specs, unpack_texts

_WHOLE_NUMBERS = (ID, LENGTH)
_MAX_LENGTH = np.iinfo(np.int32).max


@dataclass(slots=True)
class Tensor:
    """One tensor of a request, unchecked.

    Attributes:
        name: name of the input, or of a part of one.
        datatype: such as FP32.
        shape: the shape as the client states it.
        data: little-endian, row-major; each text of BYTES after its length.
        texts: texts that were not sent as ``data``.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes
    texts: Sequence[bytes] = ()

    @property
    def field(self) -> str:
        """The tensor's name in error texts."""
        return f"inputs[{self.name[:MAX_CHARS]!r}]"


class _MissingError(Exception):
    """A tensor is missing; the message is its name."""


def raw_request(
    signature: Signature, tensors: Sequence[Tensor], context: frozenset[str], limits: BatchLimits
) -> RawRequest:
    """Build a request from its tensors.

    Args:
        signature: signature of the model.
        tensors: tensors of the request, in any order.
        context: names of the inputs that have one row for all.
        limits: limits of one request; B is checked against them before lengths are allocated.

    Raises:
        RequestError: a tensor is missing, unknown, or of a wrong type or shape.
    """
    given = _by_name(tensors)
    try:
        inputs = [_dense(d, given) for d in signature.dense]
        bags = [_sparse(s, given, limits) for s in signature.sparse]
    except _MissingError as missing:
        # The missing tensor may be present under a misspelt name.
        _refuse_unknown(signature, given)
        raise RequestError(f"inputs: missing {missing}, expected each of the model's inputs once") from None
    if given:
        _refuse_unknown(signature, given)
    rows = {dense.name: num_rows for dense, num_rows in inputs}
    rows.update((sparse.name, num_rows) for sparse, num_rows in bags)
    _check_context(context, list(rows))
    return RawRequest(
        num_rows=_num_rows(rows, context),
        dense=[raw for raw, _ in inputs if raw.name not in context],
        sparse=[raw for raw, _ in bags if raw.name not in context],
        context_dense=[raw for raw, _ in inputs if raw.name in context],
        context_sparse=[raw for raw, _ in bags if raw.name in context],
    )


def _by_name(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    given = {tensor.name: tensor for tensor in tensors}
    if len(given) != len(tensors):
        [(doubled, _)] = Counter(tensor.name for tensor in tensors).most_common(1)
        raise RequestError(f"inputs: got {doubled[:MAX_CHARS]!r} more than once, expected each tensor once")
    return given


def _dense(dense: DenseInput, given: dict[str, Tensor]) -> tuple[RawDense, int]:
    """Return one dense input and its number of rows."""
    tensor = given.pop(dense.name, None)
    if tensor is None:
        raise _MissingError(repr(dense.name))
    flat = dense.width == 1 and len(tensor.shape) == 1
    if not flat and (len(tensor.shape) != 2 or tensor.shape[1] != dense.width):
        raise _wrong_shape(tensor, f"[-1, {dense.width}]")
    _check_data(tensor, (FLOAT,))
    return RawDense(dense.name, tensor.data), tensor.shape[0]


def _sparse(sparse: SparseInput, given: dict[str, Tensor], limits: BatchLimits) -> tuple[RawSparse, int]:
    """Return one sparse input and its number of rows."""
    name = sparse.name
    parts = [given.pop(key, None) for key in _keys(name)]
    whole, values, lengths, weights = parts
    if whole is not None and (values is not None or lengths is not None):
        raise RequestError(f"inputs: got {name!r} whole and in parts, expected one of the two")
    ids = values if whole is None else whole
    if ids is None or (whole is None and lengths is None):
        raise _MissingError(repr(f"{name}.lengths" if ids is not None else f"{name}.values"))
    if weights is None and sparse.weighted:
        raise _MissingError(repr(f"{name}.weights"))
    if whole is None:
        assert lengths is not None
        data, num_rows = _lengths(lengths), lengths.shape[0]
        if len(ids.shape) != 1:
            raise _wrong_shape(ids, "[-1]")
        raw = _ids(name, ids, limits)
    else:
        if len(whole.shape) not in (1, 2):
            raise _wrong_shape(whole, "[-1, -1] or [-1]")
        # A tensor without IDs may claim any number of rows; with IDs, the size of its data limits it.
        raw = _ids(name, whole, limits)
        data, num_rows = _equal_lengths(whole, limits), whole.shape[0]
    raw.lengths = data
    if weights is not None:
        if weights.shape != ids.shape:
            raise _wrong_shape(weights, f"{list(ids.shape)}, that of the IDs")
        _check_data(weights, (FLOAT,))
        raw.weights = weights.data
    return raw, num_rows


def _ids(name: str, tensor: Tensor, limits: BatchLimits) -> RawSparse:
    """Return a sparse input with the IDs or the texts of a tensor, without lengths."""
    if tensor.datatype == TEXT:
        return RawSparse(name, b"", b"", strings=_texts(tensor, limits))
    if tensor.datatype not in _WHOLE_NUMBERS:
        raise _wrong_type(tensor, (*_WHOLE_NUMBERS, TEXT))
    _check_data(tensor, _WHOLE_NUMBERS)
    return RawSparse(name, b"", _as_type(tensor, ID))


def _texts(tensor: Tensor, limits: BatchLimits) -> Sequence[bytes]:
    """Return the texts of a BYTES tensor, as many as its shape says; no more are unpacked than a request may have."""
    _check_sizes(tensor)
    expected = math.prod(tensor.shape)
    check_size(limits, 0, expected)
    texts = tensor.texts or unpack_texts(tensor.data, expected + 1)
    if texts is None:
        raise RequestError(
            f"{tensor.field}: got {len(tensor.data)} bytes that end within a text, "
            "expected each text after its length (4 bytes, little-endian)"
        )
    if len(texts) != expected:
        got = f"more than {expected}" if len(texts) > expected else len(texts)
        raise RequestError(
            f"{tensor.field}: got {got} texts, expected {expected} ({TEXT} {list(tensor.shape)})"
        )
    return texts


def _lengths(tensor: Tensor) -> bytes:
    """Return int32 ``[B]``. Values beyond int32 are refused; the request's checks do the rest."""
    if len(tensor.shape) != 1:
        raise _wrong_shape(tensor, "[-1]")
    _check_data(tensor, _WHOLE_NUMBERS)
    if tensor.datatype == ID:
        lengths = _array(tensor)
        bad = (lengths < 0) | (lengths > _MAX_LENGTH)
        if bad.any():
            row = int(np.argmax(bad))
            raise RequestError(
                f"{tensor.field}: got {lengths[row]} in row {row}, expected 0 to {_MAX_LENGTH}"
            )
    return _as_type(tensor, LENGTH)


def _equal_lengths(tensor: Tensor, limits: BatchLimits) -> bytes:
    """Return int32 ``[B]``, all L."""
    num_rows = tensor.shape[0]
    check_size(limits, num_rows, 0)
    length = tensor.shape[1] if len(tensor.shape) == 2 else 1
    return np.full(num_rows, length if num_rows else 0, DTYPES[LENGTH]).tobytes()


def _check_data(tensor: Tensor, datatypes: Sequence[str]) -> None:
    """Check that the type is one of ``datatypes``, and that the data has the size of the shape."""
    if tensor.datatype not in datatypes:
        raise _wrong_type(tensor, datatypes)
    _check_sizes(tensor)
    expected = math.prod(tensor.shape) * DTYPES[tensor.datatype].itemsize
    if len(tensor.data) != expected:
        raise RequestError(
            f"{tensor.field}: got {len(tensor.data)} bytes, "
            f"expected {expected} ({tensor.datatype} {list(tensor.shape)})"
        )


def _check_sizes(tensor: Tensor) -> None:
    if min(tensor.shape) < 0:
        raise _wrong_shape(tensor, "sizes of 0 or more")


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return np.frombuffer(tensor.data, DTYPES[tensor.datatype])


def _as_type(tensor: Tensor, datatype: str) -> bytes:
    """Return the data converted to another type that can hold its values."""
    if tensor.datatype == datatype:
        return tensor.data
    return _array(tensor).astype(DTYPES[datatype]).tobytes()


def _check_context(context: frozenset[str], names: list[str]) -> None:
    unknown = sorted(context.difference(names))
    if unknown:
        raise RequestError(
            f"parameters['context']: got an unknown input {unknown[0][:MAX_CHARS]!r}, expected {listed(names)}"
        )


def _num_rows(rows: Mapping[str, int], context: frozenset[str]) -> int:
    """Return B, which is the same for all inputs except those of the context, which have one row."""
    first = next((name for name in rows if name not in context), None)
    if first is None:
        raise RequestError("parameters['context']: got every input, expected at least one with all the rows")
    for name, num_rows in rows.items():
        if name in context and num_rows != 1:
            raise RequestError(f"inputs[{name!r}]: got {num_rows} rows, expected 1: it is of the context")
        if name not in context and num_rows != rows[first]:
            raise RequestError(
                f"inputs[{name!r}]: got {num_rows} rows, expected {rows[first]}, as many as {first!r} has"
            )
    return rows[first]


def _refuse_unknown(signature: Signature, left: Mapping[str, Tensor]) -> None:
    """Raise for the first remaining tensor that belongs to no input."""
    known = {d.name for d in signature.dense}
    known.update(key for s in signature.sparse for key in _keys(s.name))
    unknown = next((name for name in left if name not in known), None)
    if unknown is not None:
        expected = listed([spec.name for spec in input_specs(signature)])
        raise RequestError(f"inputs: got an unknown tensor {unknown[:MAX_CHARS]!r}, expected {expected}")


def _keys(name: str) -> tuple[str, ...]:
    """Return the possible tensor names of a sparse input."""
    return (name, f"{name}.values", f"{name}.lengths", f"{name}.weights")


def _wrong_type(tensor: Tensor, expected: Sequence[str]) -> RequestError:
    return RequestError(
        f"{tensor.field}.datatype: got {tensor.datatype[:MAX_CHARS]!r}, expected {' or '.join(expected)}"
    )


def _wrong_shape(tensor: Tensor, expected: str) -> RequestError:
    return RequestError(f"{tensor.field}.shape: got {list(tensor.shape[:8])}, expected {expected}")
