"""Whatever a request holds that it should not: a precise INVALID_ARGUMENT, and nobody else notices."""

from __future__ import annotations

import re

import grpc
import numpy as np
import pytest

from serve.client import GET_MODEL_METADATA, PREDICT
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, status_of
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.mutations import MUTATIONS, Mutation
from tests.support.serve.messages.wrong import WRONG, Wrong, good

pytestmark = pytest.mark.engine

# Stacks, source files, addresses of memory: nothing that a client should read.
INTERNALS = re.compile(r"Traceback|\.py\b|\.cpp\b|site-packages|/tmp/|0x[0-9a-f]{6}")
CODES_OF_SPOILED = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
# Spoiled requests of each mutation: one in 11 has a right neighbour, of samples of all sizes.
NUM_SPOILED = 135
NEIGHBOUR_EVERY = 11


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_request_is_refused_by_field_got_and_expected(server: ServerUnderTest, wrong: Wrong) -> None:
    request = good()
    wrong.spoil(request)
    code, text = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert wrong.text in text
    assert len(text) < 1000


@pytest.mark.parametrize("method", [PREDICT, GET_MODEL_METADATA], ids=["predict", "metadata"])
@pytest.mark.parametrize(
    "data", [b"\xff", b"\x0a\x02\xff\xfe", b"\x22\xff\xff\xff\xff\x7f"], ids=["tag", "utf8", "length"]
)
def test_bytes_that_are_no_message_are_an_invalid_argument(
    server: ServerUnderTest, method: str, data: bytes
) -> None:
    code, text = status_of(lambda: server.channel().unary_unary(method)(data))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert f"got {len(data)} bytes that are not a " in text


def test_a_request_id_beyond_128_bytes_is_refused(server: ServerUnderTest) -> None:
    request = good()
    request.request_id = "ü" * 65
    code, text = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "request_id: got 130 bytes, expected at most 128" in text


def test_a_priority_that_is_none_is_refused(server: ServerUnderTest) -> None:
    request = good()
    request.priority = 9
    code, text = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "priority: got 9" in text


def test_an_unknown_method_is_unimplemented(server: ServerUnderTest) -> None:
    code, _ = status_of(lambda: server.channel().unary_unary("/recsys.v1.PredictionService/Guess")(b""))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_fields_of_a_later_version_of_the_protocol_are_passed_over(
    server: ServerUnderTest, small: Exported
) -> None:
    unknown = bytes([0xA2, 0x06, 3]) + b"new"  # field 100, length-delimited
    sample = small.sample(2)
    data = sample.request().SerializeToString() + unknown
    assert status_of(lambda: server.predict_bytes()(data))[0] is grpc.StatusCode.OK


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_spoiled_requests_get_a_clear_status_and_their_neighbours_are_right(
    server: ServerUnderTest, small: Exported, mutate: Mutation
) -> None:
    call = server.predict_bytes()
    client = server.client()
    samples = [small.sample(seed % 4, seed) for seed in range(16)]
    failed_before = server.total("recsys_requests_total", outcome="failed")
    for seed in range(NUM_SPOILED):
        sample = samples[seed % len(samples)]
        data = mutate(sample.request().SerializeToString(), np.random.default_rng(seed))
        code, text = status_of(lambda data=data: call(data, timeout=60))
        case = f"{mutate.__name__}, seed {seed}: {code.name}: {text}"
        assert code in CODES_OF_SPOILED, case
        assert not INTERNALS.search(text), case
        assert len(text) <= 1000, case
        if seed % NEIGHBOUR_EVERY == 0:
            found = client.predict(sample.dense, sample.sparse, sample.weights)
            assert_answers(found, small.answer(sample))
    assert server.total("recsys_requests_total", outcome="failed") == failed_before
    assert server.is_alive()
