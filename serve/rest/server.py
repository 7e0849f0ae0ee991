"""The HTTP server: Open Inference's REST form, and plain JSON for use with curl. In the server's event loop.

Requests are converted to gRPC messages, which the engine answers. JSON is parsed and written on the event loop. The
native engine answers usual predictions itself where there is no TLS (``Engine.listen_http``), and hands all other
connections over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from serve.config.settings import ConnectionLimits, ServerConfig
from serve.engine.interface import Handed, Servable, Submitted
from serve.errors import (
    BodyTooLargeError,
    DeadlineExpiredError,
    DrainingError,
    NotReadyError,
    QueueFullError,
    RequestError,
    is_foreseen,
    kind_of,
    status_of,
)
from serve.net.sockets import BoundedListener, is_loopback, listening
from serve.net.tls import ssl_context
from serve.protocols.calls import checked_request_id
from serve.protocols.open_inference import Parameters
from serve.quality.labels import items_of_json
from serve.rest.pages.guard import refuse_other_sites
from serve.rest.plain_json import read_plain, write_plain
from serve.rest.query import query_number, whole_number
from serve.rest.row_json import is_rows, plain_of_rows, write_rows
from serve.rest.tensors_json import HEADER_LENGTH, Inference, entry, parse_json, plain, write_json
from serve.rpc.backend import Backend
from serve.rpc.feedback import take_labels
from serve.rpc.open_inference import (
    loaded_versions,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from serve.threads import in_thread
from serve.wire import predict_pb2 as wire

_log = logging.getLogger("serve")
_MS_PER_S = 1e3
_TIMEOUT = "timeout_ms"
_LIVE = "/v2/health/live"
_ADDRESSES = (
    "expected POST /v1/models/MODEL:predict, /invocations or /v2/models/MODEL/infer, GET /v2/models/MODEL, "
    "POST /v2/repository/index (the models) or GET /v2/health/ready"
)
# Idle time of connections; aiohttp's default is an hour.
_KEEPALIVE_S = 75.0
# Timeout for receiving a body.
_BODY_S = 30.0
_PROTOCOL = "rest"
_JSON = "application/json"
_BINARY = "application/octet-stream"
# Once the engine is idle, only answers remain to be sent.
_SHUTDOWN_S = 1.0
# RFC 9110: x-gzip means gzip, and deflate is zlib's format.
ENCODINGS = ("gzip", "x-gzip", "deflate")
_GZIP_MAGIC = b"\x1f\x8b"
# Tools write members of 64 KiB and more; each costs microseconds.
_MOST_MEMBERS = 10_000
# What is decompressed at a time.
_SHORTEST_PIECE, _LONGEST_PIECE = 1 << 10, 1 << 20
# zlib's flag for detecting the format from the header.
_EITHER = zlib.MAX_WBITS | 32
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _OneLine(logging.Filter):
    """Makes one line of aiohttp's traceback of a connection that sent no HTTP/1.1."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change such records; keep all."""
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno == logging.ERROR and isinstance(error, HttpProcessingError):
            is_http_2 = "PRI/Upgrade" in error.message
            got = "got HTTP/2, as gRPC speaks it, expected HTTP/1.1; gRPC has its own port"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg = f"REST from %s: refused: {got if is_http_2 else 'got no HTTP/1.1'}"
            record.exc_info = record.exc_text = None
        return True


_http_log = logging.getLogger("serve.rest")
_http_log.addFilter(_OneLine())


