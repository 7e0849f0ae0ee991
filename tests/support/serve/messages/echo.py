"""A gRPC server that answers with what it was sent: to test what stands before the handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

METHOD = "/test.Echo/Echo"


class Echo:
    """The handler; ``gate`` holds calls back while it is cleared, ``arrived`` is released by each call."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Semaphore(0)
        self.num_open = 0
        self.most_open = 0

    async def answer(self, data: bytes, context: Any) -> bytes:
        self.arrived.release()
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            await self.gate.wait()
        finally:
            self.num_open -= 1
        return data

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "test.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(self.answer)}
        )


@asynccontextmanager
async def echo_server(
    options: Sequence[tuple[str, int]] = (),
    credentials: grpc.ServerCredentials | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> AsyncIterator[tuple[str, Echo]]:
    """A running server: its address and its handler."""
    echo = Echo()
    server = grpc.aio.server(options=list(options), interceptors=list(interceptors))
    server.add_generic_rpc_handlers((echo.handlers(),))
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", echo
    finally:
        echo.gate.set()
        await server.stop(None)


#: So that two channels to one address do not share a connection.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


async def call(channel: grpc.aio.Channel, data: bytes = b"hello", timeout_s: float = 30) -> bytes:
    """One call."""
    answer: bytes = await channel.unary_unary(METHOD)(data, timeout=timeout_s)
    return answer
