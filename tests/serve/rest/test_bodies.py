"""Bodies that are compressed, long, or hold more than a request may."""

from __future__ import annotations

import gc
import gzip
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve.config.models import BatchLimits, ModelSettings
from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.errors import BodyTooLargeError, RequestError
from serve.rest.server import inflate
from serve.rest.tensors_json import parse_json
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

CONFIG = ServerConfig(
    port=0,
    metrics_port=None,
    http_port=0,
    connections=ConnectionLimits(max_message_bytes=1 << 16, max_json_bytes=1 << 14),
    defaults=ModelSettings(limits=BatchLimits(max_request_rows=8, max_request_ids=200)),
)


@pytest.fixture(scope="module")
def rest(model: ServedModel) -> Iterator[LiveServer]:
    with LiveServer(model, CONFIG) as made:
        yield made


def members(data: bytes) -> bytes:
    """Several gzip members, empty ones among them."""
    parts = [data[:7], b"", data[7:], b""]
    return b"".join(map(gzip.compress, parts))


ENCODED = [
    pytest.param("gzip", gzip.compress, id="gzip"),
    pytest.param("x-gzip", gzip.compress, id="x-gzip"),
    pytest.param("X-GZIP", members, id="members"),
    pytest.param("deflate", zlib.compress, id="deflate"),
]


