"""Calls over HTTP as curl makes them, one connection each, and samples as JSON."""

from __future__ import annotations

import json
import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from recsys.inputs.signature import Signature
from tests.support.serve.messages.cases import Sample
from tests.support.serve.messages.foreign import binary_of, body_of, tensors

_DTYPES = {"FP32": "<f4", "INT64": "<i8", "INT32": "<i4"}
_PATIENCE_S = 120


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    data: bytes

    def json(self) -> Any:
        """The body, which says that it is JSON."""
        assert self.headers["content-type"].startswith("application/json"), self.headers
        return json.loads(self.data)


def ask(
    url: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """One request: GET without a body, POST with one; a body that is not bytes becomes JSON.

    Not by ``urllib``, which asks the server to close the connection: the native engine leaves such requests to Python.
    """
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    at = urlsplit(url)
    path = f"{at.path or '/'}?{at.query}" if at.query else at.path or "/"
    sent = {"Accept": "*/*"}
    if data is not None:
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    made: HTTPConnection
    if at.scheme == "https":
        made = HTTPSConnection(at.hostname or "", at.port, timeout=_PATIENCE_S, context=tls)
    else:
        made = HTTPConnection(at.hostname or "", at.port, timeout=_PATIENCE_S)
    with closing(made) as connection:
        connection.request(method or ("GET" if data is None else "POST"), path, data, sent | (headers or {}))
        response = connection.getresponse()
        return Reply(response.status, _lower(response.headers), response.read())


def _lower(headers: Any) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}


def tensor_body(signature: Signature, sample: Sample, **more: Any) -> dict[str, Any]:
    """A sample as Open Inference has it in JSON."""
    return body_of(tensors(signature, sample), **more)


def binary_body(signature: Signature, sample: Sample, **more: Any) -> tuple[bytes, dict[str, str]]:
    """The same with the tensors' bytes behind the JSON, and the header that says where they begin."""
    return binary_of(tensors(signature, sample), **more)


def plain_body(sample: Sample, **more: Any) -> dict[str, Any]:
    """The same as lists of rows."""
    return {"dense": sample.dense, "sparse": sample.sparse, "weights": sample.weights, **more}


def tensor_outputs(body: dict[str, Any]) -> dict[str, np.ndarray]:
    """The answer to ``tensor_body``."""
    return {
        one["name"]: np.array(one["data"], _DTYPES[one["datatype"]]).reshape(one["shape"])
        for one in body["outputs"]
    }


def plain_outputs(body: dict[str, Any], expected: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The answer to ``plain_body``; an empty list has no shape of its own."""
    return {
        name: np.array(values, expected[name].dtype).reshape(expected[name].shape)
        for name, values in body["outputs"].items()
    }
