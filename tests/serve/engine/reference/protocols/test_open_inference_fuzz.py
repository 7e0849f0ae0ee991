"""Spoiled requests of the other protocols: each is answered or refused, none hurts the server."""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from serve.config.settings import ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.protocols import torchrec
from serve.protocols import open_inference as kserve
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message
from tests.support.serve.messages.mutations import extend, fields, flip, garbage, splice, truncate
from tests.support.serve.messages.rest_calls import binary_body, plain_body, tensor_body
from tests.support.serve.models import SIGNATURE

MUTATIONS = (flip, truncate, extend, splice, garbage, fields)
NUM_SPOILED = 600
GOOD = [random_sample(SIGNATURE, rows, np.random.default_rng(rows)) for rows in range(4)]


@pytest.fixture(scope="module")
def live(model: ServedModel) -> Iterator[LiveServer]:
    with LiveServer(model, ServerConfig(port=0, metrics_port=None, http_port=0)) as made:
        yield made


def spoiled(good: list[bytes], seed: int) -> Iterator[bytes]:
    rng = np.random.default_rng(seed)
    for i in range(NUM_SPOILED):
        yield MUTATIONS[i % len(MUTATIONS)](good[rng.integers(len(good))], rng)


def assert_unhurt(live: LiveServer, codes: Counter[str], allowed: set[str], texts: set[str]) -> None:
    assert codes["OK"] < NUM_SPOILED
    assert set(codes) <= allowed | {"OK"}, codes
    assert live.server.metrics.outcomes()["failed"] == 0
    for text in texts:
        assert len(text) < 1000, text
        assert ".py" not in text


@pytest.mark.parametrize("protocol", ["kserve", "torchrec"])
def test_spoiled_messages_are_refused(live: LiveServer, protocol: str) -> None:
    if protocol == "kserve":
        method = f"/{kserve.SERVICE}/ModelInfer"
        good = [kserve_message(tensors(SIGNATURE, sample), id="i").SerializeToString() for sample in GOOD]
    else:
        method = f"/{torchrec.SERVICE}/Predict"
        good = [torchrec_message(SIGNATURE, sample, "<i8").SerializeToString() for sample in GOOD]
    codes: Counter[str] = Counter()
    texts: set[str] = set()
    with grpc.insecure_channel(live.address) as channel:
        call = channel.unary_unary(method)
        for data in good:
            assert call(data)
        for data in spoiled(good, seed=7):
            try:
                call(data, timeout=60)
                codes["OK"] += 1
            except grpc.RpcError as error:
                codes[error.code().name] += 1
                texts.add(error.details())
    assert_unhurt(live, codes, {"INVALID_ARGUMENT", "NOT_FOUND"}, texts)


@pytest.mark.parametrize("form", ["tensors", "binary", "plain"])
def test_spoiled_bodies_are_refused(live: LiveServer, form: str) -> None:
    path = "/v1/models/small:predict" if form == "plain" else "/v2/models/small/infer"
    headers: dict[str, str] = {}
    if form == "binary":
        data, headers = binary_body(GOOD[2])
        good = [data]
    else:
        make = plain_body if form == "plain" else tensor_body
        good = [json.dumps(make(sample)).encode() for sample in GOOD]
    codes: Counter[str] = Counter()
    texts: set[str] = set()
    connection = http.client.HTTPConnection("127.0.0.1", live.server.http_port or 0, timeout=60)
    for i, data in enumerate([*good, *spoiled(good, seed=8)]):
        connection.request("POST", path, data, headers)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200 or i >= len(good), body
        codes["OK" if response.status == 200 else str(response.status)] += 1
        if response.status != 200:
            texts.add(json.loads(body)["error"])
    connection.close()
    assert_unhurt(live, codes, {"400"}, texts)
