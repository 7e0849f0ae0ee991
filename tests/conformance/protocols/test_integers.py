"""Outputs of integers: exact in every protocol that has them, refused in the one that has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from serve.client.errors import PredictError
from serve.wire import open_inference_pb2, predict_pb2
from tests.conformance.support.artifacts import RAW_ITEM_IDS, Exported, export_best
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http_calls import (
    ask,
    binary_body,
    plain_body,
    plain_outputs,
    tensor_body,
    tensor_outputs,
)
from tests.conformance.support.open_inference import SERVICE, model_infer, outputs_of
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_best(tmp_path_factory.mktemp("best") / "best")


@pytest.fixture(scope="module")
def server(best: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    with running(best.path, "--http-port", "0", folder=tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.mark.parametrize("num_rows", [0, 1, 33, 3000], ids=lambda n: f"{n}-rows")
def test_every_protocol_gives_the_same(server: ServerUnderTest, best: Exported, num_rows: int) -> None:
    sample = best.sample(num_rows, seed=num_rows)
    expected = best.answer(sample)
    assert {name: values.dtype for name, values in expected.items()} == {
        "ids": np.int64,
        "scores": np.float32,
        "good": np.int64,
    }
    assert np.isin(expected["ids"], RAW_ITEM_IDS).all()
    assert_answers(server.client().predict(sample.dense, sample.sparse), expected)
    message = kserve_message(tensors(best.signature, sample))
    assert_answers(outputs_of(model_infer(server, message)), expected)
    url = f"http://{server.http_address}"
    if num_rows < 1000:  # JSON has a limit of its own
        body = tensor_body(best.signature, sample)
        assert_answers(tensor_outputs(ask(f"{url}/v2/models/best/infer", body).json()), expected)
        reply = ask(f"{url}/v1/models/best:predict", plain_body(sample)).json()
        assert_answers(plain_outputs(reply, expected), expected)


def test_numbers_in_json_are_whole(server: ServerUnderTest, best: Exported) -> None:
    sample = best.sample(5, seed=1)
    text = ask(f"http://{server.http_address}/v1/models/best:predict", plain_body(sample)).data.decode()
    for number in best.answer(sample)["ids"].reshape(-1).tolist():
        assert f"{number}," in text or f"{number}]" in text


def test_requests_of_one_batch_get_their_own_rows(server: ServerUnderTest, best: Exported) -> None:
    samples = [best.sample(1 + i % 3, seed=100 + i) for i in range(64)]
    client = server.client()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda sample: client.predict(sample.dense, sample.sparse), samples))
    for got, sample in zip(found, samples, strict=True):
        assert_answers(got, best.answer(sample))


def test_a_stream_gives_the_same(server: ServerUnderTest, best: Exported) -> None:
    samples = {str(i): best.sample(1 + i % 4, seed=i) for i in range(16)}

    def requests() -> Iterator[predict_pb2.PredictRequest]:
        for request_id, sample in samples.items():
            request = sample.request()
            request.request_id = request_id
            yield request

    answers = dict(server.client().stream(requests()))
    assert set(answers) == set(samples)
    for request_id, outputs in answers.items():
        assert not isinstance(outputs, PredictError), outputs
        assert_answers(outputs, best.answer(samples[request_id]))


def test_outputs_may_be_chosen_and_come_as_binary_tensors(server: ServerUnderTest, best: Exported) -> None:
    sample = best.sample(7, seed=3)
    expected = best.answer(sample)
    wanted = {name: expected[name] for name in ("good", "ids")}
    message = kserve_message(tensors(best.signature, sample))
    for name in wanted:
        message.outputs.add(name=name)
    assert_answers(outputs_of(model_infer(server, message)), wanted)
    data, headers = binary_body(
        best.signature, sample, parameters={"binary_data_output": True}, outputs=[{"name": "ids"}]
    )
    reply = ask(f"http://{server.http_address}/v2/models/best/infer", data, headers=headers)
    size = int(reply.headers["inference-header-content-length"])
    (described,) = json.loads(reply.data[:size])["outputs"]
    assert (described["datatype"], described["shape"]) == ("INT64", [7, 4])
    np.testing.assert_array_equal(np.frombuffer(reply.data[size:], "<i8").reshape(7, 4), expected["ids"])


def test_the_metadata_says_which_outputs_are_integers(server: ServerUnderTest) -> None:
    outputs = server.client().metadata().outputs
    assert [(o.name, list(o.shape), o.dtype) for o in outputs] == [
        ("ids", [4], "int64"),
        ("scores", [4], "float32"),
        ("good", [], "int64"),
    ]
    method = server.channel().unary_unary(f"{SERVICE}/ModelMetadata")
    request = open_inference_pb2.ModelMetadataRequest(name="best")
    found = open_inference_pb2.ModelMetadataResponse.FromString(
        method(request.SerializeToString(), timeout=60)
    )
    assert [(o.name, o.datatype, list(o.shape)) for o in found.outputs] == [
        ("ids", "INT64", [-1, 4]),
        ("scores", "FP32", [-1, 4]),
        ("good", "INT64", [-1]),
    ]


def test_a_protocol_of_floats_refuses_them(server: ServerUnderTest, best: Exported) -> None:
    message = torchrec_message(best.signature, best.sample(2), "<i8")
    method = server.channel().unary_unary("/predictor.Predictor/Predict")
    code, text = status_of(lambda: method(message.SerializeToString(), timeout=60))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text == (
        "outputs: got 'ids' of int64, expected float32 alone: this protocol has no other numbers; call "
        "recsys.v1.PredictionService or inference.GRPCInferenceService"
    )
