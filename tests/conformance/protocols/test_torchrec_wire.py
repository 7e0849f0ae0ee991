"""TorchRec's inference protocol: messages as its example client builds them, named by their order alone."""

from __future__ import annotations

from pathlib import Path

import grpc
import numpy as np
import pytest

from serve.client.packing import read_response
from serve.wire import predict_pb2
from serve.wire import predictor_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, put_version, running, status_of
from tests.support.serve.messages.cases import Sample, assert_answers
from tests.support.serve.messages.foreign import torchrec_message
from tests.support.serve.messages.wrong_torchrec import WRONG, good, spoiled

pytestmark = pytest.mark.engine

PREDICT = "/predictor.Predictor/Predict"


def narrowed(sample: Sample) -> Sample:
    """The sample with IDs that int32 holds."""
    sample.sparse["item"][:] = [[value % 1000 - 500 for value in row] for row in sample.sparse["item"]]
    return sample


def predict(
    server: ServerUnderTest, message: wire.PredictionRequest, **metadata: str
) -> wire.PredictionResponse:
    method = server.channel().unary_unary(PREDICT)
    named = [(key.replace("_", "-"), value) for key, value in metadata.items()]
    return wire.PredictionResponse.FromString(method(message.SerializeToString(), timeout=60, metadata=named))


def floats(response: wire.PredictionResponse, name: str) -> np.ndarray:
    return np.array(response.predictions[name].data, "<f4")


def assert_says(response: wire.PredictionResponse, expected: dict[str, np.ndarray]) -> None:
    """Each output by its name, flat; the first as ``default`` too."""
    first = next(iter(expected))
    assert set(response.predictions) == {*expected, "default"}
    got = {name: floats(response, name).reshape(values.shape) for name, values in expected.items()}
    assert_answers(got, expected)
    assert floats(response, "default").tobytes() == floats(response, first).tobytes()


@pytest.mark.parametrize("id_type", ["<i4", "<i8"], ids=["int32", "int64"])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 100], ids=lambda n: f"{n}-rows")
def test_a_batch_of_weighted_and_plain_features_is_answered_with_every_output(
    server: ServerUnderTest, small: Exported, num_rows: int, id_type: str
) -> None:
    sample = narrowed(small.sample(num_rows, seed=num_rows))
    response = predict(server, torchrec_message(small.signature, sample, id_type))
    assert_says(response, small.answer(sample))


def test_the_answer_is_that_of_recsys_v1_bit_for_bit(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(33, seed=1)
    data = server.predict_bytes()(sample.request().SerializeToString(), timeout=60)
    expected = read_response(predict_pb2.PredictResponse.FromString(data))
    response = predict(server, torchrec_message(small.signature, sample, "<i8"))
    for name, values in expected.items():
        assert floats(response, name).tobytes() == values.tobytes()


def test_ids_beyond_int32_and_lengths_of_int64_are_taken(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(2)
    sample.sparse["item"][:] = [[1 << 40, -(1 << 63)], [(1 << 63) - 1]]
    message = torchrec_message(small.signature, sample, "<i8")
    for features in (message.id_list_features, message.id_score_list_features):
        features.lengths = np.frombuffer(features.lengths, "<i4").astype("<i8").tobytes()
    assert_says(predict(server, message), small.answer(sample))


def test_features_are_told_apart_by_their_order_alone(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(1)
    sample.sparse.update(user=[[2]], genres=[[3]], item=[[4]])
    lengths, values = np.ones(3, "<i4").tobytes(), np.array([2, 3, 4], "<i4")
    message = torchrec_message(small.signature, sample)
    message.id_list_features.lengths, message.id_list_features.values = lengths, values.tobytes()
    assert_says(predict(server, message), small.answer(sample))
    message.id_list_features.values = values[::-1].tobytes()
    sample.sparse.update(user=[[4]], genres=[[3]], item=[[2]])
    assert_says(predict(server, message), small.answer(sample))


def test_dense_columns_are_in_the_order_of_the_signature(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(2)
    rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    message = torchrec_message(small.signature, narrowed(sample))
    message.float_features.values = np.array(rows, "<f4").tobytes()
    sample.dense.update(context=[row[:3] for row in rows], price=[row[3:] for row in rows])
    assert_says(predict(server, message), small.answer(sample))


def test_each_answer_belongs_to_its_request_when_many_are_under_way(
    server: ServerUnderTest, small: Exported
) -> None:
    samples = [narrowed(small.sample(1 + seed % 4, seed)) for seed in range(64)]
    method = server.channel().unary_unary(PREDICT)
    calls = [
        method.future(torchrec_message(small.signature, sample).SerializeToString(), timeout=60)
        for sample in samples
    ]
    for sample, one in zip(samples, calls, strict=True):
        assert_says(wire.PredictionResponse.FromString(one.result()), small.answer(sample))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_message_is_refused_by_field_got_and_expected(server: ServerUnderTest, name: str) -> None:
    message, text = spoiled(name)
    code, got = status_of(lambda: predict(server, message))
    assert (code, text in got) == (grpc.StatusCode.INVALID_ARGUMENT, True), got


def test_the_message_that_is_spoiled_is_good(server: ServerUnderTest) -> None:
    assert status_of(lambda: predict(server, good())) == (grpc.StatusCode.OK, "")


def test_bytes_that_are_no_message_are_an_invalid_argument(server: ServerUnderTest) -> None:
    code, text = status_of(lambda: server.channel().unary_unary(PREDICT)(b"\xff"))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "got 1 bytes that are not a " in text


def test_metadata_of_the_call_choose_among_models_and_versions(
    repository: Path, small: Exported, other: Exported, tmp_path: Path
) -> None:
    put_version(repository, "a", "1", small.path)
    put_version(repository, "b", "7", other.path)
    sample = narrowed(small.sample(3))
    message = torchrec_message(small.signature, sample)
    with running("--repository", repository, folder=tmp_path) as server:
        assert_says(predict(server, message, recsys_model="a"), small.answer(sample))
        assert_says(predict(server, message, recsys_model="b", recsys_version="7"), other.answer(sample))
        for metadata in ({}, {"recsys_model": "c"}, {"recsys_model": "b", "recsys_version": "8"}):
            code, _ = status_of(lambda metadata=metadata: predict(server, message, **metadata))
            assert code is grpc.StatusCode.NOT_FOUND
