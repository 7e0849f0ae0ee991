"""The admin port: a separate gRPC server. Every call must carry the token, and every call is logged."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf import message_factory, text_format
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from serve.config.settings import AdminConfig, ServerConfig
from serve.engine.interface import Submitted
from serve.net.auth import TokenCheck, UnauthenticatedError
from serve.net.limits import channel_options
from serve.net.sockets import add_port
from serve.protocols import open_inference
from serve.protocols.calls import BytesMethod, abort, headers_of
from serve.protocols.streams import infer_stream
from serve.rpc.admin_service import SERVICE, AdminService
from serve.rpc.backend import Backend
from serve.rpc.calls import repository_methods
from serve.rpc.reflection import add_reflection
from serve.wire import admin_pb2, open_inference_pb2

_log = logging.getLogger("serve.admin")
# Grace period for calls that are running when the server stops.
_GRACE_S = 1.0
_MAX_LOGGED_CHARACTERS = 300
# Services of operators; callers of others have come to the wrong port.
_OPERATORS = (f"/{SERVICE}/", f"/{open_inference.SERVICE}/", "/grpc.reflection.")
_NOT_HERE = "this is the admin port; requests go to the port= of the server's ready line"


class AdminServer:
    """The admin service, and Open Inference with operators' rights. Belongs to one event loop.

    Args:
        admin: the address to listen on, and the token file.
        backend: the server.
        config: the server's settings; its TLS files and connection limits apply here too.

    Raises:
        SecurityError: the token file cannot be used.
    """

    def __init__(self, admin: AdminConfig, backend: Backend, config: ServerConfig) -> None:
        self.port = 0
        self._admin = admin
        self._config = config
        self._server = grpc.aio.server(
            interceptors=(AdminGate(TokenCheck(admin.token_file)),),
            options=channel_options(config.connections),
        )
        ours = {name: _unary(method) for name, method in AdminService(backend.manager).methods().items()}
        theirs = _Inference(backend, config.connections.max_stream_requests).handlers()
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, ours),
                grpc.method_handlers_generic_handler(open_inference.SERVICE, theirs),
            )
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        add_reflection(self._server, (SERVICE, open_inference.SERVICE, health.SERVICE_NAME))

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the port is taken or the address is not this machine's.
            SecurityError: the TLS files cannot be used.
        """
        host, port, tls = self._admin.host, self._admin.port, self._config.tls
        self.port = add_port(self._server, host, port, tls, "serve administration")
        for service in ("", SERVICE):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self) -> None:
        """Accept no further calls. The manager finishes the changes that have begun."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_S)


class _Inference:
    """Open Inference with an operator's rights, over either engine.

    Args:
        backend: the server.
        max_stream_requests: unanswered requests of one ModelStreamInfer; at this limit no further ones are
            read.
    """

    def __init__(self, backend: Backend, max_stream_requests: int) -> None:
        self._backend = backend
        self._max_stream_requests = max_stream_requests

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Return the handlers by method; they take and return bytes."""
        methods = repository_methods(self._backend, is_admin=True)
        handlers = {name: _unary(method) for name, method in methods.items()}
        handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(self.model_infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self.model_stream_infer)
        return handlers

    async def model_infer(self, data: bytes, context: Any) -> bytes:
        """``inference.GRPCInferenceService.ModelInfer``."""
        try:
            return await self._answer(data, context)
        except Exception as error:
            await abort(context, error)

    async def model_stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """``inference.GRPCInferenceService.ModelStreamInfer``."""

        async def answer(data: bytes) -> bytes:
            return await self._answer(data, context)

        await infer_stream(answer, requests, context.write, self._max_stream_requests)

    async def _answer(self, data: bytes, context: Any) -> bytes:
        submitted = Submitted(
            message=data,
            form="kserve",
            protocol="kserve",
            remaining_s=context.time_remaining(),
            headers=headers_of(context),
        )
        return await self._backend.engine.submit(submitted)


def _unary(method: BytesMethod) -> grpc.RpcMethodHandler:
    async def call(data: bytes, context: Any) -> bytes:
        try:
            return await method(data)
        except Exception as error:
            await abort(context, error)

    return grpc.unary_unary_rpc_method_handler(call)


class AdminGate(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Admits calls that carry the token, and logs them.

    Args:
        check: checks the token.
    """

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._logged = _logged_methods()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """See ``grpc.aio.ServerInterceptor``."""
        try:
            self._check.check(details.invocation_metadata)
        except UnauthenticatedError as error:
            hint = "" if details.method.startswith(_OPERATORS) else f"; {_NOT_HERE}"
            return _refusal(details.method, grpc.StatusCode.UNAUTHENTICATED, f"{error}{hint}")
        handler = await continuation(details)
        if handler is None:
            return _refusal(
                details.method, grpc.StatusCode.UNIMPLEMENTED, f"method: not known here; {_NOT_HERE}"
            )
        kind = self._logged.get(details.method)
        return handler if kind is None else _logging(handler, details.method, kind)


def _logged_methods() -> dict[str, type[Message]]:
    """Return the methods that read or change what is served, with their request types."""
    ours = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods
    theirs = open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    methods = [*ours, *(method for method in theirs if method.name.startswith("Repository"))]
    return {
        f"/{method.containing_service.full_name}/{method.name}": message_factory.GetMessageClass(
            method.input_type
        )
        for method in methods
    }


def _refusal(method: str, code: grpc.StatusCode, text: str) -> grpc.RpcMethodHandler:
    async def refuse(_: Any, context: Any) -> NoReturn:
        _log.warning("%s from %s: refused: %s", method[:100], context.peer(), text)
        await context.abort(code, text)
        raise AssertionError("abort returned")

    # A stream handler can refuse the call without reading the caller's messages.
    return grpc.stream_stream_rpc_method_handler(refuse)


def _logging(handler: Any, method: str, kind: type[Message]) -> grpc.RpcMethodHandler:
    async def call(data: bytes, context: Any) -> bytes:
        what = f"{method.rpartition('/')[2]} {{{_text(kind, data)}}} from {context.peer()}"
        try:
            response: bytes = await handler.unary_unary(data, context)
        except grpc.aio.AbortError:
            _log.warning("%s: %s: %s", what, _name(context.code()), context.details())
            raise
        except BaseException:
            _log.warning("%s: the caller gave up", what)
            raise
        _log.info("%s: OK", what)
        return response

    return grpc.unary_unary_rpc_method_handler(call)


def _text(kind: type[Message], data: bytes) -> str:
    """Return a message as one line; unprintable characters are escaped."""
    try:
        text: str = text_format.MessageToString(kind.FromString(data), as_one_line=True)
    except DecodeError:
        return f"{len(data)} bytes that are no message"
    return text[:_MAX_LOGGED_CHARACTERS]


def _name(code: Any) -> str:
    """Return the name of a status; grpc.aio gives it as a number or as an enum member."""
    for known in grpc.StatusCode:
        if code in (known, known.value[0]):
            return str(known.name)
    return str(code)
