"""What a client is told before it connects, checked: its server's address, TLS files, and what holds for all calls."""

from __future__ import annotations

import math
import re
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from serve.security import check_authorities, check_pair, read_file
from serve.wire import predict_pb2 as wire

# ``dns:///`` is gRPC's own: all addresses of a name, not only the first.
_ADDRESS = re.compile(r"(?:dns:///)?(?:\[[0-9A-Za-z:.%]+\]|[^\s/:@\[\]]+):([0-9]{1,5})")
_MAX_PORT = 65535
_MAX_CHARS = 80


def checked_address(address: str) -> str:
    """The address of a server, as it came.

    Raises:
        ValueError: it is not ``host:port``.
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 0 < int(match[1]) <= _MAX_PORT:
        raise ValueError(f"address: got {str(address)[:_MAX_CHARS]!r}, expected host:port")
    return address


def checked_timeout_s(timeout_s: float) -> float:
    """A call's timeout, as it came.

    Raises:
        ValueError: it is no time to wait.
    """
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s: got {timeout_s!r}, expected more than 0 seconds")
    return timeout_s


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """Files in PEM.

    Attributes:
        ca: who signs the server's certificate; None for the system's own list.
        certificate: the client's, where the server wants one (mTLS).
        key: its private key.

    Raises:
        ValueError: a certificate without its key, or a key alone.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate, tls.key: got one of them, expected both or none")

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. The files are tried first: gRPC ends the process over some that do not fit.

        Raises:
            ValueError: a file cannot be read or holds something else, or the key is not the certificate's.
        """
        ca, certificate, key = (
            None if path is None else read_file(f"tls.{name}", Path(path))
            for name, path in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key))
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None and ca is not None:
            check_authorities(context, "tls.ca", Path(self.ca), ca)
        if self.certificate is not None and self.key is not None:
            check_pair(context, Path(self.certificate), Path(self.key))
        return grpc.ssl_channel_credentials(ca, key, certificate)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for all calls of a client.

    Attributes:
        timeout_s: of each call, unless the call names its own.
        model: the model's name; empty for the one that the server holds.
        version: of the model; empty for the one that the server's routing chooses.
        priority: ``wire.PRIORITY_HIGH``, ``PRIORITY_NORMAL`` or ``PRIORITY_LOW`` of ``serve.wire.predict_pb2``.
        tls: None for plain text.

    Raises:
        ValueError: the timeout or the priority is none.
    """

    timeout_s: float = 10.0
    model: str = ""
    version: str = ""
    priority: wire.Priority = wire.PRIORITY_UNSPECIFIED
    tls: ClientTls | None = None

    def __post_init__(self) -> None:
        checked_timeout_s(self.timeout_s)
        if self.priority not in wire.Priority.values():
            names = ", ".join(f"wire.{name}" for name in wire.Priority.keys())  # noqa: SIM118
            raise ValueError(f"priority: got {self.priority!r}, expected one of {names}")

    def finish(self, request: wire.PredictRequest) -> wire.PredictRequest:
        """The request, with what all requests of the client carry."""
        request.model, request.version = self.model, self.version
        request.priority = self.priority
        return request

    def metadata_request(self) -> wire.GetModelMetadataRequest:
        """Asks for the model."""
        return wire.GetModelMetadataRequest(model=self.model, version=self.version)
