"""TorchRec's protocol: inputs in the signature's order, without names; one byte string per kind of IDs.

Shape letters: B rows of a request, F sparse inputs of one kind (weighted or not), N number of their IDs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from google.protobuf.wrappers_pb2 import BytesValue

from recsys.inputs.signature import DenseInput, Signature, SparseInput
from serve.config.models import BatchLimits
from serve.engine.reference.gateway import Request
from serve.engine.reference.raw_request import RawDense, RawRequest, RawRequestLike, RawSparse
from serve.engine.reference.servable import ReferenceServable
from serve.errors import RequestError, listed, short
from serve.protocols.calls import check_size, parse
from serve.wire import predictor_pb2 as wire

# Metadata keys of a call for the model and its version.
MODEL_KEY, VERSION_KEY = "recsys-model", "recsys-version"
SERVICE = wire.DESCRIPTOR.services_by_name["Predictor"].full_name
DEFAULT_OUTPUT = "default"
_FLOAT, _INT32, _INT64 = np.dtype("<f4"), np.dtype("<i4"), np.dtype("<i8")


@dataclass(eq=False, slots=True, kw_only=True)
class PredictionRequest(Request):
    """One ``predictor.PredictionRequest``; model and version are in the call's metadata.

    Attributes:
        message: the parsed message.
    """

    PROTOCOL: ClassVar[str] = "torchrec"

    message: wire.PredictionRequest

    @classmethod
    def parse(cls, data: bytes) -> PredictionRequest:
        """Parse a message.

        Raises:
            RequestError: the bytes are not such a message.
        """
        return cls(message=parse(wire.PredictionRequest, data), num_bytes=len(data))

    def read(self, servable: ReferenceServable) -> RawRequestLike:
        """See ``Request``."""
        return raw_request(servable.signature, self.message, servable.settings.limits)

    def encode(self, values: Sequence[bytes]) -> bytes:
        """See ``Request``."""
        assert self.servable is not None
        return encode_response(self.servable.signature, values)


def raw_request(signature: Signature, message: wire.PredictionRequest, limits: BatchLimits) -> RawRequest:
    """Convert the message to a request with the signature's input names.

    Args:
        signature: signature of the model; its order is the wire's.
        message: the client's message.
        limits: limits of one request.

    Raises:
        RequestError: the message does not fit the signature; the error text names field, got and expected. Or an
            output is int64, which the protocol does not have.
    """
    integer = next((output.name for output in signature.outputs if output.is_integer), None)
    if integer is not None:
        raise RequestError(
            f"outputs: got {short(integer)} of int64, expected float32 alone: this protocol has no other numbers; call "
            "recsys.v1.PredictionService or inference.GRPCInferenceService"
        )
    num_rows = message.batch_size
    if num_rows < 0:
        raise RequestError(f"batch_size: got {num_rows}, expected 0 or more")
    check_size(limits, num_rows, 0)
    _refuse("embedding_features", message.embedding_features)
    _refuse("unary_features", message.unary_features)
    plain = [s for s in signature.sparse if not s.weighted]
    weighted = [s for s in signature.sparse if s.weighted]
    if message.id_list_features.weights:
        raise RequestError(
            f"id_list_features.weights: got {len(message.id_list_features.weights)} bytes, expected none"
        )
    return RawRequest(
        num_rows=num_rows,
        dense=_dense(signature.dense, message.float_features, num_rows),
        sparse=[
            *_sparse("id_list_features", plain, message.id_list_features, num_rows),
            *_sparse("id_score_list_features", weighted, message.id_score_list_features, num_rows),
        ],
    )


def encode_response(signature: Signature, values: Sequence[bytes]) -> bytes:
    """Return a serialized ``PredictionResponse``: each output by name, in order, and the first also as ``default``."""
    named = {output.name: data for output, data in zip(signature.outputs, values, strict=True)}
    named.setdefault(DEFAULT_OUTPUT, values[0])
    # One message for each entry, which protobuf reads as one: entries of a map are written in an order that differs
    # from process to process.
    entries: list[bytes] = []
    for name, data in named.items():
        response = wire.PredictionResponse()
        # A packed ``repeated float data = 1`` is encoded like ``bytes value = 1``, so no number becomes a
        # Python object.
        response.predictions[name].ParseFromString(BytesValue(value=data).SerializeToString())
        entries.append(response.SerializeToString())
    return b"".join(entries)


def _refuse(field: str, features: wire.FloatFeatures | wire.SparseFeatures) -> None:
    if features.num_features or features.values:
        raise RequestError(
            f"{field}: got {features.num_features} features, expected none: no model here takes such"
        )


def _check_count(field: str, got: int, names: Sequence[str], num_columns: int) -> None:
    if got != num_columns:
        raise RequestError(
            f"{field}.num_features: got {got}, expected {num_columns} (in this order: {listed(names)})"
        )


def _dense(inputs: Sequence[DenseInput], features: wire.FloatFeatures, num_rows: int) -> list[RawDense]:
    width = sum(d.width for d in inputs)
    field = "float_features"
    _check_count(field, features.num_features, [f"{d.name} [{d.width}]" for d in inputs], width)
    data = features.values
    expected = num_rows * width * _FLOAT.itemsize
    if len(data) != expected:
        raise RequestError(
            f"{field}.values: got {len(data)} bytes, expected {expected} (float32 [{num_rows}, {width}])"
        )
    if len(inputs) == 1:
        return [RawDense(inputs[0].name, data)]
    columns = np.frombuffer(data, _FLOAT).reshape(num_rows, width)
    ends = np.cumsum([d.width for d in inputs])
    return [
        RawDense(d.name, columns[:, end - d.width : end].tobytes())
        for d, end in zip(inputs, ends, strict=True)
    ]


def _sparse(
    field: str, inputs: Sequence[SparseInput], features: wire.SparseFeatures, num_rows: int
) -> list[RawSparse]:
    """Split the IDs of all inputs of a kind by input."""
    _check_count(field, features.num_features, [s.name for s in inputs], len(inputs))
    shape = (len(inputs), num_rows)
    lengths = _whole_numbers(f"{field}.lengths", features.lengths, len(inputs) * num_rows, list(shape))
    if lengths.size and (lengths.min() < 0 or lengths.max() > np.iinfo(np.int32).max):
        at = int(np.argmax((lengths < 0) | (lengths > np.iinfo(np.int32).max)))
        feature, row = divmod(at, num_rows)
        raise RequestError(
            f"{field}.lengths: got {lengths[at]} for {inputs[feature].name!r} in row {row}, "
            f"expected 0 to {np.iinfo(np.int32).max}"
        )
    counts = lengths.reshape(shape).sum(axis=1, dtype=np.int64)
    num_ids = int(counts.sum())
    values = _whole_numbers(f"{field}.values", features.values, num_ids, [num_ids])
    weights = features.weights
    if inputs and inputs[0].weighted and len(weights) != num_ids * _FLOAT.itemsize:
        raise RequestError(
            f"{field}.weights: got {len(weights)} bytes, "
            f"expected {num_ids * _FLOAT.itemsize} (float32, one for each of {num_ids} IDs)"
        )
    # Converted once for all inputs, then split as bytes.
    per_input = [num_rows] * len(inputs)
    parts = zip(
        inputs,
        _cut(lengths.astype(_INT32, copy=False).tobytes(), per_input, _INT32.itemsize),
        _cut(values.astype(_INT64, copy=False).tobytes(), counts.tolist(), _INT64.itemsize),
        _cut(weights, counts.tolist(), _FLOAT.itemsize),
        strict=True,
    )
    return [RawSparse(s.name, bags, ids, given) for s, bags, ids, given in parts]


def _cut(data: bytes, counts: Sequence[int], itemsize: int) -> Iterator[bytes]:
    """Yield consecutive pieces of ``counts`` numbers each."""
    end = 0
    for count in counts:
        start, end = end, end + count * itemsize
        yield data[start:end]


def _whole_numbers(field: str, data: bytes, count: int, shape: list[int]) -> npt.NDArray[Any]:
    """Return int32 or int64 numbers, by the size of the data for a known count."""
    for dtype in (_INT32, _INT64):
        if len(data) == count * dtype.itemsize:
            return np.frombuffer(data, dtype)
    raise RequestError(
        f"{field}: got {len(data)} bytes, expected {count * 4} (int32 {shape}) or {count * 8} (int64 {shape})"
    )
