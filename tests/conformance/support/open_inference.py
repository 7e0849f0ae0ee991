"""Messages of Open Inference and what comes back, beside the same over recsys.v1."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve.client.packing import read_response
from serve.protocols.open_inference import DTYPES
from serve.wire import open_inference_pb2 as wire
from serve.wire import predict_pb2
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import Sample

SERVICE = "/inference.GRPCInferenceService"


def plain(server: ServerUnderTest, sample: Sample) -> dict[str, np.ndarray]:
    """What the same server answers over recsys.v1."""
    data = server.predict_bytes()(sample.request().SerializeToString(), timeout=60)
    return read_response(predict_pb2.PredictResponse.FromString(data))


def assert_same_bits(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(got) == list(expected)
    for name, values in expected.items():
        assert (got[name].shape, got[name].dtype) == (values.shape, values.dtype)
        assert got[name].tobytes() == values.tobytes(), name


def model_infer(
    server: ServerUnderTest, message: wire.ModelInferRequest, **options: Any
) -> wire.ModelInferResponse:
    method = server.channel().unary_unary(f"{SERVICE}/ModelInfer")
    return wire.ModelInferResponse.FromString(method(message.SerializeToString(), timeout=60, **options))


def outputs_of(response: wire.ModelInferResponse) -> dict[str, np.ndarray]:
    return {
        output.name: np.frombuffer(data, DTYPES[output.datatype]).reshape(output.shape)
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }
