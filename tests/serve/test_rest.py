"""Open Inference over HTTP and plain JSON, on a live server."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from serve.batching import BatchLimits
from serve.config import ConnectionLimits, ModelSettings, ServerConfig
from serve.model import ServedModel
from tests.serve.cases import Sample, answer, assert_answers, random_sample
from tests.serve.certificates import Authority, write_tls
from tests.serve.foreign import tensors
from tests.serve.live import LiveServer, server_of
from tests.serve.models import SIGNATURE, FailingModel, GatedModel

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'http'")

CONFIG = ServerConfig(port=0, metrics_port=None, http_port=0)
DTYPES = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
INFER, PREDICT = "/v2/models/small/infer", "/v1/models/small:predict"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    data: bytes

    def json(self) -> Any:
        assert self.headers["content-type"].startswith("application/json")
        return json.loads(self.data)


def ask(
    live: LiveServer, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> Reply:
    """One request over a connection of its own; a body that is not bytes becomes JSON."""
    port = live.server.http_port
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, headers or {})
        response = connection.getresponse()
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def rest(model: ServedModel) -> Iterator[LiveServer]:
    with LiveServer(model, CONFIG) as made:
        yield made


def sample_of(rows: int, seed: int = 0) -> Sample:
    return random_sample(SIGNATURE, rows, np.random.default_rng(seed))


def tensor_body(sample: Sample, **more: Any) -> dict[str, Any]:
    inputs = [
        {
            "name": one.name,
            "datatype": one.datatype,
            "shape": one.shape,
            "data": np.frombuffer(one.data, DTYPES[one.datatype]).tolist(),
        }
        for one in tensors(SIGNATURE, sample)
    ]
    return {"inputs": inputs, **more}


def plain_body(sample: Sample) -> dict[str, Any]:
    return {"dense": sample.dense, "sparse": sample.sparse, "weights": sample.weights}


def outputs_of(body: dict[str, Any]) -> dict[str, np.ndarray]:
    return {one["name"]: np.array(one["data"], "<f4").reshape(one["shape"]) for one in body["outputs"]}


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_tensors_in_json(rest: LiveServer, model: ServedModel, rows: int) -> None:
    sample = sample_of(rows, seed=rows)
    got = ask(rest, "POST", INFER, tensor_body(sample, id="x")).json()
    assert (got["model_name"], got["model_version"], got["id"]) == ("small", "7", "x")
    assert {one["datatype"] for one in got["outputs"]} == {"FP32"}
    assert_answers(outputs_of(got), answer(model, sample))


def test_nested_data_and_chosen_outputs(rest: LiveServer, model: ServedModel) -> None:
    sample = sample_of(3)
    body = tensor_body(
        sample, outputs=[{"name": "vectors"}], parameters={"priority": 3, "timeout": 60_000_000}
    )
    body["inputs"][0]["data"] = sample.dense["context"]
    got = ask(rest, "POST", "/v2/models/small/versions/7/infer", body).json()
    assert_answers(outputs_of(got), {"vectors": answer(model, sample)["vectors"]})


def test_int64_ids_keep_all_their_bits(rest: LiveServer, model: ServedModel) -> None:
    sample = sample_of(1)
    sample.sparse["item"][0][:] = [(1 << 53) + 1, -(1 << 63), (1 << 63) - 1]
    expected = answer(model, sample)
    assert_answers(outputs_of(ask(rest, "POST", INFER, tensor_body(sample)).json()), expected)
    assert_answers(
        {
            n: np.array(v, "<f4")
            for n, v in ask(rest, "POST", PREDICT, plain_body(sample)).json()["outputs"].items()
        },
        expected,
    )


def binary_body(sample: Sample, **more: Any) -> tuple[bytes, dict[str, str]]:
    """As Triton's HTTP client sends it: JSON, then the tensors' bytes."""
    made = tensors(SIGNATURE, sample)
    inputs = [
        {
            "name": t.name,
            "datatype": t.datatype,
            "shape": t.shape,
            "parameters": {"binary_data_size": len(t.data)},
        }
        for t in made
    ]
    text = json.dumps({"inputs": inputs, **more}).encode()
    return text + b"".join(t.data for t in made), {"Inference-Header-Content-Length": str(len(text))}


def test_binary_tensors(rest: LiveServer, model: ServedModel) -> None:
    sample = sample_of(5)
    data, headers = binary_body(
        sample,
        parameters={"binary_data_output": True},
        outputs=[{"name": "vectors"}, {"name": "score", "parameters": {"binary_data": False}}],
    )
    reply = ask(rest, "POST", INFER, data, headers)
    assert reply.status == 200, reply.data
    size = int(reply.headers["inference-header-content-length"])
    vectors, score = json.loads(reply.data[:size])["outputs"]
    assert vectors["parameters"] == {"binary_data_size": len(reply.data) - size}
    got = {
        "vectors": np.frombuffer(reply.data[size:], "<f4").reshape(vectors["shape"]),
        "score": np.array(score["data"], "<f4"),
    }
    expected = answer(model, sample)
    assert_answers(got, {name: expected[name] for name in got})


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_plain_json(rest: LiveServer, model: ServedModel, rows: int) -> None:
    sample = sample_of(rows, seed=rows)
    for path in (PREDICT, "/v1/models/small/versions/7:predict"):
        got = ask(rest, "POST", path, plain_body(sample)).json()
        assert (got["model"], got["version"]) == ("small", "7")
        expected = answer(model, sample)
        outputs = {n: np.array(v, "<f4").reshape(expected[n].shape) for n, v in got["outputs"].items()}
        assert_answers(outputs, expected)


def test_plain_json_with_bare_numbers_and_a_context(rest: LiveServer, model: ServedModel) -> None:
    sample = Sample(
        2,
        {"context": [[1.0, 2.0, 3.0]] * 2, "price": [[0.5], [2.0]]},
        {"user": [[7]] * 2, "genres": [[1], [2]], "item": [[3], []], "tags": [[1, 2]] * 2},
        {"tags": [[0.5, 1.0]] * 2},
    )
    body = {
        "dense": {"price": [0.5, 2]},
        "sparse": {"genres": [1, 2], "item": [[3], []]},
        "context": {
            "dense": {"context": [[1, 2, 3]]},
            "sparse": {"user": [7], "tags": [[1, 2]]},
            "weights": {"tags": [[0.5, 1]]},
        },
        "id": "me",
        "priority": 1,
    }
    got = ask(rest, "POST", f"{PREDICT}?timeout_ms=60000", body).json()
    assert_answers({n: np.array(v, "<f4") for n, v in got["outputs"].items()}, answer(model, sample))


def test_what_is_there(rest: LiveServer) -> None:
    assert ask(rest, "GET", "/v2/health/live").status == 200
    assert ask(rest, "GET", "/v2/health/ready").json() == {"ready": True}
    assert ask(rest, "GET", "/v2").json()["name"] == "recsys-serving"
    assert ask(rest, "GET", "/v2/models/small/ready").json() == {"name": "small", "ready": True}
    for path in ("/v2/models/other/ready", "/v2/models/small/versions/8/ready"):
        assert ask(rest, "GET", path).status == 503
    metadata = ask(rest, "GET", "/v2/models/small/versions/7").json()
    assert (metadata["name"], metadata["versions"]) == ("small", ["7"])
    assert metadata["inputs"][:3] == [
        {"name": "context", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "price", "datatype": "FP32", "shape": [-1, 1]},
        {"name": "user.values", "datatype": "INT64", "shape": [-1]},
    ]
    config = ask(rest, "GET", "/v2/models/small/config").json()
    assert config["max_batch_size"] == 0
    assert config["input"][0] == {"name": "context", "data_type": "TYPE_FP32", "dims": [-1, 3]}
    assert config["instance_group"] == [{"name": "small", "count": 1, "kind": "KIND_CPU"}]
    assert config["parameters"]["target"] == {"string_value": "cpu"}
    assert ask(rest, "POST", "/v2/repository/index", {"ready": True}).json() == [
        {"name": "small", "version": "7", "state": "READY", "reason": ""}
    ]
    assert ask(rest, "POST", "/v2/repository/index").status == 200


def test_statistics_are_numbers(rest: LiveServer) -> None:
    ask(rest, "POST", PREDICT, plain_body(sample_of(1)))
    for path in ("/v2/models/small/stats", "/v2/models/stats"):
        (stats,) = ask(rest, "GET", path).json()["model_stats"]
        assert stats["inference_stats"]["success"]["count"] >= 1
        assert stats["inference_stats"]["compute_infer"]["ns"] > 0
        assert stats["memory_usage"] == [{"type": "tables", "id": 0, "byte_size": 1712}]


def _input(body: dict[str, Any], at: int, **values: Any) -> None:
    body["inputs"][at].update(values)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "inputs-no-list": (lambda b: b.update(inputs={}), "body['inputs']: got an object, expected a list"),
    "input-no-object": (lambda b: b["inputs"].append(3), "inputs[11]: got a whole number, expected an object"),
    "no-inputs": (lambda b: b.pop("inputs"), "inputs: missing 'context'"),
    "no-name": (lambda b: b["inputs"][0].pop("name"), "inputs: missing 'context'"),
    "number-name": (lambda b: _input(b, 0, name=4), "inputs[0]['name']: got a whole number, expected a text"),
    "shape-of-texts": (lambda b: _input(b, 0, shape=["2", "3"]), "inputs[0]['shape']: expected whole numbers"),
    "shape-of-flags": (lambda b: _input(b, 0, shape=[True, 3]), "inputs[0]['shape']: expected whole numbers"),
    "negative-shape": (lambda b: _input(b, 0, shape=[-2, -3]), "inputs['context'].shape: got [-2, -3]"),
    "huge-shape": (lambda b: _input(b, 0, shape=[1 << 62, 3]), "inputs['context']: got 24 bytes, expected"),
    "shape-beyond-64-bits": (
        lambda b: _input(b, 0, shape=[10**4000] * 2),
        "inputs[0]['shape']: expected whole numbers of at most 64 bits",
    ),
    "endless-timeout": (lambda b: b.update(parameters={"timeout": 10**4000}), "parameters['timeout']: got 1000"),
    "deep-data": (
        lambda b: _input(b, 0, data=json.loads("[" * 90 + "]" * 90)),
        "inputs['context'].data: got lists of shape [1, 1",
    ),
    "no-data": (lambda b: b["inputs"][0].pop("data"), "inputs['context']: got 0 bytes, expected 24"),
    "ragged-data": (
        lambda b: _input(b, 0, data=[[1, 2, 3], [4, 5]]),
        "inputs['context'].data: got lists of unequal lengths",
    ),
    "other-nesting": (
        lambda b: _input(b, 0, data=[[1, 2], [3, 4], [5, 6]]),
        "inputs['context'].data: got lists of shape [3, 2], expected [2, 3]",
    ),
    "text-data": (lambda b: _input(b, 0, data=["1"] * 6), "inputs['context'].data: got a text, expected numbers alone"),
    "null-data": (lambda b: _input(b, 0, data=[None] * 6), "inputs['context'].data: got null, expected numbers"),
    "flag-data": (lambda b: _input(b, 0, data=[True] * 6), "inputs['context'].data: got true or false"),
    "nan-data": (lambda b: _input(b, 0, data=[float("nan")] * 6), "got nan in row 0"),
    "too-large-float": (lambda b: _input(b, 0, data=[1e39] * 6), "got inf in row 0"),
    "huge-float": (lambda b: _input(b, 0, data=[10**400] * 6), "inputs['context'].data: got a number beyond"),
    "float-ids": (
        lambda b: _input(b, 2, data=[1.0], shape=[1]),
        "inputs['user.values'].data: got a number, expected whole numbers alone",
    ),
    "huge-ids": (
        lambda b: _input(b, 2, data=[1 << 63], shape=[1]),
        "inputs['user.values'].data: got a number beyond the range of int64",
    ),
    "huge-lengths": (
        lambda b: _input(b, 3, data=[1 << 31, 0]),
        "inputs['user.lengths'].data: got a number beyond the range of int32",
    ),
    "bool-tensor": (lambda b: _input(b, 0, datatype="BOOL"), "inputs['context'].datatype: got 'BOOL', expected FP32"),
    "binary-without-bytes": (
        lambda b: _input(b, 0, parameters={"binary_data_size": 24}),
        "inputs[0].parameters['binary_data_size']: got 24, expected 0 to 0",
    ),
    "unknown-output": (lambda b: b.update(outputs=[{"name": "x"}]), "outputs: got an unknown output 'x'"),
    "null-output": (lambda b: b.update(outputs=[{"name": None}]), "outputs: got an unknown output ''"),
    "output-no-object": (lambda b: b.update(outputs=["score"]), "outputs[0]: got a text, expected an object"),
    "text-priority": (lambda b: b.update(parameters={"priority": "1"}), "parameters['priority']: got '1'"),
    "long-id": (lambda b: b.update(id="x" * 129), "id: got 129 bytes, expected at most 128"),
    "half-a-surrogate": (lambda b: b.update(id="\ud800"), "id: got half a surrogate pair"),
    "unknown-context": (
        lambda b: b.update(parameters={"context": "x"}),
        "parameters['context']: got an unknown input 'x'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_tensor_body_gets_400(rest: LiveServer, name: str) -> None:
    spoil, text = WRONG[name]
    body = tensor_body(sample_of(2))
    spoil(body)
    reply = ask(rest, "POST", INFER, body)
    assert reply.status == 400
    assert text in reply.json()["error"]


WRONG_PLAIN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "unknown-entry": (lambda b: b.update(densee={}), "body: got an unknown entry 'densee', expected dense, sparse"),
    "unknown-shared": (lambda b: b.update(context={"user": [[1]]}), "context: got an unknown entry 'user'"),
    "dense-no-object": (lambda b: b.update(dense=[1]), "body['dense']: got a list, expected an object"),
    "input-no-list": (lambda b: b["dense"].update(price=1.5), "dense['price']: got a number, expected a list"),
    "missing": (lambda b: b["sparse"].pop("user"), "sparse: missing 'user'"),
    "unknown": (lambda b: b["sparse"].update(other=[[1], [2]]), "sparse: got an unknown input 'other'"),
    "wrong-width": (lambda b: b["dense"].update(context=[[1, 2], [3, 4]]), "dense['context'].values: got 16 bytes"),
    "ragged": (lambda b: b["dense"].update(context=[[1, 2, 3], [4]]), "dense['context']: got lists of unequal"),
    "rows": (lambda b: b["dense"].update(price=[1, 2, 3]), "dense['price']: got 3 rows, expected 2"),
    "text": (lambda b: b["sparse"].update(user=["a", "b"]), "sparse['user']: got a text, expected whole numbers"),
    "float-id": (lambda b: b["sparse"].update(user=[[1.5], []]), "sparse['user']: got a number, expected whole"),
    "deep": (lambda b: b["sparse"].update(user=[[[1]], []]), "sparse['user']: got a list, expected whole"),
    "id-at-limit": (lambda b: b["sparse"].update(user=[[50], []]), "sparse['user'].values: got ID 50 in row 0"),
    "weights": (lambda b: b["weights"].update(tags=[[], []]), "weights['tags']: got [0, 0] weights per row, expected"),
    "no-weights": (lambda b: b.pop("weights"), "sparse['tags'].weights: got 0 bytes"),
    "weights-of-nothing": (lambda b: b["weights"].update(x=[]), "weights: got 'x', expected only names of sparse"),
    "priority": (lambda b: b.update(priority=9), "parameters['priority']: got 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_PLAIN)
def test_each_wrong_plain_body_gets_400(rest: LiveServer, name: str) -> None:
    spoil, text = WRONG_PLAIN[name]
    sample = sample_of(2, seed=4)
    sample.sparse["tags"][0][:] = [1]
    sample.weights["tags"][0][:] = [1.0]
    body = plain_body(sample)
    spoil(body)
    reply = ask(rest, "POST", PREDICT, body)
    assert reply.status == 400
    assert text in reply.json()["error"]


@pytest.mark.parametrize("path", [INFER, PREDICT])
@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b'"x"', b"{}x"])
def test_bodies_that_are_no_json_objects_get_400(rest: LiveServer, path: str, data: bytes) -> None:
    before = rest.server.metrics.outcomes()["invalid"]
    reply = ask(rest, "POST", path, data)
    assert reply.status == 400
    assert reply.json()["error"].startswith("body: got ")
    assert rest.server.metrics.outcomes()["invalid"] == before + 1


@pytest.mark.parametrize("length", ["x", "-1", "99999", "1e3", "9" * 40])
def test_a_wrong_length_of_the_json_gets_400(rest: LiveServer, length: str) -> None:
    data, _ = binary_body(sample_of(1))
    reply = ask(rest, "POST", INFER, data, {"Inference-Header-Content-Length": length})
    assert reply.status == 400
    assert "Inference-Header-Content-Length: got" in reply.json()["error"]


def test_bytes_that_no_tensor_claims_get_400(rest: LiveServer) -> None:
    data, headers = binary_body(sample_of(1))
    reply = ask(rest, "POST", INFER, data + b"more", headers)
    assert reply.status == 400
    assert "bytes after the JSON, expected" in reply.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/small/versions/8", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v1/models/other:predict", 404),
        ("GET", INFER, 405),
        ("GET", PREDICT, 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/repository/models/small/load", 404),
        ("OPTIONS", INFER, 405),
    ],
)
def test_other_addresses_get_errors_in_json(rest: LiveServer, method: str, path: str, status: int) -> None:
    reply = ask(rest, method, path, {} if method == "POST" else None)
    assert reply.status == status
    assert reply.json()["error"]
    assert "access-control-allow-origin" not in reply.headers
    if status == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize("timeout", ["-1", "soon", "1.5", ""])
def test_a_wrong_timeout_gets_400(rest: LiveServer, timeout: str) -> None:
    reply = ask(rest, "POST", f"{PREDICT}?timeout_ms={timeout}", plain_body(sample_of(1)))
    assert reply.status == 400
    assert "timeout_ms: got" in reply.json()["error"]


def test_a_body_beyond_the_limit_gets_413(model: ServedModel) -> None:
    config = ServerConfig(
        port=0, metrics_port=None, http_port=0, connections=ConnectionLimits(max_message_bytes=4096)
    )
    with LiveServer(model, config) as live:
        reply = ask(live, "POST", PREDICT, b" " * 5000)
        assert reply.status == 413
        assert "body: got more bytes" in reply.json()["error"]
        assert ask(live, "POST", PREDICT, plain_body(sample_of(1))).status == 200


def test_a_full_queue_gets_429_and_says_when_to_come_back(model: ServedModel) -> None:
    limits = BatchLimits(max_batch_rows=1, max_request_rows=1, max_queue_rows=1)
    config = ServerConfig(port=0, metrics_port=None, http_port=0, defaults=ModelSettings(limits=limits))
    gated = GatedModel(model)
    with ThreadPoolExecutor(2) as pool, LiveServer(gated, config) as live:
        gated.close_gate()
        running = pool.submit(ask, live, "POST", PREDICT, plain_body(sample_of(1)))
        assert gated.started.acquire(timeout=60)
        waiting = pool.submit(ask, live, "POST", PREDICT, plain_body(sample_of(1)))
        while live.server.metrics.outcomes()["accepted"] < 2:
            ask(live, "GET", "/v2/health/live")
        refused = ask(live, "POST", PREDICT, plain_body(sample_of(1)))
        gated.gate.set()
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "rows wait" in refused.json()["error"]
        assert running.result(60).status == waiting.result(60).status == 200


def test_a_deadline_that_passes_gets_504(model: ServedModel) -> None:
    gated = GatedModel(model)
    with LiveServer(gated, CONFIG) as live:
        gated.close_gate()
        for path, body in (
            (f"{PREDICT}?timeout_ms=20", plain_body(sample_of(1))),
            (INFER, tensor_body(sample_of(1), parameters={"timeout": 20_000})),
        ):
            reply = ask(live, "POST", path, body)
            assert reply.status == 504
            assert "deadline" in reply.json()["error"]
        assert live.server.metrics.outcomes()["expired"] == 2
        gated.gate.set()


def test_a_client_that_hangs_up_gives_its_request_up(model: ServedModel) -> None:
    gated = GatedModel(model)
    with LiveServer(gated, CONFIG) as live:
        gated.close_gate()
        data = json.dumps(plain_body(sample_of(1))).encode()
        with socket.create_connection(("127.0.0.1", live.server.http_port or 0), timeout=60) as client:
            client.sendall(
                b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PREDICT.encode(), len(data))
            )
            client.sendall(data)
            assert gated.started.acquire(timeout=60)
            # Reset at once, without a word.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        while not live.server.metrics.outcomes()["cancelled"]:
            ask(live, "GET", "/v2/health/live")
        gated.gate.set()


def test_a_failing_model_says_nothing_of_itself(model: ServedModel) -> None:
    with LiveServer(FailingModel(model, bad_id=777_000), CONFIG) as live:
        sample = sample_of(1)
        sample.sparse["item"][0][:] = [777_000]
        reply = ask(live, "POST", PREDICT, plain_body(sample))
        assert reply.status == 500
        assert "secret" not in reply.json()["error"]
        assert ask(live, "POST", PREDICT, plain_body(sample_of(1, seed=2))).status == 200


def test_before_models_are_ready_requests_get_503(model: ServedModel) -> None:
    with LiveServer(model, CONFIG, wait=False) as live:
        assert ask(live, "GET", "/v2/health/live").status == 200
        assert ask(live, "GET", "/v2/health/ready").status == 503
        assert ask(live, "POST", PREDICT, plain_body(sample_of(1))).status == 503
        live.wait_until_ready()
        assert ask(live, "GET", "/v2/health/ready").status == 200


def test_over_tls(model: ServedModel, tmp_path: Path) -> None:
    authority = Authority()
    tls = write_tls(tmp_path, authority.issue())
    with LiveServer(model, replace(CONFIG, tls=tls)) as live:
        trusting = ssl.create_default_context(cadata=authority.certificate.decode())
        connection = http.client.HTTPSConnection(
            "localhost", live.server.http_port or 0, timeout=60, context=trusting
        )
        connection.request("POST", PREDICT, json.dumps(plain_body(sample_of(1))))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(live, "GET", "/v2/health/live")  # in plain text


def test_a_port_that_is_taken_is_said(model: ServedModel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(port=0, metrics_port=None, http_port=taken.getsockname()[1])
        with pytest.raises(OSError, match="cannot serve HTTP on port"):
            asyncio.run(server_of(model, config).start())
