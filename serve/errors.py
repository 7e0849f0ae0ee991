"""Errors of requests in the server, and how they are answered and counted.

Messages are sent to clients: they name field, got and expected, and never contain a path, a traceback or an
address.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

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


class ErrorKind(NamedTuple):
    """How one kind of error is answered and counted; subclasses of its class are of the same kind.

    Attributes:
        error: its class.
        name: its name in the native engine (``recsys::KindName``).
        code: the gRPC status code.
        http_status: the HTTP status (RFC 9110, RFC 6585).
        outcome: what a request that ends with it is counted as (``serve.metrics.counters.OUTCOMES``).
    """

    error: type[Exception]
    name: str
    code: grpc.StatusCode
    http_status: int
    outcome: str


#: Of the kinds with one code, the first stands for the code.
ERROR_KINDS = (
    ErrorKind(RequestError, "request", grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid"),
    ErrorKind(RequestTooLargeError, "request_too_large", grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid"),
    ErrorKind(BodyTooLargeError, "body_too_large", grpc.StatusCode.INVALID_ARGUMENT, 413, "invalid"),
    ErrorKind(ModelNotFoundError, "model_not_found", grpc.StatusCode.NOT_FOUND, 404, "not_found"),
    ErrorKind(NotReadyError, "not_ready", grpc.StatusCode.UNAVAILABLE, 503, "unavailable"),
    ErrorKind(ModelChangeError, "model_change", grpc.StatusCode.FAILED_PRECONDITION, 409, "failed"),
    ErrorKind(NotAllowedError, "not_allowed", grpc.StatusCode.PERMISSION_DENIED, 403, "failed"),
    ErrorKind(QueueFullError, "queue_full", grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rejected"),
    ErrorKind(DrainingError, "draining", grpc.StatusCode.UNAVAILABLE, 503, "unavailable"),
    ErrorKind(DeadlineExpiredError, "deadline_expired", grpc.StatusCode.DEADLINE_EXCEEDED, 504, "expired"),
    ErrorKind(ExecutionError, "execution", grpc.StatusCode.INTERNAL, 500, "failed"),
)
# Any other error: its text may contain anything and is only logged.
_UNFORESEEN = ErrorKind(Exception, "internal", grpc.StatusCode.INTERNAL, 500, "failed")
_BY_CLASS = {kind.error: kind for kind in ERROR_KINDS}


def kind_of(error: Exception) -> ErrorKind:
    """Return the kind of an error: that of the nearest class in ``ERROR_KINDS``."""
    found = (_BY_CLASS[cls] for cls in type(error).__mro__ if cls in _BY_CLASS)
    return next(found, _UNFORESEEN)


def is_foreseen(error: Exception) -> bool:
    """Return whether the error has a kind, so that its text is for clients and needs no traceback in the log."""
    return kind_of(error) is not _UNFORESEEN


def status_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status code and text that a client gets for ``error``."""
    text = str(error) if is_foreseen(error) else "the server failed on this request; its log says why"
    return kind_of(error).code, text


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
