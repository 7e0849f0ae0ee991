"""What the gRPC adapters of all protocols share.

Requests reach the handlers as bytes: what cannot be parsed is then refused like any other wrong request, where gRPC
itself would report an internal error.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from serve.errors import STATUS_CODES, QueueFullError, RequestError, status_of
from serve.gateway import Gateway, Incoming

MessageT = TypeVar("MessageT", bound=Message)
# What answers a message.
Answer = Callable[[Any], Awaitable[Message]]
_log = logging.getLogger("serve")
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


def unary_handlers(
    methods: Mapping[str, tuple[type[Message], Answer]], service: str
) -> dict[str, grpc.RpcMethodHandler]:
    """Handlers without (de)serializers, of methods from message to message; their errors end calls with their status.

    Args:
        methods: by name: what each takes, and what answers it.
        service: for the log, where a method fails in a way that is not the caller's doing.
    """

    async def call(kind: type[Message], method: Answer, data: bytes, context: Any) -> bytes:
        try:
            response: bytes = (await method(parse(kind, data))).SerializeToString()
        except Exception as error:
            if type(error) not in STATUS_CODES:
                _log.error("a call of %s failed", service, exc_info=error)
            await abort(context, error)
            raise AssertionError("abort returned") from None
        return response

    return {
        name: grpc.unary_unary_rpc_method_handler(functools.partial(call, kind, method))
        for name, (kind, method) in methods.items()
    }


async def respond(gateway: Gateway, incoming: Incoming, context: Any) -> bytes:
    """Answer one call through the gateway; its errors end the call."""
    incoming.remaining_s = context.time_remaining()
    try:
        return await gateway.predict(incoming)
    except Exception as error:
        await abort(context, error)
        raise AssertionError("abort returned") from None


def trace_parent(gateway: Gateway, context: Any) -> str:
    """The call's ``traceparent`` header; nothing where it has none, or nobody wants it."""
    if not gateway.reads_trace:
        return ""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent" and isinstance(value, str):
            return value
    return ""
