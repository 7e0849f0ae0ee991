"""HTTP: Open Inference's REST form and plain JSON, as curl speaks them; and what is no HTTP at all."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serve.client.packing import read_response
from serve.wire import predict_pb2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ENGINE, ServerUnderTest, put_version, running
from tests.conformance.support.http_calls import (
    Reply,
    ask,
    binary_body,
    plain_body,
    plain_outputs,
    tensor_body,
    tensor_outputs,
)
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine

INFER, PREDICT = "/v2/models/small/infer", "/v1/models/small:predict"
INTERNALS = re.compile(r"Traceback|\.py\b|\.cpp\b|site-packages|/tmp/|0x[0-9a-f]{6}")


@pytest.fixture
def rest(server: ServerUnderTest) -> Callable[..., Reply]:
    """A request to a path of the shared server."""

    def asked(path: str, body: Any = None, **options: Any) -> Reply:
        return ask(f"http://{server.http_address}{path}", body, **options)

    return asked


Rest = Callable[..., Reply]


def over_grpc(server: ServerUnderTest, sample: Sample) -> dict[str, np.ndarray]:
    data = server.predict_bytes()(sample.request().SerializeToString(), timeout=60)
    return read_response(predict_pb2.PredictResponse.FromString(data))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33], ids=lambda n: f"{n}-rows")
def test_tensors_in_json_are_answered_as_over_recsys_v1(
    server: ServerUnderTest, small: Exported, rest: Rest, num_rows: int
) -> None:
    sample = small.sample(num_rows, seed=num_rows)
    body = rest(INFER, tensor_body(small.signature, sample, id="mine")).json()
    assert (body["model_name"], body["model_version"], body["id"]) == (
        "small",
        server.ready["version"],
        "mine",
    )
    for name, values in over_grpc(server, sample).items():
        assert tensor_outputs(body)[name].tobytes() == values.tobytes()
    assert_answers(tensor_outputs(body), small.answer(sample))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 33], ids=lambda n: f"{n}-rows")
def test_plain_json_is_answered_as_over_recsys_v1(
    server: ServerUnderTest, small: Exported, rest: Rest, num_rows: int
) -> None:
    sample = small.sample(num_rows, seed=num_rows)
    expected = over_grpc(server, sample)
    for path in (PREDICT, f"/v1/models/small/versions/{server.ready['version']}:predict"):
        body = rest(path, plain_body(sample, id="mine", priority=1)).json()
        assert (body["model"], body["version"]) == ("small", server.ready["version"])
        for name, values in expected.items():
            assert plain_outputs(body, expected)[name].tobytes() == values.tobytes()


def test_rows_are_answered_as_lists_per_input(small: Exported, rest: Rest) -> None:
    body = plain_body(small.sample(3))
    # As a text in both forms: a row's number is the text that training hashed.
    body["sparse"]["item"] = [[str(value) for value in bag] for bag in body["sparse"]["item"]]
    weights = {f"{name}.weights": values for name, values in body["weights"].items()}
    columns = {**body["dense"], **body["sparse"], **weights}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    outputs = rest(PREDICT, body).json()["outputs"]
    for path in (PREDICT, "/invocations"):
        predictions = rest(path, {"instances": rows}).json()["predictions"]
        assert predictions == [
            dict(zip(outputs, values, strict=True)) for values in zip(*outputs.values(), strict=True)
        ]


def _kept(server: ServerUnderTest, path: str, body: Any) -> Reply:
    """A request on a connection that may be kept, which the native engine answers itself."""
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    connection.request("POST", path, json.dumps(body))
    reply = connection.getresponse()
    headers = {name.lower(): value for name, value in reply.getheaders()}
    found = Reply(reply.status, headers, reply.read())
    connection.close()
    return found


def test_values_of_rows_are_read_alike_in_each_form(server: ServerUnderTest, small: Exported) -> None:
    body = plain_body(small.sample(1))
    weights = {f"{name}.weights": values for name, values in body["weights"].items()}
    row = {name: values[0] for name, values in {**body["dense"], **body["sparse"], **weights}.items()}
    others: list[dict[str, Any]] = [
        *({"user": value} for value in (7, [7], "7", " 7.0 ", 7.0, 7.5, True, None, "", [None, 3], [[3]], {}, 2**63)),
        *({"item": value} for value in (5, "5", "x", ["a", 3, False, None], 3.0, 2.5, -0, 2**70, "\u00e9", [])),
        *({"price": value} for value in (1, [1], True, None, "1", [1, 2], 1e39, 1e400, -0.0)),
        *({"context": value} for value in ([1, 2], [1, None, 3], [True, 2, 3], None, 1)),
        *({"tags": ids, "tags.weights": of} for ids, of in ((3, 0.5), ([], None), ([1], []), ([1, 2], [1, 1e-3]))),
        *({"more": value} for value in (1, "x", None, True, [1], {"a": 1}, 10**400)),
    ]  # fmt: skip
    num_answered = num_native = 0
    for fields in others:
        one = row | fields
        first = _kept(server, PREDICT, {"instances": [row, one]})
        names = [*one]
        data = [[row.get(name) for name in names], [one[name] for name in names]]
        second = _kept(server, PREDICT, {"dataframe_split": {"columns": names, "data": data}})
        text = second.data.decode().replace("dataframe_split['data']", "instances")
        assert (first.status, first.data.decode()) == (second.status, text), fields
        num_answered += first.status == 200
        num_native += "server" not in first.headers  # which Python names
    assert 20 < num_answered < len(others)
    assert (num_native > 15) == (ENGINE == "native")
    missing = {name: value for name, value in row.items() if name != "user"}
    assert (
        "instances[1]: missing 'user'"
        in _kept(server, PREDICT, {"instances": [row, missing]}).json()["error"]
    )


def test_binary_tensors_go_both_ways(server: ServerUnderTest, small: Exported, rest: Rest) -> None:
    sample = small.sample(5)
    wanted = [{"name": "vectors"}, {"name": "score", "parameters": {"binary_data": False}}]
    data, headers = binary_body(
        small.signature, sample, parameters={"binary_data_output": True}, outputs=wanted
    )
    reply = rest(INFER, data, headers=headers)
    assert reply.status == 200, reply.data
    size = int(reply.headers["inference-header-content-length"])
    vectors, score = json.loads(reply.data[:size])["outputs"]
    assert vectors["parameters"]["binary_data_size"] == len(reply.data) - size
    expected = over_grpc(server, sample)
    assert reply.data[size:] == expected["vectors"].tobytes()
    assert np.array(score["data"], "<f4").tobytes() == expected["score"].tobytes()


def test_a_context_that_is_given_once_stands_for_all_candidates(small: Exported, rest: Rest) -> None:
    sample = small.sample(4, seed=2)
    for values in (sample.dense, sample.sparse, sample.weights):
        for name in {"context", "user", "tags"} & set(values):
            values[name][1:] = [values[name][0]] * 3
    parts = plain_body(sample)
    shared = {
        part: {n: v[:1] for n, v in values.items() if n in ("context", "user", "tags")}
        for part, values in parts.items()
    }
    own = {part: {n: v for n, v in values.items() if n not in shared[part]} for part, values in parts.items()}
    expected = small.answer(sample)
    body = rest(f"{PREDICT}?timeout_ms=60000", {**own, "context": shared}).json()
    assert_answers(plain_outputs(body, expected), expected)


def test_health_metadata_config_statistics_and_index(
    server: ServerUnderTest, small: Exported, rest: Rest
) -> None:
    version = server.ready["version"]
    assert rest("/v2/health/live").status == 200
    assert rest("/v2/health/ready").json() == {"ready": True}
    assert rest("/v2").json()["name"]
    assert rest("/v2/models/small/ready").json() == {"name": "small", "ready": True}
    assert rest(f"/v2/models/small/versions/{version}/ready").status == 200
    for path in ("/v2/models/other/ready", "/v2/models/small/versions/8/ready"):
        assert rest(path).status == 404
    metadata = rest("/v2/models/small").json()
    assert (metadata["name"], metadata["versions"]) == ("small", [version])
    assert metadata["parameters"] == {"digest": server.ready["digest"]}
    named = {one["name"]: (one["datatype"], one["shape"]) for one in metadata["inputs"]}
    assert named["context"] == ("FP32", [-1, 3])
    assert named["user.values"] == ("INT64", [-1])
    config = rest("/v2/models/small/config").json()
    assert (config["name"], config["parameters"]["digest"]["string_value"]) == (
        "small",
        server.ready["digest"],
    )
    [index] = rest("/v2/repository/index", {"ready": True}).json()
    assert (index["name"], index["version"], index["state"]) == ("small", version, "READY")
    rest(PREDICT, plain_body(small.sample(1)))
    [stats] = rest("/v2/models/small/stats").json()["model_stats"]
    assert stats["inference_stats"]["success"]["count"] >= 1


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda body: body["inputs"].pop([one["name"] for one in body["inputs"]].index(name))


WRONG: dict[str, tuple[str, Callable[[dict[str, Any]], object], str]] = {
    "missing-tensor": (INFER, _without("context"), "inputs: missing 'context'"),
    "datatype": (INFER, lambda b: b["inputs"][0].update(datatype="FP64"), "inputs['context'].datatype: got 'FP64'"),
    "shape": (INFER, lambda b: b["inputs"][0].update(shape=[3, 2]), "inputs['context'].shape: got [3, 2]"),
    "ragged": (
        INFER,
        lambda b: b["inputs"][0].update(data=[[1, 2, 3], [4, 5]]),
        "inputs['context'].data: got lists of unequal lengths",
    ),
    "text-data": (INFER, lambda b: b["inputs"][0].update(data=["1"] * 6), "inputs['context'].data: got a text"),
    "nan": (INFER, lambda b: b["inputs"][0].update(data=[float("nan")] * 6), "got nan in row 0"),
    "huge-number": (INFER, lambda b: b["inputs"][0].update(data=[10**400] * 6), "got a number beyond"),
    "endless-shape": (INFER, lambda b: b["inputs"][0].update(shape=[10**4000] * 2), "inputs[0]['shape']"),
    "unknown-output": (INFER, lambda b: b.update(outputs=[{"name": "x"}]), "outputs: got an unknown output 'x'"),
    "priority": (INFER, lambda b: b.update(parameters={"priority": 9}), "parameters['priority']: got 9"),
    "long-id": (INFER, lambda b: b.update(id="x" * 129), "id: got 129 bytes, expected at most 128"),
    "plain-unknown-entry": (PREDICT, lambda b: b.update(densee={}), "body: got an unknown entry 'densee'"),
    "plain-missing": (PREDICT, lambda b: b["sparse"].pop("user"), "sparse: missing 'user'"),
    "plain-unknown": (
        PREDICT,
        lambda b: b["sparse"].update(who=[[1], [2]]),
        "sparse: got an unknown input 'who'",
    ),
    "plain-rows": (PREDICT, lambda b: b["dense"].update(price=[1, 2, 3]), "dense['price']: got 3 rows, expected 2"),
    "plain-float-id": (PREDICT, lambda b: b["sparse"].update(user=[[1.5], []]), "sparse['user']: got a number"),
    "plain-id-beyond": (
        PREDICT,
        lambda b: b["sparse"].update(user=[[50], []]),
        "sparse['user'].values: got ID 50 in row 0",
    ),
    "plain-no-list": (PREDICT, lambda b: b["dense"].update(price=1.5), "dense['price']: got a number, expected a list"),
    "plain-priority": (PREDICT, lambda b: b.update(priority=9), "parameters['priority']: got 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_body_gets_400_by_field_got_and_expected(small: Exported, rest: Rest, name: str) -> None:
    path, spoil, text = WRONG[name]
    sample = small.sample(2)
    body = tensor_body(small.signature, sample) if path == INFER else plain_body(sample)
    spoil(body)
    reply = rest(path, body)
    assert (reply.status, text in reply.json()["error"]) == (400, True), reply.data
    assert not INTERNALS.search(reply.json()["error"])


@pytest.mark.parametrize("path", [INFER, PREDICT], ids=["infer", "predict"])
@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b"null", b"{}x", b'{"a":' * 50_000],
    ids=["empty", "half", "no-utf8", "deep", "list", "null", "more", "deep-objects"],
)
def test_a_body_that_is_no_json_object_gets_400(rest: Rest, path: str, data: bytes) -> None:
    reply = rest(path, data)
    assert reply.status == 400
    assert reply.json()["error"].startswith("body: got ")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v3", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/small/versions/8", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v1/models/other:predict", 404),
        ("POST", "/v1/models/small/versions/8:predict", 404),
        ("POST", "/v2/repository/models/small/load", 404),
        ("GET", "/v2/../../../../etc/passwd", 404),
        ("GET", "/v2/models/%00", 404),
        ("GET", "/v2/models/%ff%fe", 404),
        ("GET", "/v2/models/" + "x" * 4000, 404),
        ("GET", INFER, 405),
        ("DELETE", "/v2", 405),
        ("OPTIONS", PREDICT, 405),
    ],
)
def test_other_addresses_and_methods_get_errors_in_json(
    server: ServerUnderTest, rest: Rest, method: str, path: str, status: int
) -> None:
    reply = rest(path, {} if method == "POST" else None, method=method)
    assert "Traceback" not in server.log.read_text()
    assert reply.status == status
    assert reply.json()["error"]
    assert not INTERNALS.search(reply.json()["error"])
    assert "access-control-allow-origin" not in reply.headers


def test_a_connection_is_kept_for_further_requests_whatever_became_of_the_last(
    server: ServerUnderTest, small: Exported
) -> None:
    sample = small.sample(2)
    connection = http.client.HTTPConnection(server.http_address, timeout=60)
    connection.connect()
    opened = connection.sock
    for at in range(30):
        body = [json.dumps(plain_body(sample)), "{", json.dumps(plain_body(small.sample(1)))][at % 3]
        connection.request("POST", PREDICT, body)
        response = connection.getresponse()
        assert response.status == (400 if at % 3 == 1 else 200)
        json.loads(response.read())
        assert connection.sock is opened
    connection.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 1000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
        b"POST /v1/models/small:predict HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/models/small:predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /v1/models/small:predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["zeros", "http2", "tls", "version", "line", "header", "negative", "two-lengths", "chunk"],
)
def test_garbage_on_the_socket_ends_that_connection_alone(
    server: ServerUnderTest, small: Exported, rest: Rest, data: bytes
) -> None:
    host, port = server.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as garbage:
        garbage.sendall(data)
        garbage.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while more := garbage.recv(65536):
                got += more
        except ConnectionError:
            pass  # closed with our bytes unread
    assert got == b"" or re.match(rb"HTTP/1\.[01] 4\d\d ", got), got[:100]
    assert not INTERNALS.search(got.decode("latin-1"))
    assert rest(PREDICT, plain_body(small.sample(1))).status == 200


@pytest.fixture(scope="module")
def tight(
    small: Exported, slow: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """A slow model whose queue holds one request, messages of at most 64 KiB."""
    folder = tmp_path_factory.mktemp("tight")
    put_version(folder / "models", "slow", "1", slow.path)
    put_version(folder / "models", "small", "1", small.path)
    limits = ["--max-batch-rows", "64", "--max-request-rows", "64", "--max-queue-rows", "64"]
    arguments = ["--repository", folder / "models", "--http-port", "0", "--max-message-bytes", "65536"]
    with running(*arguments, *limits, folder=folder) as started:
        yield started


def slow_body() -> dict[str, Any]:
    return {"sparse": {"id": [[at] for at in range(64)]}}


def test_a_body_beyond_the_limit_gets_413(tight: ServerUnderTest, small: Exported) -> None:
    url = f"http://{tight.http_address}{PREDICT}"
    reply = ask(url, b" " * 70_000)
    assert reply.status == 413
    assert "body: got more bytes" in reply.json()["error"]
    assert ask(url, plain_body(small.sample(1))).status == 200


def test_a_full_queue_gets_429_and_says_when_to_come_back(tight: ServerUnderTest) -> None:
    url = f"http://{tight.http_address}/v1/models/slow:predict"
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: ask(url, slow_body()), range(32)))
    statuses = {reply.status for reply in replies}
    assert statuses == {200, 429}
    for reply in replies:
        if reply.status == 429:
            assert "queue" in reply.json()["error"]
            assert int(reply.headers["retry-after"]) >= 1
        else:
            assert reply.json()["outputs"]["score"] == [float(at) for at in range(64)]


def test_a_timeout_that_passes_gets_504(tight: ServerUnderTest) -> None:
    url = f"http://{tight.http_address}/v1/models/slow:predict"
    reply = ask(f"{url}?timeout_ms=1", slow_body())
    assert reply.status == 504
    assert "deadline" in reply.json()["error"]
    for wrong in ("-1", "soon", "1.5", ""):
        assert ask(f"{url}?timeout_ms={wrong}", slow_body()).status == 400


def test_a_server_that_drains_answers_what_it_took_and_nothing_else(slow: Exported, tmp_path: Path) -> None:
    with running(slow.path, "--http-port", "0", "--max-batch-rows", "64", folder=tmp_path) as server:
        url = f"http://{server.http_address}/v1/models/slow:predict"
        kept = http.client.HTTPConnection(server.http_address, timeout=120)
        kept.request("GET", "/v2/health/ready")
        assert kept.getresponse().read() == b'{"ready":true}'
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(ask, url, slow_body()) for _ in range(16)]
            while server.total("recsys_requests_accepted_total") < 16:
                pass
            server.signal(signal.SIGTERM)
            late, status, text = -1, 200, ""
            while status == 200:
                late += 1
                status, text = _once_more(kept)
            code, stopped = server.finish()
            replies = [one.result() for one in asked]
        kept.close()
    assert [reply.status for reply in replies] == [200] * 16
    assert (code, stopped["ok"], stopped["accepted"]) == (0, 16 + late, 16 + late)
    assert (status, "stopping" in text) in ((503, True), (0, False))


def _once_more(connection: http.client.HTTPConnection) -> tuple[int, str]:
    """The status of a further request on a connection that is there; 0 where it was closed."""
    try:
        if connection.sock is None:
            return 0, ""
        connection.request("POST", "/v1/models/slow:predict", json.dumps(slow_body()))
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (ConnectionError, http.client.RemoteDisconnected):
        return 0, ""


def asked_twice(server: ServerUnderTest, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
    """Compare the usual answer with that to an address with a parameter, which the server reads in another way."""
    host, _, port = server.http_address.rpartition(":")
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    replies = []
    for address in (path, f"{path}?timeout_ms=60000"):
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", address, data, headers or {})
        response = connection.getresponse()
        replies.append((response.status, response.getheader("Content-Type"), response.read()))
        connection.close()
    assert replies[0] == replies[1]


def test_both_ways_of_reading_give_the_same_bytes(server: ServerUnderTest, small: Exported) -> None:
    sample = small.sample(5, seed=5)
    for more in ({}, {"id": "mine"}, {"id": "grün ☃"}, {"parameters": {"binary_data_output": True}}):
        asked_twice(server, INFER, tensor_body(small.signature, sample, **more))
    asked_twice(server, PREDICT, plain_body(sample))
    data, headers = binary_body(small.signature, sample)
    asked_twice(server, INFER, data, headers)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"dense":{"price":[[1]]},"dense":{}}',
        b'{"dense":{"price":[[NaN]]}}',
        b'{"dense":{"price":[[1e39]]}}',
        b'{"dense":{"price":[[1e400]]}}',
        b'{"sparse":{"user":[[1.0]]}}',
        b'{"sparse":{"user":[[9223372036854775808]]}}',
        b'{"sparse":{"user":[[-1]]}}',
        b'{"sparse":{"user":["\\ud800"]}}',
        b'{"sparse":{"user":[null]}}',
        b'{"sparse":{"user":[01]}}',
        b'{"other":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff\xfe{}",
        b'{"sparse":{"user":["\xff"]}}',
    ],
)
def test_both_ways_of_reading_refuse_the_same(server: ServerUnderTest, body: bytes) -> None:
    for path in (INFER, PREDICT, PREDICT.replace("small", "other")):
        asked_twice(server, path, body)


def test_requests_of_one_connection_are_answered_in_order(server: ServerUnderTest, small: Exported) -> None:
    body = json.dumps(plain_body(small.sample(2))).encode()
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    predict = b"POST " + PREDICT.encode() + b" HTTP/1.1\r\nHost: a\r\n" + length + body
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    last = predict.replace(b"Host", b"Connection: close\r\nHost", 1)
    host, _, port = server.http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        # In pieces that end anywhere, several requests ahead of their answers.
        for request in (predict, predict, predict, live, last):
            for at in range(0, len(request), 97):
                connection.sendall(request[at : at + 97])
        data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 5
    assert data.count(b'"outputs"') == 4
    assert data.index(b'"live"') > data.rindex(b'"outputs"', 0, data.rindex(b'"outputs"'))
