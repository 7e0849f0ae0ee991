"""A server over a repository of two versions, with its admin port, in the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from serve.app.server import Server
from serve.config.models import ModelSettings
from serve.config.settings import AdminConfig, ServerConfig, TlsConfig
from serve.models.repository import Repository
from serve.wire import admin_pb2 as wire
from tests.support.serve.repositories import add_version

TOKEN = "a-token-that-only-operators-know"
SERVICE = wire.DESCRIPTOR.services_by_name["AdminService"].full_name
_ANSWERS: dict[str, Any] = {
    "ListModels": wire.ListModelsResponse,
    "LoadModel": wire.ModelVersion,
    "UnloadModel": wire.UnloadModelResponse,
    "SetRouting": wire.ModelStatus,
    "Rollback": wire.ModelStatus,
    "ApplyDelta": wire.ModelVersion,
}


@dataclass
class AdminLive:
    """A running server.

    Attributes:
        server: the server.
        address: of its admin port.
        token_file: of its token.
        root: of its repository.
    """

    server: Server
    address: str
    token_file: Path
    root: Path

    @property
    def port(self) -> int:
        return self.server.port

    async def call(self, channel: grpc.aio.Channel, request: Message, token: str | None = TOKEN) -> Any:
        """Call the method that takes this message."""
        name = type(request).__name__.removesuffix("Request")
        method = channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=_ANSWERS[name].FromString,
        )
        metadata = None if token is None else [("authorization", f"Bearer {token}")]
        return await method(request, timeout=60, metadata=metadata)


def write_token(folder: Path, token: str = TOKEN) -> Path:
    """A token file of its owner's."""
    path = folder / "admin.token"
    path.touch(0o600)
    path.write_text(token)
    return path


@asynccontextmanager
async def admin_live(
    folder: Path, artifact: Path, tls: TlsConfig | None = None, settings: ModelSettings | None = None
) -> AsyncIterator[AdminLive]:
    """Serve model ``small`` in the versions 1 and 2.

    Args:
        folder: for the repository and the token.
        artifact: what both versions are.
        tls: of the server.
        settings: of the model.
    """
    root, token_file = folder / "models", write_token(folder)
    for version in ("1", "2"):
        add_version(root, "small", version, artifact)
    config = ServerConfig(
        port=0,
        metrics_port=None,
        defaults=settings or ModelSettings(),
        tls=tls,
        admin=AdminConfig(token_file=token_file, port=0),
    )
    server = Server(Repository(root), config)
    await server.start()
    try:
        await server.wait_until_ready()
        yield AdminLive(server, f"127.0.0.1:{server.admin_port}", token_file, root)
    finally:
        await server.stop()
