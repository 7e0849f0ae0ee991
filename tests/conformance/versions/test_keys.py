"""A key of the request decides which of two versions answers, over every protocol alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from recsys.base.hashing import hash_text
from serve.client import PREDICT
from serve.client.packing import Context, read_response
from serve.engine.routes import keyed_draw
from serve.wire import admin_pb2
from serve.wire import open_inference_pb2 as kserve
from serve.wire import predict_pb2 as wire
from serve.wire import predictor_pb2 as torchrec
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.conformance.support.harness import ServerUnderTest, put_version, running, status_of, with_admin
from tests.conformance.support.http_calls import ask, plain_body, tensor_body
from tests.support.serve.messages.cases import Sample, assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message
from tests.support.serve.messages.texts import text_request, with_texts

pytestmark = pytest.mark.engine

PERCENT = 30.0
_RANDOM = np.random.default_rng(0)
INFER, TORCHREC = "/inference.GRPCInferenceService/ModelInfer", "/predictor.Predictor/Predict"
Send = Callable[[ServerUnderTest, Exported, Sample, dict[str, str]], str]
"""Sends a sample with headers, and returns the version that answered."""


@pytest.fixture(scope="module")
def keyed(
    small: Exported, other: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """Version 1 is the small model and serves, version 2 the other one."""
    folder = tmp_path_factory.mktemp("keys")
    put_version(folder / "repository", "m", "1", small.path)
    put_version(folder / "repository", "m", "2", other.path)
    arguments = ["--repository", str(folder / "repository"), "--http-port", "0", *with_admin(folder)]
    with running(*arguments, folder=folder) as started:
        yield started


def route(server: ServerUnderTest, key: str, percent: float = PERCENT) -> None:
    routing = admin_pb2.Routing(serve="1", canary="2", canary_percent=percent, canary_key=key)
    server.admin().SetRouting(admin_pb2.SetRoutingRequest(model="m", routing=routing))


def drawn(key: int | None, percent: float = PERCENT) -> str:
    """The version for a key; without one, that which serves."""
    return "2" if key is not None and keyed_draw("m", key) < percent / 100 else "1"


def first_id(sample: Sample, name: str) -> int | None:
    return next((one for bag in sample.sparse[name] for one in bag), None)


def call(server: ServerUnderTest, method: str, message: bytes, headers: dict[str, str]) -> bytes:
    answer: bytes = server.channel().unary_unary(method)(message, timeout=60, metadata=[*headers.items()])
    return answer


def recsys_v1(server: ServerUnderTest, _: Exported, sample: Sample, headers: dict[str, str]) -> str:
    data = call(server, PREDICT, sample.request().SerializeToString(), headers)
    return wire.PredictResponse.FromString(data).version


def texts(server: ServerUnderTest, small: Exported, sample: Sample, headers: dict[str, str]) -> str:
    hashed, given = with_texts(small.signature, sample, _RANDOM)
    sample.sparse.update(hashed.sparse)
    data = call(server, PREDICT, text_request(hashed, given).SerializeToString(), headers)
    return wire.PredictResponse.FromString(data).version


def open_inference(server: ServerUnderTest, small: Exported, sample: Sample, headers: dict[str, str]) -> str:
    message = kserve_message(tensors(small.signature, sample), model_name="m").SerializeToString()
    return kserve.ModelInferResponse.FromString(call(server, INFER, message, headers)).model_version


def predictor(server: ServerUnderTest, small: Exported, sample: Sample, headers: dict[str, str]) -> str:
    """The protocol's answers name no version, so their values tell."""
    sample.sparse["item"][:] = [[one % 1000 - 500 for one in bag] for bag in sample.sparse["item"]]
    message = torchrec_message(small.signature, sample).SerializeToString()
    answer = torchrec.PredictionResponse.FromString(call(server, TORCHREC, message, headers))
    got = np.array(answer.predictions["default"].data)
    first = next(iter(small.answer(sample).values())).ravel()
    return "1" if np.allclose(got, first, rtol=0, atol=1e-4) else "2"


def rest_tensors(server: ServerUnderTest, small: Exported, sample: Sample, headers: dict[str, str]) -> str:
    url = f"http://{server.http_address}/v2/models/m/infer"
    return str(ask(url, tensor_body(small.signature, sample), headers=headers).json()["model_version"])


def rest_plain(server: ServerUnderTest, _: Exported, sample: Sample, headers: dict[str, str]) -> str:
    url = f"http://{server.http_address}/v1/models/m:predict"
    return str(ask(url, plain_body(sample), headers=headers).json()["version"])


