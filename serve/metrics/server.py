"""The HTTP server of the metrics: one thread, in which no connection can block the others.

Clients may open connections and send nothing. So each connection has a few seconds in total for one request
and its answer, and when too many are open the oldest is closed.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from serve.net.sockets import BoundedListener, listening

_MAX_CONNECTIONS = 64
_MAX_REQUEST_BYTES = 16 << 10
_CONNECTION_TIMEOUT_S = 10.0
# As health over gRPC says it.
_SERVING = ("200 OK", b"SERVING\n")
_NOT_SERVING = ("503 Service Unavailable", b"NOT_SERVING\n")
_PATHS = b"the metrics are at /metrics, the server's health at /healthz\n"
_NOT_GRPC = b"this port has the metrics, at /metrics, in HTTP/1.1; gRPC is answered on the server's port\n"


class _HasRegistry(Protocol):
    @property
    def registry(self) -> CollectorRegistry: ...


class MetricsServer:
    """Serves a registry over HTTP at ``/metrics``, and health at ``/healthz``, in a thread of its own.

    Attributes:
        is_serving: whether ``/healthz`` answers 200 and not 503; any thread may set it.

    Args:
        metrics: the metrics to serve.
        host: the address to listen on.
        port: 0 lets the system choose.
        timeout_s: total time of one connection.

    Raises:
        OSError: the port is taken or the address is not this machine's.
    """

    def __init__(
        self, metrics: _HasRegistry, host: str, port: int, *, timeout_s: float = _CONNECTION_TIMEOUT_S
    ) -> None:
        self._registry = metrics.registry
        self.is_serving = False
        self._timeout_s = timeout_s
        # In order of arrival.
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}
        # Its own bound closes the oldest connection, so that scrapes get through.
        listens = BoundedListener(listening(host, port, _MAX_CONNECTIONS), max_connections=0)
        self.port: int = listens.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, sock=listens, limit=_MAX_REQUEST_BYTES)
        )
        self._thread = threading.Thread(target=self._loop.run_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and close all connections; idempotent."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = list(self._open.values())
        for writer in list(self._open):
            self._drop(writer)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MAX_CONNECTIONS:
            self._drop(next(iter(self._open)))
        self._open[writer] = self._loop.create_task(self._serve(reader, writer))

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        # Aborted here, because a task that is cancelled before its first step runs none of its code.
        writer.transport.abort()
        self._open.pop(writer).cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; errors affect only this connection."""
        try:
            async with asyncio.timeout(self._timeout_s):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError):
            pass
        finally:
            # Discard unsent data; this has no effect on a closed transport.
            writer.transport.abort()
            self._open.pop(writer, None)

    def _answer(self, request: bytes) -> bytes:
        lines = request.decode("latin-1").split("\r\n")
        method, _, target = lines[0].partition(" ")
        if method == "PRI":  # HTTP/2's first line (RFC 9113, 3.4)
            return _response("505 HTTP Version Not Supported", _NOT_GRPC)
        path = target.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", b"use GET\n", ("Allow: GET, HEAD",))
        if path == "/metrics":
            headers = {name.strip().lower(): value.strip() for name, _, value in map(_split, lines[1:])}
            encode, content_type = choose_encoder(headers.get("accept", ""))
            body = encode(self._registry)
            answer = _response("200 OK", body, content_type=content_type)
        elif path == "/healthz":
            status, body = _SERVING if self.is_serving else _NOT_SERVING
            answer = _response(status, body)
        else:
            return _response("404 Not Found", _PATHS)
        return answer if method == "GET" else answer[: -len(body)]


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _response(
    status: str, body: bytes, headers: tuple[str, ...] = (), content_type: str = "text/plain; charset=utf-8"
) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
