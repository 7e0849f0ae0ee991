"""What all Python answers of gRPC calls share: parsing, statuses, handlers.

Requests reach the handlers as bytes: what cannot be parsed is then refused like any other wrong request, where gRPC
itself would report an internal error.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from google.protobuf.message import DecodeError, Message

from serve.errors import STATUS_CODES, QueueFullError, RequestError, status_of

MessageT = TypeVar("MessageT", bound=Message)
# From a message to the answer's.
Method = Callable[[Any], Awaitable[Message]]
# From a message's bytes to the answer's.
BytesMethod = Callable[[bytes], Awaitable[bytes]]
# Longer request IDs would only serve to fill the log.
MAX_REQUEST_ID_BYTES = 128
# gRPC's own name for "not before": its clients' retries obey it.
PUSHBACK = "grpc-retry-pushback-ms"
_log = logging.getLogger("serve")


def parse(kind: type[MessageT], data: bytes) -> MessageT:
    """Parse a message.

    Raises:
        RequestError: ``data`` holds none.
    """
    try:
        message: MessageT = kind.FromString(data)
    except DecodeError:
        raise RequestError(f"message: got {len(data)} bytes that are not a {kind.__name__}") from None
    return message


def checked_request_id(text: str, field: str = "request_id") -> str:
    """Return a client's name for its request, if it may stand in the log.

    Args:
        text: the name.
        field: where the protocol has it.

    Raises:
        RequestError: it is too long, or not text.
    """
    try:
        num_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # JSON can escape what UTF-8 cannot hold
        raise RequestError(f"{field}: got half a surrogate pair, expected text in UTF-8") from None
    if num_bytes > MAX_REQUEST_ID_BYTES:
        raise RequestError(f"{field}: got {num_bytes} bytes, expected at most {MAX_REQUEST_ID_BYTES}")
    return text


def bytes_method(kind: type[Message], method: Method, service: str) -> BytesMethod:
    """Make a method from bytes to bytes of one from message to message.

    Args:
        kind: of the message that it takes.
        method: answers it.
        service: for the log, where the method fails in a way that is not the caller's doing.
    """

    async def answer(data: bytes) -> bytes:
        try:
            response: bytes = (await method(parse(kind, data))).SerializeToString()
        except Exception as error:
            if type(error) not in STATUS_CODES:
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
