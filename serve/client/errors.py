"""Errors of calls to a server, by status code."""

from __future__ import annotations

import re
from typing import Any

import grpc

from serve.errors import PUSHBACK
from serve.wire import predict_pb2 as wire


class PredictError(RuntimeError):
    """A call failed.

    Attributes:
        code: the gRPC status code.
        message: text of the server, or of the transport if no server answered.
        retry_after_ms: time after which the server asks to retry; None if it names none.
        retry_is_unwanted: whether the server asks not to retry (gRPC's convention: a time below 0, or no number).
        num_attempts: attempts that the call made.
    """

    retry_is_unwanted = False
    num_attempts = 1

    def __init__(self, code: grpc.StatusCode, message: str, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms

    def __reduce__(
        self,
    ) -> tuple[type[PredictError], tuple[grpc.StatusCode, str, int | None], dict[str, Any]]:
        # Exceptions are pickled with ``args``, which are not the arguments of this one.
        return type(self), (self.code, self.message, self.retry_after_ms), self.__dict__


class InvalidRequestError(PredictError):
    """The server refused the request; the message names field, got and expected."""


class UnknownModelError(PredictError):
    """The server holds no model of that name."""


class OverloadedError(PredictError):
    """The server's queue is full, or the message is too large."""


class DeadlineError(PredictError):
    """No answer came in time."""


class UnavailableError(PredictError):
    """No server answers at the address, or it is stopping."""


class ServerError(PredictError):
    """The server failed, or does not speak this protocol."""


_CLASSES: dict[grpc.StatusCode, type[PredictError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    # gRPC's code for a call that reached a stopping server's socket but not its handler; it was not computed.
    grpc.StatusCode.CANCELLED: UnavailableError,
}


_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


# gRPC's texts for a connection that was closed at once, as TLS servers do with plain-text clients.
_CLOSED = ("Socket closed", "Connection reset by peer")
_MAY_WANT_TLS = "; the server may want TLS, which this client was not told to speak"


_ADDRESS = re.compile(r"ipv[46]:(\S+?): ")
_HOST = re.compile(r"errors resolving (\S+?):? ")


def _explained(details: str) -> str:
    """Return what to do about a connection that was not made, or gRPC's own text."""
    found = _ADDRESS.search(details)
    if found is not None and "http1.x server" in details:
        return (
            f"{found[1]} speaks HTTP/1, not gRPC: it may be the port of metrics or of REST; expected the port= of the "
            "server's ready line"
        )
    if found is not None and "Connection refused" in details:
        return (
            f"no server listens at {found[1]} (connection refused); start recsys-serve, or give the port= of its ready "
            "line"
        )
    if (host := _HOST.match(details)) is not None:
        return f"the host of {host[1]} cannot be found; expected HOST:PORT of a server"
    return details


def predict_error(error: grpc.RpcError, *, uses_tls: bool = True) -> PredictError:
    """Return the error for a failed call; without TLS the text mentions if that may be the reason."""
    code = error.code()
    message = error.details() or "no details"
    if code is grpc.StatusCode.UNAVAILABLE:
        message = _explained(message)
    if not uses_tls and code is grpc.StatusCode.UNAVAILABLE and any(text in message for text in _CLOSED):
        message += _MAY_WANT_TLS
    pushback = _pushback(error)
    is_time = pushback is not None and pushback.isascii() and pushback.isdecimal()
    made = _CLASSES.get(code, ServerError)(code, message, int(pushback) if pushback and is_time else None)
    made.retry_is_unwanted = pushback is not None and not is_time
    return made


def error_on_stream(error: wire.StreamError) -> PredictError:
    """Return the error for one failed request of a stream."""
    code = _BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN)
    return _CLASSES.get(code, ServerError)(code, error.message, error.retry_after_ms or None)


def _pushback(error: grpc.RpcError) -> str | None:
    return next((str(value) for key, value in error.trailing_metadata() or () if key == PUSHBACK), None)
