"""Requests over HTTP for tests: bodies of every form, and one call at a time."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import numpy as np

from serve.config.settings import ServerConfig
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, random_sample
from tests.support.serve.messages.foreign import binary_of, body_of, tensors
from tests.support.serve.models import SIGNATURE

CONFIG = ServerConfig(port=0, metrics_port=None, http_port=0)
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


def sample_of(rows: int, seed: int = 0) -> Sample:
    return random_sample(SIGNATURE, rows, np.random.default_rng(seed))


def tensor_body(sample: Sample, **more: Any) -> dict[str, Any]:
    return body_of(tensors(SIGNATURE, sample), **more)


def plain_body(sample: Sample) -> dict[str, Any]:
    return {"dense": sample.dense, "sparse": sample.sparse, "weights": sample.weights}


def binary_body(sample: Sample, **more: Any) -> tuple[bytes, dict[str, str]]:
    """As Triton's HTTP client sends it: JSON, then the tensors' bytes."""
    return binary_of(tensors(SIGNATURE, sample), **more)