@pytest.mark.parametrize(("encoding", "compress"), ENCODED)
def test_compressed_bodies_are_answered_as_others(
    rest: LiveServer, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    data, headers = binary_body(sample_of(3))
    plain = ask(rest, "POST", INFER, data, headers)
    assert plain.status == 200
    compressed = ask(rest, "POST", INFER, compress(data), {**headers, "Content-Encoding": encoding})
    assert (compressed.status, compressed.data) == (200, plain.data)


def test_a_body_that_inflates_to_too_much_gets_413(rest: LiveServer) -> None:
    data = gzip.compress(bytes(1 << 15)) + gzip.compress(bytes((1 << 15) + 1))
    reply = ask(rest, "POST", INFER, data, {"Content-Encoding": "gzip"})
    assert reply.status == 413
    assert "got more than 65536 bytes once it was inflated" in reply.json()["error"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        pytest.param(b"{}", "neither gzip nor deflate", id="plain"),
        pytest.param(b"", "that end too early", id="empty"),
        pytest.param(gzip.compress(b"{}")[:-1], "that end too early", id="cut"),
        pytest.param(gzip.compress(b"{}") + b"x", "got 1 bytes after the compressed ones", id="more"),
        pytest.param(
            2 * gzip.compress(b"{}") + b"x", "got 1 bytes after the compressed ones", id="more members"
        ),
        pytest.param(gzip.compress(b"{}") + b"\x1f\x8b", "that end too early", id="half a member"),
        pytest.param(gzip.compress(b"") + b"\x1f\x8b" + bytes(20), "neither gzip nor", id="a damaged member"),
    ],
)
def test_broken_compression_gets_400(rest: LiveServer, data: bytes, text: str) -> None:
    reply = ask(rest, "POST", PREDICT, data, {"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert text in reply.json()["error"]


def test_more_members_than_any_tool_writes_are_refused() -> None:
    with pytest.raises(RequestError, match="got more than 10000 gzip members"):
        inflate(10_001 * gzip.compress(b""), 1 << 20)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
def test_other_encodings_get_415(rest: LiveServer, encoding: str) -> None:
    reply = ask(rest, "POST", PREDICT, plain_body(sample_of(1)), {"Content-Encoding": encoding})
    assert reply.status == 415
    assert "expected none, or one of gzip, x-gzip, deflate" in reply.json()["error"]
    assert len(reply.data) < 300


@pytest.mark.parametrize("path", [INFER, PREDICT, "/v2/repository/index"])
def test_json_beyond_its_limit_gets_413(rest: LiveServer, path: str) -> None:
    reply = ask(rest, "POST", path, b" " * ((1 << 14) + 1))
    assert reply.status == 413
    assert "got 16385 bytes of JSON, expected at most 16384" in reply.json()["error"]


def test_bytes_of_tensors_do_not_count_as_json(rest: LiveServer) -> None:
    data, headers = binary_body(sample_of(1))
    reply = ask(rest, "POST", INFER, data + bytes(1 << 15), headers)
    assert "bytes after the JSON" in reply.json()["error"]


def test_parsing_json_leaves_the_garbage_collector_of_the_process_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switched: list[str] = []
    monkeypatch.setattr(gc, "disable", lambda: switched.append("off"))
    monkeypatch.setattr(gc, "enable", lambda: switched.append("on"))
    text = json.dumps([[]] * 20_000)
    data = f'{{"rows":{text}}}'.encode()
    parse_json(data, len(data))
    with pytest.raises(RequestError):
        parse_json(b"{", 1)
    with pytest.raises(BodyTooLargeError):
        parse_json(b"{}", 1)
    assert not switched


def _context(**parts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda body: body.update(context=parts)


TOO_MUCH: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "sparse-rows": (lambda b: b["sparse"].update(user=[[]] * 9), "num_rows: got 9, expected at most 8"),
    # What is not a number shows only where it is converted.
    "rows-of-text": (lambda b: b["sparse"].update(user=["x"] * 9), "num_rows: got 9, expected at most 8"),
    "dense-rows": (lambda b: b["dense"].update(price=["x"] * 9), "num_rows: got 9, expected at most 8"),
    "weights-rows": (lambda b: b["weights"].update(tags=["x"] * 9), "num_rows: got 9, expected at most 8"),
    "ids": (lambda b: b["sparse"].update(user=[["x"] * 200, []]), "sparse: got 201 IDs, expected at most 200"),
    "context-rows": (_context(sparse={"user": ["x"] * 9}), "num_rows: got 9, expected at most 8"),
    "given-rows": (_context(num_rows=9), "num_rows: got 9, expected at most 8"),
    "unknown": (lambda b: b["dense"].update({"y" * 99: ["x"]}), f"dense: got an unknown input '{'y' * 64}'"),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_is_too_much_is_refused_before_it_is_converted(rest: LiveServer, name: str) -> None:
    spoil, text = TOO_MUCH[name]
    body: dict[str, Any] = {"dense": {}, "sparse": {"tags": [[1], []]}, "weights": {"tags": [[1.0], []]}}
    spoil(body)
    reply = ask(rest, "POST", PREDICT, body)
    assert reply.status == 400
    assert text in reply.json()["error"]


def shared_body() -> dict[str, Any]:
    sample = plain_body(sample_of(1))
    return {"context": sample}


def test_a_request_whose_inputs_are_all_shared_says_how_many_rows_it_has(rest: LiveServer) -> None:
    body = shared_body()
    reply = ask(rest, "POST", PREDICT, body)
    assert reply.status == 400
    assert "context: got every input, expected at least one with a row for each" in reply.json()["error"]
    one = ask(rest, "POST", PREDICT, plain_body(sample_of(1))).json()["outputs"]["score"]
    body["context"]["num_rows"] = 3
    assert ask(rest, "POST", PREDICT, body).json()["outputs"]["score"] == pytest.approx(one * 3)


@pytest.mark.parametrize(
    ("num_rows", "text"),
    [
        pytest.param(-1, "context['num_rows']: got -1, expected 0 or more", id="negative"),
        pytest.param("3", "context['num_rows']: got a text, expected a whole number", id="text"),
        pytest.param(3, "dense['price']: got 2 rows, expected 3, as many as context.num_rows", id="other"),
    ],
)
def test_a_wrong_number_of_rows_gets_400(rest: LiveServer, num_rows: Any, text: str) -> None:
    body = shared_body()
    body["context"]["num_rows"] = num_rows
    body["dense"] = {"price": [[1.0], [2.0]]}
    reply = ask(rest, "POST", PREDICT, body)
    assert reply.status == 400
    assert text in reply.json()["error"]


def test_an_output_that_is_asked_for_twice_gets_400_as_over_grpc(rest: LiveServer) -> None:
    outputs = [{"name": "score"}, {"name": "score", "parameters": {"binary_data": True}}]
    reply = ask(rest, "POST", INFER, tensor_body(sample_of(1), outputs=outputs))
    assert reply.status == 400
    assert "outputs: got an output more than once" in reply.json()["error"]


@pytest.mark.parametrize("part", ["dense", "sparse", "weights"])
def test_texts_of_errors_do_not_grow_with_what_clients_write(rest: LiveServer, part: str) -> None:
    body = plain_body(sample_of(1))
    body[part]["x" * 10_000] = "y" * 1000
    reply = ask(rest, "POST", PREDICT, body)
    assert reply.status == 400
    assert len(reply.data) < 300


def test_what_was_imported_is_out_of_the_collectors_sight() -> None:
    """In a process of its own: what is frozen stays so."""
    code = (
        "import gc; from serve.app.start import freeze_imports; freeze_imports(); "
        "print(gc.get_freeze_count(), len(gc.get_objects()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    num_frozen, num_left = map(int, done.stdout.split())
    assert num_frozen > 10 * num_left
