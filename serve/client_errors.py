"""What a call to a server can fail with, by the server's status code."""

from __future__ import annotations

import grpc


class PredictError(RuntimeError):
    """A call failed.

    Attributes:
        code: the gRPC status code.
        message: the server's own text, or the transport's where no server answered.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class InvalidRequestError(PredictError):
    """The server refused the request; its message names field, got and expected."""


class UnknownModelError(PredictError):
    """The server holds no model of that name."""


class OverloadedError(PredictError):
    """The server's queue is full, or the message is larger than it takes."""


class DeadlineError(PredictError):
    """There was no answer in time."""


class UnavailableError(PredictError):
    """There is no server at that address, or it is stopping."""


class ServerError(PredictError):
    """The server failed, or is not one of ours."""


_CLASSES: dict[grpc.StatusCode, type[PredictError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    # What gRPC tells a call that had reached a stopping server's socket and not yet its handler: it was not computed.
    grpc.StatusCode.CANCELLED: UnavailableError,
}


def predict_error(error: grpc.RpcError) -> PredictError:
    """The named error for a failed call."""
    code = error.code()
    return _CLASSES.get(code, ServerError)(code, error.details() or "no details")
