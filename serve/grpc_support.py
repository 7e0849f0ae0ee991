"""What the gRPC adapters of all protocols share.

Requests reach the handlers as bytes: what cannot be parsed is then refused like any other wrong request, where gRPC
itself would report an internal error.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from serve.errors import QueueFullError, RequestError, status_of
from serve.gateway import Gateway, Incoming

MessageT = TypeVar("MessageT", bound=Message)
# gRPC's own name for "not before": its clients' retries obey it.
_PUSHBACK = "grpc-retry-pushback-ms"


def parse(kind: type[MessageT], data: bytes) -> MessageT:
    """The message that ``data`` holds.

    Raises:
        RequestError: it holds none.
    """
    try:
        message: MessageT = kind.FromString(data)
    except DecodeError:
        raise RequestError(f"message: got {len(data)} bytes that are not a {kind.__name__}") from None
    return message


async def abort(context: Any, error: Exception) -> None:
    """End a call with the status of ``error``; raises always."""
    if isinstance(error, QueueFullError):
        context.set_trailing_metadata(((_PUSHBACK, str(error.retry_after_ms)),))
    await context.abort(*status_of(error))


async def respond(gateway: Gateway, incoming: Incoming, context: Any) -> bytes:
    """Answer one call through the gateway; its errors end the call."""
    incoming.remaining_s = context.time_remaining()
    try:
        return await gateway.predict(incoming)
    except Exception as error:
        await abort(context, error)
        raise AssertionError("abort returned") from None


def trace_parent(context: Any) -> str:
    """The call's ``traceparent`` header, or nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""
