"""Predictions over recsys.v1: what is answered is what the model says, whatever else is under way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from serve.client.errors import UnknownModelError
from serve.client.packing import read_response
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest
from tests.support.serve.messages.cases import assert_answers, random_sample

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33, 512, 700], ids=lambda n: f"{n}-rows")
def test_a_request_of_any_size_is_answered_as_the_model_says(
    server: ServerUnderTest, small: Exported, num_rows: int
) -> None:
    sample = small.sample(num_rows, seed=num_rows)
    found = server.client().predict(sample.dense, sample.sparse, sample.weights)
    assert_answers(found, small.answer(sample))


def test_rows_without_any_id_are_answered(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(3, max_ids=0)
    assert_answers(server.client().predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))


def test_the_order_of_inputs_does_not_matter(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(5)
    request = sample.request()
    for inputs in (request.dense, request.sparse):
        messages = list(inputs)[::-1]
        del inputs[:]
        inputs.extend(messages)
    response = wire.PredictResponse.FromString(server.predict_bytes()(request.SerializeToString()))
    assert_answers(read_response(response), small.answer(sample))


def test_the_answer_names_model_and_version(server: ServerUnderTest, small: Exported) -> None:
    request = small.sample(1).request().SerializeToString()
    response = wire.PredictResponse.FromString(server.predict_bytes()(request))
    assert (response.model, response.version) == ("small", server.ready["version"])
    assert [list(output.dims) for output in response.outputs] == [[1], [1, 2, 3]]


def test_ten_thousand_tagged_requests_over_64_connections_each_get_their_own_answer(
    server: ServerUnderTest, small: Exported
) -> None:
    # Tagged: each of 512 requests has an answer that no other has.
    samples = [small.sample(1 + i % 3, seed=1000 + i) for i in range(512)]
    requests = [sample.request().SerializeToString() for sample in samples]
    answers = [small.answer(sample) for sample in samples]
    assert len({answer["score"].tobytes() for answer in answers}) == len(samples)
    num_connections, per_connection = 64, 157

    def one_connection(seed: int) -> None:
        rng = np.random.default_rng(seed)
        call = server.predict_bytes()
        for which in rng.integers(0, len(samples), per_connection):
            response = wire.PredictResponse.FromString(call(requests[which], timeout=120))
            assert_answers(read_response(response), answers[which])

    with ThreadPoolExecutor(num_connections) as pool:
        list(pool.map(one_connection, range(num_connections)))  # raises what a connection raises


def test_a_request_that_names_another_model_or_version_is_not_found(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(1)
    for settings in ({"model": "other"}, {"version": "999"}):
        with pytest.raises(UnknownModelError, match=r"got '(other|999)'"):
            server.client(**settings).predict(sample.dense, sample.sparse, sample.weights)
    named = server.client(model="small", version=server.ready["version"])
    assert_answers(named.predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))


def test_every_seed_of_random_requests_agrees_between_server_and_model(
    server: ServerUnderTest, small: Exported
) -> None:
    client = server.client()
    for seed in range(50):
        rng = np.random.default_rng(seed)
        sample = random_sample(small.signature, int(rng.integers(0, 20)), rng, max_ids=9)
        found = client.predict(sample.dense, sample.sparse, sample.weights)
        assert_answers(found, small.answer(sample))
