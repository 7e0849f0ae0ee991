"""The HTTP sender of the Python client, against answers byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from serve.bench.load.measured import Failure
from serve.bench.load.plan import Target
from serve.bench.load.requests import Prepared
from serve.bench.load.senders import HttpSender

_REQUEST = Prepared(data=b"{}", num_rows=1)


def _sent(data: bytes) -> Failure | None:
    """Send a request to a server that answers with these bytes and closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the connection that sees whether a server answers
            head = b""
        if head:
            assert head.startswith(b"POST /p HTTP/1.1\r\n")
            assert await reader.readexactly(2) == b"{}"
            writer.write(data)
        writer.close()

    async def scenario() -> Failure | None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            sender = HttpSender(Target(address=address, protocol="rest"), "/p")
            await sender.open()
            try:
                return await sender.send(_REQUEST)
            finally:
                await sender.close()

    return asyncio.run(scenario())


def test_answers_over_http_are_told_from_failures() -> None:
    assert _sent(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi") is None
    assert _sent(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nlate") == Failure("HTTP_503", "late")
    chunked = b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4\r\n all\r\n0\r\n\r\n"
    assert _sent(chunked) == Failure("HTTP_400", "hi all")


@pytest.mark.parametrize(
    "data", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]
)
def test_what_is_no_http_is_a_failure(data: bytes) -> None:
    failed = _sent(data)
    assert failed is not None
    assert failed.code == "UNAVAILABLE"
