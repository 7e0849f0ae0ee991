"""Captured requests: what was asked is in the file, can be played again, and warms a server up."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running, status_of
from tests.conformance.support.http_calls import ask, plain_body
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message
from tests.support.serve.messages.texts import packed, text_request, text_tensors, with_texts

pytestmark = pytest.mark.engine

NUM_REQUESTS = 40
OTHERS = 3  # one over each of the other protocols
TEXTS = 3  # with texts in place of IDs, over each protocol that has them


@dataclass(frozen=True)
class Captured:
    """What a server wrote of what it was asked.

    Attributes:
        path: of the file.
        asked: the requests, canonical, and how often each.
        version: that answered.
    """

    path: Path
    asked: Counter[bytes]
    version: str


def canonical(request: wire.PredictRequest) -> bytes:
    """The inputs alone, in the order of their names."""
    plain = wire.PredictRequest(num_rows=request.num_rows)
    plain.dense.extend(sorted(request.dense, key=lambda one: one.name))
    plain.sparse.extend(sorted(request.sparse, key=lambda one: one.name))
    data: bytes = plain.SerializeToString(deterministic=True)
    return data


def records(data: bytes) -> Iterator[tuple[int, str, str, wire.PredictRequest]]:
    """As serve/observe/capture_file.py describes the file, read with nothing of ours: time, model, version, request."""
    magic, version, _, crc = struct.unpack_from("<8sIQI", data)
    assert (magic, version, crc) == (b"RECSCAP\n", 1, zlib.crc32(data[:20]))
    at = 24
    while at < len(data):
        size, body_crc, head_crc = struct.unpack_from("<III", data, at)
        assert head_crc == zlib.crc32(data[at : at + 8])
        body = data[at + 12 : at + 12 + size]
        assert body_crc == zlib.crc32(body)
        time_us, model_bytes, version_bytes = struct.unpack_from("<QHH", body)
        model, rest = body[12 : 12 + model_bytes].decode(), body[12 + model_bytes :]
        name = rest[:version_bytes].decode()
        yield time_us, model, name, wire.PredictRequest.FromString(rest[version_bytes:])
        at += 12 + size


@pytest.fixture(scope="module")
def captured(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Requests of every protocol, good ones and one that is not, to a server that captures all."""
    folder = tmp_path_factory.mktemp("capture")
    path, asked = folder / "requests.capture", Counter[bytes]()
    arguments = ["--capture-path", path, "--capture-share", "1", "--http-port", "0"]
    with running(small.path, *arguments, folder=folder) as server:
        call = server.predict_bytes()
        for seed in range(NUM_REQUESTS):
            request = small.sample(seed % 5, seed).request()
            request.request_id = "secret-visit"
            call(request.SerializeToString(), timeout=60)
            asked[canonical(request)] += 1
        wrong = small.sample(1).request()
        wrong.num_rows = 2
        status_of(lambda: call(wrong.SerializeToString(), timeout=60))
        sample = small.sample(2, seed=999)
        channel = server.channel()
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        infer(kserve_message(tensors(small.signature, sample)).SerializeToString(), timeout=60)
        predict = channel.unary_unary("/predictor.Predictor/Predict")
        predict(torchrec_message(small.signature, sample, "<i8").SerializeToString(), timeout=60)
        url = f"http://{server.http_address}/v1/models/small:predict"
        assert ask(url, plain_body(sample)).status == 200
        asked[canonical(sample.request())] += OTHERS
        sample, texts = with_texts(small.signature, sample, np.random.default_rng(0))
        request = text_request(sample, texts)
        call(request.SerializeToString(), timeout=60)
        infer(
            kserve_message(packed(text_tensors(small.signature, sample, texts))).SerializeToString(),
            timeout=60,
        )
        assert ask(url, {**plain_body(sample), "sparse": texts}).status == 200
        asked[canonical(request)] += TEXTS
        assert server.stop()[0] == 0
    return Captured(path, asked, server.ready["version"])


def test_the_file_holds_what_was_asked_over_every_protocol_and_nothing_else(captured: Captured) -> None:
    data = captured.path.read_bytes()
    found = list(records(data))
    assert Counter(canonical(request) for *_, request in found) == captured.asked
    assert {(model, version) for _, model, version, _ in found} == {("small", captured.version)}
    times = [time_us for time_us, *_ in found]
    assert times == sorted(times)
    assert b"secret-visit" not in data


def test_the_file_is_its_owners_alone(captured: Captured) -> None:
    assert captured.path.stat().st_mode & 0o777 == 0o600


def replay(server: ServerUnderTest, path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "serve.bench",
            server.address,
            "--replay",
            str(path),
            "--speed",
            "max",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_capture_warms_a_server_up_and_is_played_to_it(
    captured: Captured, small: Exported, tmp_path: Path
) -> None:
    again = tmp_path / "again.capture"
    arguments = ["--warm-up", captured.path, "--capture-path", again, "--capture-share", "1"]
    with running(small.path, *arguments, folder=tmp_path) as server:
        assert server.total("recsys_requests_total") == 0  # the warm-up is nobody's request
        replay(server, captured.path)
        assert server.total("recsys_requests_total", outcome="ok") >= NUM_REQUESTS + OTHERS + TEXTS
        for outcome in ("invalid", "not_found", "rejected", "expired", "failed", "unavailable"):
            assert server.total("recsys_requests_total", outcome=outcome) == 0
        sample = small.sample(2)
        found = server.client().predict(sample.dense, sample.sparse, sample.weights)
        assert_answers(found, small.answer(sample))
        assert server.stop()[0] == 0
    assert (
        f"{NUM_REQUESTS + OTHERS + TEXTS} captured requests are used, 0 do not fit" in server.log.read_text()
    )
    played = {canonical(request) for *_, request in records(again.read_bytes())}
    assert set(captured.asked) <= played


def test_a_warm_up_that_is_damaged_or_of_another_model_does_not_stop_a_server(
    captured: Captured, slow: Exported, small: Exported, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.capture"
    data = bytearray(captured.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    for artifact, path in ((small, damaged), (slow, captured.path)):
        with running(artifact.path, "--warm-up", path, folder=tmp_path) as server:
            assert server.client().metadata().model
    assert "the capture for the warm-up is used up to its damage" in server.log.read_text()


def test_a_capture_ends_at_its_limit_and_serving_goes_on(small: Exported, tmp_path: Path) -> None:
    path = tmp_path / "requests.capture"
    arguments = ["--capture-path", path, "--capture-share", "1", "--capture-max-bytes", "4096"]
    with running(small.path, *arguments, folder=tmp_path) as server:
        client, sample = server.client(), small.sample(4)
        for _ in range(40):
            found = client.predict(sample.dense, sample.sparse, sample.weights)
            assert_answers(found, small.answer(sample))
        assert server.stop()[0] == 0
    assert path.stat().st_size <= 4096
    assert {canonical(request) for *_, request in records(path.read_bytes())} == {canonical(sample.request())}
