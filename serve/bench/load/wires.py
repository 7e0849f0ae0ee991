"""Encoders of ``recsys.v1`` requests for all supported protocols.

Shape letters: B rows of a request, F features, N number of IDs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from serve.client import PREDICT
from serve.protocols.open_inference import DTYPES, TEXT, pack_texts, unpack_texts
from serve.wire import open_inference_pb2 as open_inference
from serve.wire import predict_pb2 as wire
from serve.wire import predictor_pb2 as predictor

Encode = Callable[[wire.PredictRequest], bytes]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol.

    Attributes:
        name: name in options and results.
        method: the gRPC method's path; empty for HTTP.
        takes_more: whether requests support context inputs, model, version and priority.
    """

    name: str
    method: str
    takes_more: bool = True


def _method(service: Any, name: str) -> str:
    return f"/{service.full_name}/{name}"


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol(name="recsys", method=PREDICT),
        Protocol(
            name="kserve",
            method=_method(open_inference.DESCRIPTOR.services_by_name["GRPCInferenceService"], "ModelInfer"),
        ),
        Protocol(
            name="torchrec",
            method=_method(predictor.DESCRIPTOR.services_by_name["Predictor"], "Predict"),
            takes_more=False,
        ),
        Protocol(name="rest", method=""),
    )
}


def encoder(protocol: str, metadata: wire.ModelMetadata) -> Encode:
    """Return an encoder of requests for a protocol.

    Args:
        protocol: one of ``PROTOCOLS``.
        metadata: the model's metadata; its order of inputs applies to protocols without names.
    """
    if protocol == "kserve":
        return lambda request: kserve_request(request, metadata).SerializeToString()
    if protocol == "torchrec":
        return lambda request: torchrec_request(request, metadata).SerializeToString()
    if protocol == "rest":
        return lambda request: rest_body(request, metadata)
    return lambda request: request.SerializeToString()


def kserve_request(
    request: wire.PredictRequest, metadata: wire.ModelMetadata
) -> open_inference.ModelInferRequest:
    """Open Inference, version 2: one tensor per dense input, ``.values``, ``.lengths``, ``.weights`` per sparse one."""
    made = open_inference.ModelInferRequest(
        model_name=request.model or metadata.model, model_version=request.version, id=request.request_id
    )
    for name, datatype, shape, data in _tensors(request, metadata):
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(data)
    for name, value in _parameters(request).items():
        if isinstance(value, int):
            made.parameters[name].int64_param = value
        else:
            made.parameters[name].string_param = value
    return made


def rest_body(request: wire.PredictRequest, metadata: wire.ModelMetadata) -> bytes:
    """Return the request as JSON, for ``POST /v2/models/NAME/infer``."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "data": _json_data(name, datatype, data)}
        for name, datatype, shape, data in _tensors(request, metadata)
    ]
    body = {"inputs": inputs, "parameters": _parameters(request)}
    return json.dumps(body, separators=(",", ":")).encode()


def rest_path(model: str, version: str) -> str:
    """Return the path of requests."""
    return f"/v2/models/{model}/versions/{version}/infer" if version else f"/v2/models/{model}/infer"


def torchrec_request(
    request: wire.PredictRequest, metadata: wire.ModelMetadata
) -> predictor.PredictionRequest:
    """Return TorchRec's message: dense inputs side by side, sparse ones in sequence; 64-bit IDs, no names.

    Raises:
        ValueError: an input has texts.
    """
    if any(given.strings for given in request.sparse):
        raise ValueError("sparse: got texts, expected IDs: --protocol torchrec has no field for texts")
    dense = {given.name: given.values for given in request.dense}
    columns = [
        np.frombuffer(dense[d.name], "<f4").reshape(request.num_rows, d.width)
        for d in metadata.dense
        if d.name in dense
    ]
    made = predictor.PredictionRequest(batch_size=request.num_rows)
    if columns:
        side_by_side = np.concatenate(columns, axis=1)
        made.float_features.num_features = side_by_side.shape[1]
        made.float_features.values = side_by_side.tobytes()
    sparse = {given.name: given for given in request.sparse}
    for weighted, features in ((False, made.id_list_features), (True, made.id_score_list_features)):
        given = [sparse[s.name] for s in metadata.sparse if s.weighted is weighted and s.name in sparse]
        if given:
            features.num_features = len(given)
            features.lengths = b"".join(one.lengths for one in given)
            features.values = b"".join(one.values for one in given)
            features.weights = b"".join(one.weights for one in given)
    return made


def with_request_id(data: bytes, request_id: bytes) -> bytes:
    """Return a serialized ``PredictRequest`` with this ID: an appended field overrides earlier ones.

    Args:
        data: the request.
        request_id: ASCII, at most 127 bytes.
    """
    return b"%s\x12%c%s" % (data, len(request_id), request_id)  # Field 2, length-delimited.


def _tensors(
    request: wire.PredictRequest, metadata: wire.ModelMetadata
) -> Iterable[tuple[str, str, list[int], bytes]]:
    """Yield name, datatype, shape and little-endian bytes of each Open Inference tensor."""
    widths = {d.name: int(d.width) for d in metadata.dense}
    weighted = {s.name for s in metadata.sparse if s.weighted}
    for dense_inputs, num_rows in ((request.dense, request.num_rows), (request.context_dense, 1)):
        for dense in dense_inputs:
            yield dense.name, "FP32", [num_rows, widths[dense.name]], dense.values
    for sparse_inputs, num_rows in ((request.sparse, request.num_rows), (request.context_sparse, 1)):
        for sparse in sparse_inputs:
            num_ids = len(sparse.strings) or len(sparse.values) // 8
            if sparse.strings:
                yield f"{sparse.name}.values", TEXT, [num_ids], pack_texts(sparse.strings)
            else:
                yield f"{sparse.name}.values", "INT64", [num_ids], sparse.values
            yield f"{sparse.name}.lengths", "INT32", [num_rows], sparse.lengths
            if sparse.name in weighted:
                yield f"{sparse.name}.weights", "FP32", [num_ids], sparse.weights


def _parameters(request: wire.PredictRequest) -> dict[str, int | str]:
    """Return the parameters for values without fields in Open Inference."""
    found: dict[str, int | str] = {}
    if request.priority:
        found["priority"] = int(request.priority)
    context = [given.name for given in (*request.context_dense, *request.context_sparse)]
    if context:
        found["context"] = ",".join(context)
    return found


def _json_data(name: str, datatype: str, data: bytes) -> list[Any]:
    if datatype != TEXT:
        values: list[Any] = np.frombuffer(data, DTYPES[datatype]).tolist()
        return values
    try:
        return [text.decode() for text in unpack_texts(data) or ()]
    except UnicodeDecodeError:
        raise ValueError(
            f"{name}: got a text that is not UTF-8, expected UTF-8: JSON has no other; send it over gRPC"
        ) from None
