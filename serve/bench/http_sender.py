"""As much of HTTP/1.1 as a load tool needs: ``POST`` with a body over connections that stay open."""

from __future__ import annotations

import asyncio
import contextlib

_MOST_HEADERS = 64
_MOST_BODY_BYTES = 1 << 30

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpConnections:
    """Idle connections are used again, the last one first; a new one is made where none is idle.

    Args:
        address: ``host:port``.
        path: that is posted to.
    """

    def __init__(self, address: str, path: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._idle: list[_Connection] = []
        self._head = (
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()

    async def open(self) -> None:
        """Make the first connection; raises OSError where nobody answers."""
        self._idle.append(await asyncio.open_connection(self._host.strip("[]"), self._port))

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer.

        Raises:
            OSError: the connection broke, or could not be made.
            EOFError: it ended within the answer.
            ValueError: what came is no answer of HTTP/1.1.
        """
        if not self._idle:
            await self.open()
        reader, writer = self._idle.pop()
        is_open = False
        try:
            writer.write(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
            await writer.drain()
            status, answer, is_open = await _read(reader)
        finally:
            if is_open:
                self._idle.append((reader, writer))
            else:
                await _close(writer)
        return status, answer

    async def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            await _close(self._idle.pop()[1])


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status, body, and whether the connection stays open."""
    words = (await reader.readuntil(b"\r\n")).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("expected an answer of HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
        if len(headers) > _MOST_HEADERS:
            raise ValueError(f"expected at most {_MOST_HEADERS} headers")
    is_open = headers.get(b"connection") != b"close"
    if headers.get(b"transfer-encoding") == b"chunked":
        return int(words[1]), await _read_chunks(reader), is_open
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or int(length) > _MOST_BODY_BYTES:
        raise ValueError("expected a Content-Length of at most 1 GiB")
    return int(words[1]), await reader.readexactly(int(length)), is_open


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    num_bytes = 0
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        num_bytes += size
        if size < 0 or num_bytes > _MOST_BODY_BYTES:
            raise ValueError("expected chunks of at most 1 GiB together")
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # Trailers say nothing here.
    return b"".join(pieces)
