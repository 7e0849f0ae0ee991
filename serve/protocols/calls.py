"""Common code of gRPC methods in Python: parsing, checks of all protocols, statuses, handlers.

Handlers receive requests as bytes, so that unparsable ones are refused like any other invalid request; gRPC
itself would report an internal error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from google.protobuf.message import DecodeError, Message

from serve.config.models import BatchLimits
from serve.errors import (
    PUSHBACK,
    QueueFullError,
    RequestError,
    RequestTooLargeError,
    is_foreseen,
    status_of,
)

MessageT = TypeVar("MessageT", bound=Message)
# From a message to the answer's message.
Method = Callable[[Any], Awaitable[Message]]
# From a message's bytes to the answer's bytes.
BytesMethod = Callable[[bytes], Awaitable[bytes]]
# Bounds the size of log lines.
MAX_REQUEST_ID_BYTES = 128
_log = logging.getLogger("serve")


def parse(kind: type[MessageT], data: bytes) -> MessageT:
    """Parse a message.

    Raises:
        RequestError: ``data`` is not such a message.
    """
    try:
        message: MessageT = kind.FromString(data)
    except DecodeError:
        raise RequestError(f"message: got {len(data)} bytes that are not a {kind.__name__}") from None
    return message


def checked_request_id(text: str, field: str = "request_id") -> str:
    """Return a client's request ID after checking that it may be logged.

    Args:
        text: the ID.
        field: the protocol's field, for the error.

    Raises:
        RequestError: the ID is too long or not text.
    """
    try:
        num_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # JSON can escape characters that UTF-8 cannot encode
        raise RequestError(f"{field}: got half a surrogate pair, expected text in UTF-8") from None
    if num_bytes > MAX_REQUEST_ID_BYTES:
        raise RequestError(f"{field}: got {num_bytes} bytes, expected at most {MAX_REQUEST_ID_BYTES}")
    return text


def check_size(limits: BatchLimits, num_rows: int, num_ids: int, num_bytes: int = 0) -> None:
    """Check a request's size against the limits.

    Raises:
        RequestTooLargeError: the message names the limit, its value and the request's.
    """
    for what, got, most in (
        ("num_rows: got {}", num_rows, limits.max_request_rows),
        ("sparse: got {} IDs", num_ids, limits.max_request_ids),
        ("message: got {} bytes", num_bytes, limits.max_queue_bytes),
    ):
        if got > most:
            raise RequestTooLargeError(
                f"{what.format(got)}, expected at most {most} in one request; split it"
            )


def headers_of(context: Any) -> dict[str, str]:
    """Return a call's metadata that are text, under lower-case names; of several values the first."""
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in reversed(metadata) if isinstance(value, str)}


def bytes_method(kind: type[Message], method: Method, service: str) -> BytesMethod:
    """Return a method from bytes to bytes for one from message to message.

    Args:
        kind: type of the request.
        method: the method.
        service: the service's name, for the log of internal errors.
    """

    async def answer(data: bytes) -> bytes:
        try:
            response: bytes = (await method(parse(kind, data))).SerializeToString()
        except Exception as error:
            if not is_foreseen(error):
                _log.error("a call of %s failed", service, exc_info=error)
            raise
        return response

    return answer


async def abort(context: Any, error: Exception) -> NoReturn:
    """End a call of ``grpc.aio`` with the status of ``error``."""
    if isinstance(error, QueueFullError):
        context.set_trailing_metadata(((PUSHBACK, str(error.retry_after_ms)),))
    await context.abort(*status_of(error))
    raise AssertionError("abort returned")
