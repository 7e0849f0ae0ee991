"""HTTP: Open Inference's REST form, and plain JSON for people with curl. In the event loop of the gRPC port.

Every request takes the same road as those over gRPC. Checking and JSON run on the event loop: what matters for speed
belongs on the gRPC port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from serve.config import ConnectionLimits
from serve.errors import (
    HTTP_STATUS,
    STATUS_CODES,
    BodyTooLargeError,
    DeadlineExpiredError,
    NotReadyError,
    QueueFullError,
    RequestError,
    status_of,
)
from serve.gateway import Gateway, Incoming, checked_request_id
from serve.kserve_messages import model_config, model_metadata, server_metadata
from serve.kserve_repository import loaded_versions, model_statistics, repository_index
from serve.kserve_request import Parameters
from serve.listening import BoundedListener, listening
from serve.rest_encoding import ENCODINGS, inflate
from serve.rest_json import HEADER_LENGTH, entry, parse_json, plain, read_answer, read_inference, write_json
from serve.rest_plain import read_plain, write_plain
from serve.texts import short

_log = logging.getLogger("serve")
_MS_PER_S = 1e3
_TIMEOUT = "timeout_ms"
_MAX_DIGITS = 12
_LIVE = "/v2/health/live"
# Of connections between requests; aiohttp's own is an hour.
_KEEPALIVE_S = 75.0
# A body that is not there by then is not waited for.
_BODY_S = 30.0
_PROTOCOL = "rest"
_JSON = "application/json"
_BINARY = "application/octet-stream"
# After the gateway is idle nothing but answers on their way is left.
_SHUTDOWN_S = 1.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RestServer:
    """Listens between ``start`` and ``stop``; both belong to the gateway's event loop.

    Args:
        gateway: answers.
        host: the address to listen on.
        port: 0 lets the system choose.
        limits: of a request's body, as of a gRPC message; and of connections, beside those of other ports.
        tls: None for plain text.
    """

    def __init__(
        self,
        gateway: Gateway,
        *,
        host: str,
        port: int,
        limits: ConnectionLimits,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = port
        self._host = host
        self._gateway = gateway
        self._max_connections = limits.max_connections
        self._tls = tls
        # A client that hangs up gives its request up.
        self._runner = web.AppRunner(
            _application(gateway, limits, [self._refuse_when_draining, _errors_as_json]),
            access_log=None,
            # aiohttp would inflate bodies in the event loop.
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
            listener = BoundedListener(listening(self._host, self.port), self._max_connections)
            await web.SockSite(self._runner, listener, ssl_context=self._tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"cannot serve HTTP on port {self.port}: {error.strerror}") from error
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and what is left of its connections; idempotent."""
        await self._runner.cleanup()

    @web.middleware
    async def _refuse_when_draining(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self._gateway.is_draining and request.path != _LIVE:
            response: web.StreamResponse = _error(
                503, "the server is stopping; send the request to another one"
            )
        else:
            response = await handler(request)
        if self._gateway.is_draining:
            response.force_close()
        return response


def _application(
    gateway: Gateway, limits: ConnectionLimits, middlewares: Sequence[Middleware]
) -> web.Application:
    application = web.Application(client_max_size=limits.max_message_bytes, middlewares=middlewares)
    models, inference = _Models(gateway, limits.max_json_bytes), _Inference(gateway, limits.max_json_bytes)
    application.add_routes(
        [
            web.get("/v2", models.server),
            web.get(_LIVE, models.live),
            web.get("/v2/health/ready", models.ready),
            web.post("/v2/repository/index", models.index),
        ]
    )
    # Other HTTP methods than these are answered with 405.
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
    for at in ("/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict"):
        application.router.add_post(at, inference.predict)
    return application


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BodyTooLargeError as error:
        return _error(413, str(error))
    except web.HTTPException as error:
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return _error(error.status, f"{request.method} {request.path[:128]}: {error.reason}", allow)
    except Exception as error:
        code, text = status_of(error)
        if type(error) not in STATUS_CODES:
            _log.error("an HTTP request failed", exc_info=error)
        headers = {}
        if isinstance(error, QueueFullError):
            headers["Retry-After"] = str(math.ceil(error.retry_after_ms / _MS_PER_S))  # whole seconds
        return _error(HTTP_STATUS[code], text, headers)


class _Models:
    """What can be asked about the server and its models."""

    def __init__(self, gateway: Gateway, max_json_bytes: int) -> None:
        self._gateway = gateway
        self._max_json_bytes = max_json_bytes

    async def server(self, _: web.Request) -> web.Response:
        return _response(plain(server_metadata()))

    async def live(self, _: web.Request) -> web.Response:
        return _response({"live": True})

    async def ready(self, _: web.Request) -> web.Response:
        ready = self._gateway.manager.is_ready()
        return _response({"ready": ready}, 200 if ready else 503)

    async def index(self, request: web.Request) -> web.Response:
        data = await _body(request)
        body = parse_json(data, self._max_json_bytes) if data else {}
        index = repository_index(self._gateway.manager.statuses(), entry(body, "ready", bool, "body"))
        return _response(plain(index)["models"])

    async def metadata(self, request: web.Request) -> web.Response:
        hosted = self._gateway.hosted(*_named(request))
        return _response(plain(model_metadata(hosted, loaded_versions(self._gateway, hosted.name))))

    async def model_ready(self, request: web.Request) -> web.Response:
        model, version = _named(request)
        try:
            self._gateway.hosted(model, version)
        except NotReadyError:
            return _response({"name": model, "ready": False}, 503)
        return _response({"name": model, "ready": True})

    async def config(self, request: web.Request) -> web.Response:
        return _response(plain(model_config(self._gateway.hosted(*_named(request)))))

    async def statistics(self, request: web.Request) -> web.Response:
        return _response(plain(model_statistics(self._gateway, *_named(request))))


class _Inference:
    """Requests for predictions."""

    def __init__(self, gateway: Gateway, max_json_bytes: int) -> None:
        self._gateway = gateway
        self._max_json_bytes = max_json_bytes

    async def infer(self, request: web.Request) -> web.Response:
        """Tensors."""
        with _counted(self._gateway):
            timeout_s = _timeout_s(request)
            data = await _body(request)
            inference = read_inference(*_named(request), data, _header_length(request), self._max_json_bytes)
        asked = inference.request
        answer = await self._answer(
            Incoming(
                read=asked.read,
                encode=lambda _, rows: inference.encode(rows),
                model=asked.model,
                version=asked.version,
                request_id=asked.request_id,
                priority=asked.parameters.priority,
                remaining_s=asked.parameters.remaining_s(timeout_s),
                num_bytes=len(data),
                protocol=_PROTOCOL,
                trace_parent=self._trace_parent(request),
            )
        )
        body = read_answer(answer)
        if len(body.data) == body.num_json_bytes:
            return web.Response(body=bytes(body.data), content_type=_JSON)
        headers = {HEADER_LENGTH: str(body.num_json_bytes)}
        return web.Response(body=bytes(body.data), content_type=_BINARY, headers=headers)

    async def predict(self, request: web.Request) -> web.Response:
        """Plain JSON."""
        with _counted(self._gateway):
            timeout_s = _timeout_s(request)
            data = await _body(request)
            body = parse_json(data, self._max_json_bytes)
            request_id = checked_request_id(entry(body, "id", str, "body"), "id")
            parameters = Parameters.read({"priority": body.get("priority", 0)})
        model, version = _named(request)
        answer = await self._answer(
            Incoming(
                read=lambda hosted: read_plain(body, hosted.signature, hosted.settings.limits),
                encode=lambda _, rows: write_plain(rows),
                model=model,
                version=version,
                request_id=request_id,
                priority=parameters.priority,
                remaining_s=timeout_s,
                num_bytes=len(data),
                protocol=_PROTOCOL,
                trace_parent=self._trace_parent(request),
            )
        )
        return web.Response(body=answer, content_type=_JSON)

    def _trace_parent(self, request: web.Request) -> str:
        return request.headers.get("traceparent", "") if self._gateway.reads_trace else ""

    async def _answer(self, incoming: Incoming) -> bytes:
        """As over gRPC, whose clients' deadlines end calls by themselves."""
        try:
            async with asyncio.timeout(incoming.remaining_s):
                return await self._gateway.predict(incoming)
        except TimeoutError:
            raise DeadlineExpiredError("the deadline passed before the answer was there") from None


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
    return await asyncio.to_thread(inflate, data, request.client_max_size)


@contextlib.contextmanager
def _counted(gateway: Gateway) -> Iterator[None]:
    """Count requests that are refused before they come to the gateway."""
    try:
        yield
    except RequestError as error:
        gateway.refused(error, _PROTOCOL)
        raise
    except web.HTTPException as error:
        late = isinstance(error, web.HTTPRequestTimeout)
        gateway.refused((DeadlineExpiredError if late else RequestError)(error.reason), _PROTOCOL)
        raise


def _named(request: web.Request) -> tuple[str, str]:
    """Model and version, as the address names them."""
    return request.match_info.get("model", ""), request.match_info.get("version", "")


def _timeout_s(request: web.Request) -> float | None:
    """How long the client waits, from the address; None where it does not say."""
    unknown = next((name for name in request.query if name != _TIMEOUT), None)
    if unknown is not None:
        raise RequestError(
            f"address: got an unknown parameter {short(unknown)}, expected {_TIMEOUT!r} at most"
        )
    text = request.query.get(_TIMEOUT)
    return None if text is None else _whole_number(_TIMEOUT, text) / _MS_PER_S


def _header_length(request: web.Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    return None if text is None else _whole_number(HEADER_LENGTH, text)


def _whole_number(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise RequestError(f"{field}: got {text[:32]!r}, expected a whole number")
    return int(text)


def _response(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=write_json(content), status=status, content_type=_JSON)


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=write_json({"error": text}), status=status, content_type=_JSON, headers=headers)
