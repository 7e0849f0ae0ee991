"""The HTTP client of the Python sender, against answers byte for byte."""

from __future__ import annotations

import asyncio

import pytest

from serve.bench.load.senders import HttpConnections


def _answer(data: bytes, closes: bool) -> tuple[int, bytes]:
    """What the HTTP client makes of an answer."""

    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /p HTTP/1.1\r\n")
        assert await reader.readexactly(2) == b"{}"
        writer.write(data)
        if not closes:
            await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async def scenario() -> tuple[int, bytes]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            connections = HttpConnections(f"127.0.0.1:{port}", "/p")
            try:
                return await connections.post(b"{}")
            finally:
                await connections.close()
                await ended.wait()

    return asyncio.run(scenario())


def test_answers_over_http_are_read_in_every_form() -> None:
    assert _answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", closes=False) == (200, b"hi")
    assert _answer(b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\n", closes=True) == (503, b"")
    chunked = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n4;x=y\r\n all\r\n0\r\nA: b\r\n\r\n"
    )
    assert _answer(chunked, closes=False) == (200, b"hi all")


@pytest.mark.parametrize(
    "data", [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]
)
def test_what_is_no_http_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, EOFError)):
        _answer(data, closes=True)
