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
from tests.support.serve.messages.mutations import MUTATIONS
from tests.support.serve.messages.wrong import WRONG, Wrong, good

pytestmark = pytest.mark.engine

# Stacks, source files, addresses of memory: nothing that a client should read.
INTERNALS = re.compile(r"Traceback|\.py\b|\.cpp\b|site-packages|/tmp/|0x[0-9a-f]{6}")


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
    assert (code, "request_id: got 130 bytes, expected at most 128" in text) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        True,
    )


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


def test_two_thousand_spoiled_requests_get_a_clear_status_and_their_neighbours_are_right(
    server: ServerUnderTest, small: Exported
) -> None:
    rng = np.random.default_rng(7)
    call = server.predict_bytes()
    client = server.client()
    samples = [small.sample(int(rng.integers(0, 4)), seed) for seed in range(16)]
    expected = [small.answer(sample) for sample in samples]
    texts: set[str] = set()
    for i in range(2000):
        mutate = MUTATIONS[i % len(MUTATIONS)]
        data = mutate(samples[i % 16].request().SerializeToString(), rng)
        code, text = status_of(lambda data=data: call(data, timeout=60))
        assert code in (
            grpc.StatusCode.OK,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        ), mutate.__name__
        texts.add(text)
        if i % 50 == 0:
            sample = samples[i % 16]
            assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), expected[i % 16])
    assert not [text for text in texts if INTERNALS.search(text) or len(text) > 1000]
    assert server.total("recsys_requests_total", outcome="failed") == 0
    assert server.is_alive()
