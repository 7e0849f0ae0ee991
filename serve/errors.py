"""Errors of requests in the server, and their gRPC status codes.

Messages are sent to clients: they name field, got and expected, and never contain a path, a traceback or an
address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc

#: Metadata behind an answer: the milliseconds after which a client may retry. gRPC's clients obey it.
PUSHBACK = "grpc-retry-pushback-ms"
# Maximum characters and names from clients' data in an error text.
MAX_CHARS = 64
_MAX_NAMES = 8


class RequestError(ValueError):
    """The request contradicts the model's signature or the wire's format."""


class RequestTooLargeError(RequestError):
    """The request has more rows or IDs than one request may have; sending it again will not help."""


class BodyTooLargeError(RequestError):
    """The body of the HTTP request is larger than allowed."""


class ModelNotFoundError(RequestError):
    """The request names a model or a version that this server does not hold."""


class NotReadyError(RuntimeError):
    """The server holds the model, but no version of it is loaded and warm yet."""


class ModelChangeError(RuntimeError):
    """A version, a routing or a delta cannot be applied; the versions that served before go on serving."""


class UnusableModelsError(RuntimeError):
    """No model could be made ready, each because of its files or settings."""


class EngineError(RuntimeError):
    """The requested engine is not available; the message says why and what to do."""


class NotAllowedError(RuntimeError):
    """Not permitted on this port."""


class QueueFullError(RuntimeError):
    """The queue is full; the client should wait and retry.

    Args:
        text: names what is full.
        retry_after_ms: time to wait, estimated from the queue's drain rate.
    """

    def __init__(self, text: str, retry_after_ms: int = 1) -> None:
        super().__init__(text)
        self.retry_after_ms = retry_after_ms


class DrainingError(RuntimeError):
    """The server is stopping and accepts no further requests."""


class DeadlineExpiredError(RuntimeError):
    """The request's deadline passed while it waited; it was not computed."""


class ExecutionError(RuntimeError):
    """The model failed on the request; the log says why."""


STATUS_CODES: dict[type[Exception], grpc.StatusCode] = {
    RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    RequestTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    BodyTooLargeError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelNotFoundError: grpc.StatusCode.NOT_FOUND,
    NotReadyError: grpc.StatusCode.UNAVAILABLE,
    ModelChangeError: grpc.StatusCode.FAILED_PRECONDITION,
    NotAllowedError: grpc.StatusCode.PERMISSION_DENIED,
    QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DrainingError: grpc.StatusCode.UNAVAILABLE,
    DeadlineExpiredError: grpc.StatusCode.DEADLINE_EXCEEDED,
    ExecutionError: grpc.StatusCode.INTERNAL,
}
# The corresponding HTTP codes (RFC 9110, RFC 6585).
HTTP_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# The outcome that a status code is counted as (serve.metrics.counters.OUTCOMES).
OUTCOME_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "rejected",
    grpc.StatusCode.DEADLINE_EXCEEDED: "expired",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
    grpc.StatusCode.INTERNAL: "failed",
}


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status code and text that a client gets for ``error``.

    An error that is not in the table is an internal one: its text may contain anything and is only logged.
    """
    code = STATUS_CODES.get(type(error))
    if code is None:
        return grpc.StatusCode.INTERNAL, "the server failed on this request; its log says why"
    return code, str(error)


def short(value: Any) -> str:
    r"""Return a value's repr: truncated if long, only the type for objects and lists.

    Bytes are shown as the UTF-8 text that they should be; those that are not UTF-8 as ``\x..``.
    """
    if isinstance(value, bytes):
        # Decoding makes a surrogate of each byte that is not UTF-8; a backslash of the text itself is doubled.
        text = short(value[: MAX_CHARS * 4 + 4].decode(errors="surrogateescape"))
        return re.sub(r"(\\\\)|\\udc([89a-f][0-9a-f])", lambda found: found[1] or f"\\x{found[2]}", text)
    if isinstance(value, str):
        return repr(value if len(value) <= MAX_CHARS else value[: MAX_CHARS - 3] + "...")
    text = repr(value) if isinstance(value, (int, float)) else type(value).__name__
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 3] + "..."


def listed(names: Sequence[str]) -> str:
    """Return a list of names as text: the first ones, and the number of the others."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(map(short, names[:_MAX_NAMES])) or "none") + more
