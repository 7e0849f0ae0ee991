"""Open Inference over HTTP and plain JSON, on a live server."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import serve.rest.server
from serve.config.models import BatchLimits, ModelSettings
from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.rest.tensors_json import write_json
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.live import INFO, LiveServer, server_of
from tests.support.serve.messages.cases import Sample, answer, assert_answers
from tests.support.serve.messages.rest_calls import (
    CONFIG,
    INFER,
    PREDICT,
    ask,
    binary_body,
    plain_body,
    sample_of,
    tensor_body,
)
from tests.support.serve.models import FailingModel, GatedModel

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")


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
    metadata = ask(rest, "GET", "/v2/models/small/versions/7").json()
    assert (metadata["name"], metadata["versions"]) == ("small", ["7"])
    assert metadata["parameters"] == {"digest": INFO.digest}
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


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v3", 404),
        ("GET", "/v1/models", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/other/ready", 404),
        ("GET", "/v2/models/small/versions/8/ready", 404),
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
    error = reply.json()["error"]
    assert error
    assert ("/v2/repository/index" in error) == (
        path in ("/v3", "/v1/models", "/v2/repository/models/small/load")
    )
    assert "access-control-allow-origin" not in reply.headers
    if status == 405:
        assert reply.headers["allow"]


@pytest.mark.parametrize("timeout", ["-1", "soon", "1.5", ""])
def test_a_wrong_timeout_gets_400(rest: LiveServer, timeout: str) -> None:
    reply = ask(rest, "POST", f"{PREDICT}?timeout_ms={timeout}", plain_body(sample_of(1)))
    assert reply.status == 400
    assert "timeout_ms: got" in reply.json()["error"]


@pytest.mark.parametrize("path", [INFER, PREDICT])
def test_an_unknown_parameter_of_the_address_gets_400(rest: LiveServer, path: str) -> None:
    reply = ask(rest, "POST", f"{path}?timeout_ms=60000&timeout=5", {})
    assert reply.status == 400
    assert (
        "address: got an unknown parameter 'timeout', expected 'timeout_ms' at most" in reply.json()["error"]
    )


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
    gated = GatedModel(model)
    gated.close_gate()
    with LiveServer(gated, CONFIG, wait=False) as live:
        assert ask(live, "GET", "/v2/health/live").status == 200
        assert ask(live, "GET", "/v2/health/ready").status == 503
        assert ask(live, "POST", PREDICT, plain_body(sample_of(1))).status == 503
        assert ask(live, "GET", "/v2/models/small/ready").json() == {"name": "small", "ready": False}
        gated.gate.set()
        live.wait_until_ready()
        assert ask(live, "GET", "/v2/health/ready").status == 200


def test_a_draining_server_sends_clients_away_and_answers_what_runs(model: ServedModel) -> None:
    gated = GatedModel(model)

    async def drain() -> None:
        server = server_of(gated, CONFIG)
        await server.start()
        await server.wait_until_ready()
        gated.close_gate()
        live = SimpleNamespace(server=server)
        running = asyncio.ensure_future(
            asyncio.to_thread(ask, live, "POST", PREDICT, plain_body(sample_of(1)))
        )
        assert await asyncio.to_thread(gated.started.acquire, timeout=60)
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0)  # its first step
        refused = await asyncio.to_thread(ask, live, "POST", PREDICT, plain_body(sample_of(1)))
        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert "stopping" in refused.json()["error"]
        for path, status in (("/v2/health/ready", 503), ("/v2/health/live", 200)):
            assert (await asyncio.to_thread(ask, live, "GET", path)).status == status
        assert not stopping.done()
        gated.gate.set()
        assert (await running).status == 200
        assert await stopping

    asyncio.run(drain())


def test_a_body_that_does_not_come_gets_408(rest: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve.rest.server, "_BODY_S", 0.05)
    with socket.create_connection(("127.0.0.1", rest.server.http_port or 0), timeout=60) as client:
        client.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{" % PREDICT.encode())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


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


def test_numbers_that_json_does_not_have_become_null() -> None:
    answered = {"score": [1.5, float("nan"), [float("inf"), -0.0]]}
    assert write_json(answered) == b'{"score":[1.5,null,[null,-0.0]]}'
