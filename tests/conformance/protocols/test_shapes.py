"""Outputs whose shape is not one row per row of the request, of a model whose batch is one request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from serve.wire import open_inference_pb2
from tests.conformance.support.artifacts import Exported, export_in_batch
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http_calls import ask, plain_body, plain_outputs, tensor_body, tensor_outputs
from tests.conformance.support.open_inference import SERVICE, model_infer, outputs_of
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def in_batch(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_in_batch(tmp_path_factory.mktemp("in_batch") / "in_batch")


@pytest.fixture(scope="module")
def server(in_batch: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    with running(in_batch.path, "--http-port", "0", folder=tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.mark.parametrize("num_rows", [1, 5, 130], ids=lambda n: f"{n}-rows")
def test_every_protocol_gives_the_same(server: ServerUnderTest, in_batch: Exported, num_rows: int) -> None:
    sample = in_batch.sample(num_rows, seed=num_rows)
    expected = in_batch.answer(sample)
    assert {name: values.shape for name, values in expected.items()} == {
        "logits": (num_rows, num_rows),
        "candidates": (6, 4),
        "best": (1, num_rows),
        "vector": (num_rows, 4),
    }
    assert_answers(server.client().predict(sample.dense, sample.sparse), expected)
    message = kserve_message(tensors(in_batch.signature, sample))
    assert_answers(outputs_of(model_infer(server, message)), expected)
    url = f"http://{server.http_address}"
    reply = ask(f"{url}/v2/models/in_batch/infer", tensor_body(in_batch.signature, sample))
    assert_answers(tensor_outputs(reply.json()), expected)
    reply = ask(f"{url}/v1/models/in_batch:predict", plain_body(sample))
    assert_answers(plain_outputs(reply.json(), expected), expected)


def test_requests_at_once_stay_apart(server: ServerUnderTest, in_batch: Exported) -> None:
    samples = [in_batch.sample(1 + i % 7, seed=100 + i) for i in range(64)]
    client = server.client()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda sample: client.predict(sample.dense, sample.sparse), samples))
    for got, sample in zip(found, samples, strict=True):
        assert_answers(got, in_batch.answer(sample))


def test_no_rows_are_refused(server: ServerUnderTest, in_batch: Exported) -> None:
    sample = in_batch.sample(0)
    code, text = status_of(lambda: server.predict_bytes()(sample.request().SerializeToString(), timeout=60))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == "num_rows: got 0, expected 1 or more: output 'candidates' has no batch dimension"


def test_the_metadata_says_where_the_rows_are(server: ServerUnderTest) -> None:
    outputs = server.client().metadata().outputs
    dims = {"logits": [-1, -1], "candidates": [6, 4], "best": [1, -1], "vector": [-1, 4]}
    assert {output.name: list(output.dims) for output in outputs} == dims
    method = server.channel().unary_unary(f"{SERVICE}/ModelMetadata")
    request = open_inference_pb2.ModelMetadataRequest(name="in_batch")
    found = open_inference_pb2.ModelMetadataResponse.FromString(
        method(request.SerializeToString(), timeout=60)
    )
    assert {output.name: list(output.shape) for output in found.outputs} == dims
