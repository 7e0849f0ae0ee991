"""Bodies that are wrong, and what the server says of each."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.serve.live import LiveServer
from tests.support.serve.messages.rest_calls import (
    INFER,
    PREDICT,
    ask,
    binary_body,
    plain_body,
    sample_of,
    tensor_body,
)

pytest.importorskip("aiohttp", reason="HTTP is in the extra 'rest'")

#: What a client of gRPC sends first.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)


def _input(body: dict[str, Any], at: int, **values: Any) -> None:
    body["inputs"][at].update(values)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "inputs-no-list": (lambda b: b.update(inputs={}), "body['inputs']: got an object, expected a list"),
    "input-no-object": (lambda b: b["inputs"].append(3), "inputs[11]: got a whole number, expected an object"),
    "no-inputs": (lambda b: b.pop("inputs"), "inputs: missing 'context'"),
    "no-name": (lambda b: b["inputs"][0].pop("name"), "inputs: got an unknown tensor '', expected 'context'"),
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
    "null-data": (lambda b: _input(b, 0, data=[None] * 6), "got nan in row 0, column 0, expected finite numbers"),
    "flag-ids": (
        lambda b: _input(b, 2, data=[True], shape=[1]),
        "inputs['user.values'].data: got true or false, expected whole numbers alone",
    ),
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
    "number-texts": (
        lambda b: _input(b, 2, datatype="BYTES", data=[1], shape=[1]),
        "inputs['user.values'].data: got a whole number, expected texts alone",
    ),
    "mixed-texts": (
        lambda b: _input(b, 2, datatype="BYTES", data=["1", None], shape=[2]),
        "inputs['user.values'].data: got null, expected texts alone",
    ),
    "texts-as-int64": (
        lambda b: _input(b, 2, data=["1"], shape=[1]),
        "inputs['user.values'].data: got a text, expected whole numbers alone",
    ),
    "surrogate-text": (
        lambda b: _input(b, 2, datatype="BYTES", data=["1", "\ud800"], shape=[2]),
        "inputs['user.values'].data: got half a surrogate pair at position 1, expected text in UTF-8",
    ),
    "fewer-texts": (
        lambda b: _input(b, 2, datatype="BYTES", data=["1"], shape=[2]),
        "inputs['user.values']: got 1 texts, expected 2 (BYTES [2])",
    ),
    "no-decimal": (
        lambda b: (_input(b, 2, datatype="BYTES", data=["1x"], shape=[1]), _input(b, 3, data=[1, 0])),
        "sparse['user'].strings: got '1x' at position 0, expected a decimal int64",
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
    "one-flat-row": (
        lambda b: b["dense"].update(context=[1, 2, 3]),
        "dense['context']: got one list of 3 numbers, expected one of 3 for each row: [[…], …]",
    ),
    "rows": (lambda b: b["dense"].update(price=[1, 2, 3]), "dense['price']: got 3 rows, expected 2"),
    "text": (
        lambda b: b["sparse"].update(user=["a", "b"]),
        "sparse['user'].strings: got 'a' at position 0, expected a decimal int64: the model has no hash for texts",
    ),
    "number-and-text": (
        lambda b: b["sparse"].update(user=[[1, "2"], []]),
        "sparse['user']: got a text, expected whole numbers alone",
    ),
    "text-and-number": (
        lambda b: b["sparse"].update(user=[["2"], [1]]),
        "sparse['user']: got a whole number, expected texts alone",
    ),
    "null": (
        lambda b: b["sparse"].update(user=[None, 1]),
        "sparse['user']: got null, expected IDs or texts; send [] for no value",
    ),
    "null-after-text": (
        lambda b: b["sparse"].update(user=[["1", None], []]),
        "sparse['user']: got null, expected IDs or texts; send [] for no value",
    ),
    "surrogate": (
        lambda b: b["sparse"].update(user=["\ud800", "1"]),
        "sparse['user']: got half a surrogate pair at position 0, expected text in UTF-8",
    ),
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
    ("sent", "text"),
    [
        pytest.param(
            PREFACE, "got HTTP/2, as gRPC speaks it, expected HTTP/1.1; gRPC has its own port", id="grpc"
        ),
        pytest.param(b"GET / HTTP/1.1\r\nbroken\r\n\r\n", "got no HTTP/1.1", id="no-http"),
    ],
)
def test_a_client_that_speaks_no_http_is_one_line_in_the_log(
    rest: LiveServer, caplog: pytest.LogCaptureFixture, sent: bytes, text: str
) -> None:
    assert rest.server.http_port is not None
    with (
        caplog.at_level(logging.INFO),
        socket.create_connection(("127.0.0.1", rest.server.http_port), timeout=60) as connection,
    ):
        connection.sendall(sent)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.0 400 Bad Request")
    (record,) = caplog.records
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert record.getMessage() == f"REST from 127.0.0.1: refused: {text}"
