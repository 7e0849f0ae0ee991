"""Samples as the other protocols bring them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from recsys.inputs.signature import Signature
from serve.config.models import BatchLimits
from serve.engine.reference.protocols.tensors import Tensor
from serve.engine.reference.raw_request import RawRequestLike
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.wire import open_inference_pb2 as kserve
from serve.wire import predictor_pb2 as torchrec
from tests.support.serve.messages.cases import Sample

LIMITS = BatchLimits()
DTYPES = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}


def tensor(name: str, datatype: str, array: np.ndarray) -> Tensor:
    return Tensor(name, datatype, array.shape, array.tobytes())


def floats(rows: list[list[float]], width: int) -> np.ndarray:
    return np.array(rows, "<f4").reshape(len(rows), width)


def flat(rows: list[list[int]] | list[list[float]], dtype: str) -> np.ndarray:
    return np.array([value for row in rows for value in row], dtype)


def tensors(signature: Signature, sample: Sample) -> list[Tensor]:
    """The sample in the jagged form."""
    made = [tensor(d.name, "FP32", floats(sample.dense[d.name], d.width)) for d in signature.dense]
    for s in signature.sparse:
        rows = sample.sparse[s.name]
        made.append(tensor(f"{s.name}.values", "INT64", flat(rows, "<i8")))
        made.append(tensor(f"{s.name}.lengths", "INT32", np.array([len(row) for row in rows], "<i4")))
        if s.weighted:
            made.append(tensor(f"{s.name}.weights", "FP32", flat(sample.weights[s.name], "<f4")))
    return made


def body_of(made: Sequence[Tensor], **more: Any) -> dict[str, Any]:
    """Tensors as Open Inference has them in JSON."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "data": [text.decode() for text in one.texts]
            if one.datatype == "BYTES"
            else np.frombuffer(one.data, DTYPES[one.datatype]).tolist(),
        }
        for one in made
    ]
    return {"inputs": inputs, **more}


def binary_of(made: Sequence[Tensor], **more: Any) -> tuple[bytes, dict[str, str]]:
    """Tensors as bytes behind the JSON, and the header that says where they begin."""
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "parameters": {"binary_data_size": len(one.data)},
        }
        for one in made
    ]
    text = json.dumps({"inputs": inputs, **more}).encode()
    return text + b"".join(one.data for one in made), {"Inference-Header-Content-Length": str(len(text))}


def kserve_message(made: list[Tensor], **fields: object) -> kserve.ModelInferRequest:
    """The tensors on the wire, as bytes."""
    message = kserve.ModelInferRequest(**fields)
    for one in made:
        message.inputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
        message.raw_input_contents.append(one.data)
    return message


def torchrec_message(
    signature: Signature, sample: Sample, id_type: str = "<i4"
) -> torchrec.PredictionRequest:
    """The sample without names, in the signature's order."""
    message = torchrec.PredictionRequest(batch_size=sample.num_rows)
    nothing = np.empty((sample.num_rows, 0), "<f4")
    columns = [nothing, *(floats(sample.dense[d.name], d.width) for d in signature.dense)]
    message.float_features.num_features = sum(d.width for d in signature.dense)
    message.float_features.values = np.concatenate(columns, axis=1).tobytes()
    for weighted, features in ((False, message.id_list_features), (True, message.id_score_list_features)):
        names = [s.name for s in signature.sparse if s.weighted is weighted]
        features.num_features = len(names)
        features.lengths = np.array(
            [len(row) for name in names for row in sample.sparse[name]], "<i4"
        ).tobytes()
        features.values = b"".join(flat(sample.sparse[name], id_type).tobytes() for name in names)
        if weighted:
            features.weights = b"".join(flat(sample.weights[name], "<f4").tobytes() for name in names)
    return message


def checked(signature: Signature, raw: RawRequestLike) -> CheckedRequest:
    """What the server's own checks make of a request."""
    return RequestChecker(signature, LIMITS).check(raw)


def assert_same(got: CheckedRequest, expected: CheckedRequest) -> None:
    """Equal in every number and type."""
    assert got.num_rows == expected.num_rows
    pairs = list(zip(got.dense, expected.dense, strict=True))
    for one, other in ((got.sparse, expected.sparse), (got.context, expected.context)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.num_ids == other.num_ids
            assert (one.weights is None) == (other.weights is None)
            pairs += [(one.lengths, other.lengths), (one.values, other.values)]
            if one.weights is not None and other.weights is not None:
                pairs.append((one.weights, other.weights))
    for a, b in pairs:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