SENDERS = {
    "recsys": recsys_v1,
    "texts": texts,
    "kserve": open_inference,
    "torchrec": predictor,
    "rest-tensors": rest_tensors,
    "rest-plain": rest_plain,
}


@pytest.mark.parametrize("name", ["item", "user"])
@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_features_first_id_decides(keyed: ServerUnderTest, small: Exported, send: Send, name: str) -> None:
    route(keyed, f"feature:{name}")
    versions: Counter[str] = Counter()
    for seed in range(40):
        sample = small.sample(2, seed)
        got = send(keyed, small, sample, {})
        assert got == drawn(first_id(sample, name)), f"seed {seed}"
        versions[got] += 1
    assert min(versions["1"], versions["2"]) >= 3


@pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)
def test_a_header_decides(keyed: ServerUnderTest, small: Exported, send: Send) -> None:
    route(keyed, "header:x-user")
    versions: Counter[str] = Counter()
    for seed in range(30):
        sample = small.sample(2, seed)
        got = send(keyed, small, sample, {"x-user": f"user {seed}"})
        assert got == drawn(hash_text(f"user {seed}"))
        assert send(keyed, small, sample, {}) == "1"
        versions[got] += 1
    assert min(versions["1"], versions["2"]) >= 3


def test_a_request_of_a_stream_has_its_own_key_and_the_streams_header(
    keyed: ServerUnderTest, small: Exported
) -> None:
    samples = [small.sample(1, seed) for seed in range(20)]
    for key, metadata in (("feature:item", ()), ("header:x-user", (("x-user", "me"),))):
        route(keyed, key)
        method = keyed.channel().stream_stream("/recsys.v1.PredictionService/PredictStream")
        requests = []
        for i, sample in enumerate(samples):
            request = sample.request()
            request.request_id = str(i)
            requests.append(request.SerializeToString())
        got = {}
        for data in method(iter(requests), timeout=60, metadata=metadata):
            answer = wire.StreamResponse.FromString(data)
            got[answer.request_id] = answer.response.version
        for i, sample in enumerate(samples):
            expected = hash_text("me") if metadata else first_id(sample, "item")
            assert got[str(i)] == drawn(expected)


@pytest.mark.parametrize("name", ["user", "item"])
def test_the_context_of_a_ranking_may_hold_the_key(
    keyed: ServerUnderTest, small: Exported, name: str
) -> None:
    route(keyed, f"feature:{name}")
    for seed in range(30):
        rows, one = small.sample(4, seed), small.sample(1, seed + 1000)
        parts = ("dense", "sparse", "weights")
        given = {p: {n: v for n, v in getattr(rows, p).items() if n not in CONTEXT} for p in parts}
        shared = {p: {n: v for n, v in getattr(one, p).items() if n in CONTEXT} for p in parts}
        answer = keyed.client().predict(**given, context=Context(**shared))
        assert answer.version == drawn(first_id(one if name in CONTEXT else rows, name))


def test_raising_the_share_moves_nobody_back(keyed: ServerUnderTest, small: Exported) -> None:
    samples = [small.sample(1, seed) for seed in range(60)]
    canary: set[int] = set()
    for percent in (5.0, 30.0, 70.0, 100.0):
        route(keyed, "feature:item", percent)
        got = {i for i, sample in enumerate(samples) if recsys_v1(keyed, small, sample, {}) == "2"}
        assert canary <= got
        canary = got
    assert canary == {i for i, sample in enumerate(samples) if first_id(sample, "item") is not None}


def test_answers_are_those_of_the_version_that_they_name(
    keyed: ServerUnderTest, small: Exported, other: Exported
) -> None:
    route(keyed, "feature:item", 50.0)
    for seed in range(30):
        sample = small.sample(3, seed)
        answer = wire.PredictResponse.FromString(
            call(keyed, PREDICT, sample.request().SerializeToString(), {})
        )
        assert_answers(read_response(answer), {"1": small, "2": other}[answer.version].answer(sample))


def test_a_feature_that_the_model_lacks_is_refused(keyed: ServerUnderTest) -> None:
    for key, text in (
        (
            "feature:usr",
            "routing.canary_key: got 'feature:usr', expected a sparse input of the model: 'user'",
        ),
        ("user", "routing.canary_key: got 'user', expected feature:NAME, a sparse input, or header:NAME"),
        ("header:X-User", "routing.canary_key: got 'header:X-User', expected a header in lower case"),
    ):
        code, message = status_of(lambda key=key: route(keyed, key))
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
        assert text in message