class RestServer:
    """Listens between ``start`` and ``stop``; both belong to the server's event loop.

    Args:
        backend: the server.
        config: its settings, with an ``http_port``; the limits are those of a gRPC message and port.

    Raises:
        SecurityError: the TLS files cannot be used.
    """

    def __init__(self, backend: Backend, config: ServerConfig) -> None:
        self.port = config.http_port or 0
        self._host = config.tcp_host
        self._engine = backend.engine
        self._max_connections = config.connections.max_connections
        self._max_json_bytes = config.connections.max_json_bytes
        self._listens: socket.socket | None = None
        self._tasks: set[asyncio.Future[None]] = set()
        self._tls = None if config.tls is None else ssl_context(config.tls)
        middlewares = [self._refuse_when_draining, _errors_as_json]
        is_local = is_loopback(config.tcp_host)
        has_pages = is_local if config.rest.pages is None else config.rest.pages
        application = _application(
            backend, config.connections, [*middlewares, refuse_other_sites] if has_pages else middlewares
        )
        if has_pages:
            # Its templates take tens of milliseconds to load.
            from serve.rest.pages.handlers import Pages

            application.add_routes(Pages(backend, config.connections, is_local=is_local).routes())
        # A disconnect cancels the request.
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_http_log,
            # aiohttp would decompress bodies in the event loop.
            auto_decompress=False,
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S,
            shutdown_timeout=_SHUTDOWN_S,
        )

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken or the address is not this machine's.
        """
        await self._runner.setup()
        try:
            listens = listening(self._host, self.port)
            listens.setblocking(False)
            if self._tls is None and self._engine.listen_http(listens, self._max_json_bytes, self._serve):
                self._listens = listens
                self.port = listens.getsockname()[1]
                return
            listener = BoundedListener(listens, self._max_connections)
            await web.SockSite(self._runner, listener, ssl_context=self._tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"cannot serve HTTP on port {self.port}: {error.strerror}") from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and its remaining connections; idempotent."""
        if self._listens is not None:
            self._listens.close()
        for task in [*self._tasks]:
            task.cancel()
        await self._runner.cleanup()

    def _serve(self, handed: Handed) -> None:
        """Serve a connection of which the engine has read a part."""
        task = asyncio.ensure_future(self._continue(handed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _continue(self, handed: Handed) -> None:
        server = self._runner.server
        if server is None:
            handed.socket.close()
            return
        try:
            handed.socket.setblocking(False)
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(server, handed.socket)
        except (OSError, asyncio.CancelledError):
            handed.socket.close()
            return
        # Before the event loop reads from the socket: it does so in its next round at the earliest.
        protocol.data_received(handed.received)

    @web.middleware
    async def _refuse_when_draining(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._engine.is_draining and request.path != _LIVE:
            response: web.StreamResponse = _error(
                503, "the server is stopping; send the request to another one"
            )
        else:
            response = await handler(request)
        if self._engine.is_draining:
            response.force_close()
        return response


def _application(
    backend: Backend, limits: ConnectionLimits, middlewares: Sequence[Middleware]
) -> web.Application:
    application = web.Application(client_max_size=limits.max_message_bytes, middlewares=middlewares)
    models, inference = _Models(backend, limits.max_json_bytes), _Inference(backend, limits.max_json_bytes)
    application.add_routes(
        [
            web.get("/v2", models.server),
            web.get(_LIVE, models.live),
            web.get("/v2/health/ready", models.ready),
            web.post("/v2/repository/index", models.index),
            web.post("/v1/feedback", models.feedback),
        ]
    )
    # Other HTTP methods get 405.
    for at in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        application.add_routes(
            [
                web.get(at, models.metadata),
                web.get(f"{at}/ready", models.model_ready),
                web.get(f"{at}/config", models.config),
                web.get(f"{at}/stats", models.statistics),
                web.post(f"{at}/infer", inference.infer),
            ]
        )
    application.router.add_get("/v2/models/stats", models.statistics)
    # MLflow's and SageMaker's addresses of the only model.
    application.router.add_get("/ping", models.ready)
    for at in ("/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict", "/invocations"):
        application.router.add_post(at, inference.predict)
    return application


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        hint = f"; {_ADDRESSES}" if isinstance(error, web.HTTPNotFound) else ""
        return _error(error.status, f"{request.method} {request.path[:128]}: {error.reason}{hint}", allow)
    except Exception as error:
        if not is_foreseen(error):
            _log.error("an HTTP request failed", exc_info=error)
        headers = {}
        if isinstance(error, QueueFullError):
            headers["Retry-After"] = str(math.ceil(error.retry_after_ms / _MS_PER_S))  # whole seconds
        return _error(kind_of(error).http_status, status_of(error)[1], headers)


class _Models:
    """Handlers for queries about the server and its models."""

    def __init__(self, backend: Backend, max_json_bytes: int) -> None:
        self._backend = backend
        self._max_json_bytes = max_json_bytes

    async def server(self, _: web.Request) -> web.Response:
        return _response(plain(server_metadata()))

    async def live(self, _: web.Request) -> web.Response:
        return _response({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        ready = self._backend.manager.is_ready()
        return _response({"ready": ready}, 200 if ready else 503)

    async def index(self, request: web.Request) -> web.Response:
        data = await _body(request)
        body = parse_json(data, self._max_json_bytes) if data else {}
        index = repository_index(self._backend.manager.statuses(), entry(body, "ready", bool, "body"))
        return _response(plain(index)["models"])

    async def feedback(self, request: web.Request) -> web.Response:
        items = items_of_json(parse_json(await _body(request), self._max_json_bytes))
        return _response(take_labels(self._backend, items, "rest").to_json())

    async def metadata(self, request: web.Request) -> web.Response:
        servable = self._backend.servable(*_named(request))
        metadata = plain(model_metadata(servable, loaded_versions(self._backend, servable.info.name)))
        return _response({**metadata, "parameters": {"digest": servable.info.digest}})

    async def model_ready(self, request: web.Request) -> web.Response:
        model, version = _named(request)
        try:
            self._backend.servable(model, version)
        except NotReadyError:
            return _response({"name": model, "ready": False}, 503)
        return _response({"name": model, "ready": True})

    async def config(self, request: web.Request) -> web.Response:
        return _response(plain(model_config(self._backend.servable(*_named(request)))))

    async def statistics(self, request: web.Request) -> web.Response:
        return _response(plain(model_statistics(self._backend, *_named(request))))


class _Inference:
    """Handlers for predictions."""

    def __init__(self, backend: Backend, max_json_bytes: int) -> None:
        self._backend = backend
        self._max_json_bytes = max_json_bytes

    async def infer(self, request: web.Request) -> web.Response:
        """Answer a request with tensors."""
        with self._counted():
            timeout_s = _timeout_s(request)
            data = await _body(request)
            inference = Inference(data, _header_length(request), self._max_json_bytes)
            model, version = _named(request)
            self._check_accepts()
            servable = self._backend.servable(model, version)
        with self._counted(servable):
            message = inference.message(model, version)
        remaining_s = inference.parameters.remaining_s(timeout_s)
        body = inference.body(await self._answer(request, message, "kserve", remaining_s))
        if len(body.data) == body.num_json_bytes:
            return web.Response(body=body.data, content_type=_JSON)
        headers = {HEADER_LENGTH: str(body.num_json_bytes)}
        return web.Response(body=body.data, content_type=_BINARY, headers=headers)

    async def predict(self, request: web.Request) -> web.Response:
        """Answer a request in plain JSON: lists per input, or objects per row."""
        with self._counted():
            timeout_s = _timeout_s(request)
            data = await _body(request)
            body = parse_json(data, self._max_json_bytes)
            request_id = checked_request_id(entry(body, "id", str, "body"), "id")
            priority = Parameters.read({"priority": body.get("priority", 0)}).priority
            model, version = _named(request)
            self._check_accepts()
            # Drawn here, because the version's signature determines how to read the lists. Where a key decides, the
            # engine draws, and the lists are read for the version that serves.
            servable = self._backend.servable(model, version)
            draws = not version and not self._backend.is_keyed(model)
        with self._counted(servable):
            signature, limits = servable.signature, servable.settings.limits
            by_row = is_rows(body)
            message = read_plain(
                plain_of_rows(body, signature, limits) if by_row else body, signature, limits
            )
        head = wire.PredictRequest(
            model=servable.info.name,
            version=servable.info.version if draws else version,
            request_id=request_id,
            priority=wire.Priority.Name(priority.value),
        )
        message.MergeFrom(head)
        answer = await self._answer(
            request, message.SerializeToString(), "recsys", timeout_s, drew_version=draws
        )
        return web.Response(body=(write_rows if by_row else write_plain)(answer), content_type=_JSON)

    async def _answer(
        self,
        request: web.Request,
        message: bytes,
        form: str,
        remaining_s: float | None,
        *,
        drew_version: bool = False,
    ) -> bytes:
        """Answer as over gRPC, where deadlines end calls automatically."""
        submitted = Submitted(
            message=message,
            form=form,
            protocol=_PROTOCOL,
            remaining_s=remaining_s,
            headers=request.headers,
            drew_version=drew_version,
            client=_client(request),
        )
        try:
            async with asyncio.timeout(remaining_s):
                return await self._backend.engine.submit(submitted)
        except TimeoutError:
            raise DeadlineExpiredError("the deadline passed before the answer was there") from None

    def _check_accepts(self) -> None:
        if self._backend.engine.is_draining:
            raise DrainingError("the server is stopping; send the request to another one")

    @contextlib.contextmanager
    def _counted(self, servable: Servable | None = None) -> Iterator[None]:
        """Count requests that are refused before they reach the engine."""
        try:
            yield
        except (RequestError, NotReadyError, DrainingError) as error:
            self._backend.refused(error, _PROTOCOL, servable)
            raise
        except web.HTTPException as error:
            late = isinstance(error, web.HTTPRequestTimeout)
            reported = (DeadlineExpiredError if late else RequestError)(error.reason)
            self._backend.refused(reported, _PROTOCOL, servable)
            raise


def _client(request: web.Request) -> str:
    """Return a name of the request's connection."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    return f"rest:{peer or id(request.protocol)}"


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_S):
            data = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLargeError(f"body: got more bytes than one request may have ({error.text})") from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(reason=f"the body was not there after {_BODY_S:g} s") from None
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding == "identity":
        return data
    if encoding not in ENCODINGS:
        expected = ", ".join(ENCODINGS)
        raise web.HTTPUnsupportedMediaType(
            reason=f"Content-Encoding: got {encoding[:64]!r}, expected none, or one of {expected}"
        )
    return await in_thread(lambda: inflate(data, request.client_max_size), "inflate")


def _named(request: web.Request) -> tuple[str, str]:
    """Return the model and version of the URL."""
    return request.match_info.get("model", ""), request.match_info.get("version", "")


def _timeout_s(request: web.Request) -> float | None:
    """Return the timeout given in the URL, or None."""
    timeout_ms = query_number(request, _TIMEOUT)
    return None if timeout_ms is None else timeout_ms / _MS_PER_S


def _header_length(request: web.Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    return None if text is None else whole_number(HEADER_LENGTH, text)


def _response(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=write_json(content), status=status, content_type=_JSON)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=write_json({"error": text}), status=status, content_type=_JSON, headers=headers)


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Decompress a body. Releases the interpreter's lock, so it can run in a thread.

    Args:
        data: data in one of ``ENCODINGS``.
        max_bytes: limit of the result; at most one byte more is produced.

    Raises:
        BodyTooLargeError: the result is longer.
        RequestError: the data is damaged, incomplete, or followed by more data.
    """
    parts: list[bytes] = []
    num_left, at = max_bytes + 1, 0
    # A gzip file may have several members (RFC 1952, 2.2), as parallel compressors write them.
    for _ in range(_MOST_MEMBERS):
        if parts and data[at : at + len(_GZIP_MAGIC)] != _GZIP_MAGIC:
            raise RequestError(f"body: got {len(data) - at} bytes after the compressed ones")
        decompressor, piece = zlib.decompressobj(_EITHER), _SHORTEST_PIECE
        while not decompressor.eof:
            if at >= len(data):
                raise RequestError(f"body: got {len(data)} compressed bytes that end too early")
            try:
                parts.append(decompressor.decompress(data[at : at + piece], num_left))
            except zlib.error:
                raise RequestError(f"body: got {len(data)} bytes that are neither gzip nor deflate") from None
            num_left -= len(parts[-1])
            if num_left <= 0:
                raise BodyTooLargeError(
                    f"body: got more than {max_bytes} bytes once it was inflated, expected at most so many"
                )
            at = min(at + piece, len(data)) - len(decompressor.unused_data)
            # Small at first: what lies behind the end of a member is read again.
            piece = min(2 * piece, _LONGEST_PIECE)
        if at == len(data):
            return b"".join(parts)
    raise RequestError(f"body: got more than {_MOST_MEMBERS} gzip members, expected at most so many")
