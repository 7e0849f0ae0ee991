"""Settings of a client, checked before it connects: address, TLS files, and the defaults of all calls."""

from __future__ import annotations

import math
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from recsys.base.files import is_utf8
from serve.client.retries import Retries
from serve.net.tls import check_authorities, check_pair, read_file
from serve.wire import predict_pb2 as wire

# gRPC's schemes: ``dns:///`` is for all addresses of a name instead of the first.
_ADDRESS = re.compile(
    r"(?:dns:(?:///)?|ipv4:(?=[0-9.]+:)|ipv6:(?=\[))?(?:\[[0-9A-Za-z:.%]+\]|[^\s/:@\[\]]+):([0-9]{1,5})"
)
_SOCKET = re.compile(r"unix:(?!//[^/])[^\0]*[^\0/]|unix-abstract:[^\0]+")
_IPV6 = re.compile(r"(?:ipv6:)?\[?[0-9A-Fa-f:.%]+\]?")
_MAX_PORT = 65535
_MAX_CHARS = 80


def checked_address(address: str) -> str:
    """Return the address of a server after checking it.

    Raises:
        ValueError: the address is neither ``host:port`` nor ``unix:PATH``.
    """
    is_socket = isinstance(address, str) and is_utf8(address) and _SOCKET.fullmatch(address) is not None
    return address if is_socket else checked_host_port(address)


def checked_host_port(address: str) -> str:
    """Return the address of a port after checking it.

    Raises:
        ValueError: the address is not ``host:port``.
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not is_utf8(address) or not 0 < int(match[1]) <= _MAX_PORT:
        brackets = ", with brackets around IPv6, such as [::1]:8500" if _is_bare_ipv6(address) else ""
        raise ValueError(f"address: got {str(address)[:_MAX_CHARS]!r}, expected host:port{brackets}")
    return address


def _is_bare_ipv6(address: str) -> bool:
    return isinstance(address, str) and address.count(":") > 1 and _IPV6.fullmatch(address) is not None


def checked_timeout_s(timeout_s: float) -> float:
    """Return the timeout of a call.

    Raises:
        ValueError: the timeout is not a positive number.
    """
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s: got {timeout_s!r}, expected more than 0 seconds")
    return timeout_s


@dataclass(frozen=True, kw_only=True)
class ClientTls:
    """Files in PEM.

    Attributes:
        ca: authorities that sign the server's certificate; None for the system's list.
        certificate: certificate of the client, for servers that require one (mTLS).
        key: private key of that certificate.

    Raises:
        ValueError: only one of certificate and key is given.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls.certificate, tls.key: got one of them, expected both or none")

    def credentials(self) -> grpc.ChannelCredentials:
        """Return a channel's credentials. The files are checked first: gRPC aborts the process on bad ones.

        Raises:
            ValueError: a file cannot be read or is invalid, or the key does not match the certificate.
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
    """Defaults of all calls of a client.

    Attributes:
        timeout_s: timeout of each call that names none.
        model: name of the model; empty for the only one that the server holds.
        version: version of the model; empty to let the server's routing choose.
        priority: ``wire.PRIORITY_HIGH``, ``PRIORITY_NORMAL`` or ``PRIORITY_LOW`` of ``serve.wire.predict_pb2``.
        tls: None for plain text.
        retries: which calls are tried again.

    Raises:
        ValueError: the timeout or the priority is invalid.
    """

    timeout_s: float = 10.0
    model: str = ""
    version: str = ""
    priority: wire.Priority = wire.PRIORITY_UNSPECIFIED
    tls: ClientTls | None = None
    retries: Retries = field(default_factory=Retries)

    def __post_init__(self) -> None:
        checked_timeout_s(self.timeout_s)
        if self.priority not in wire.Priority.values():
            names = ", ".join(f"wire.{name}" for name in wire.Priority.keys())  # noqa: SIM118
            raise ValueError(f"priority: got {self.priority!r}, expected one of {names}")

    def finish(self, request: wire.PredictRequest) -> wire.PredictRequest:
        """Return a request with the client's model, version and priority where it names none.

        The client's version applies only to the client's model. The given message is not changed.
        """
        model = request.model or self.model
        version = request.version or (self.version if model == self.model else "")
        priority = request.priority or self.priority
        if (model, version, priority) == (request.model, request.version, request.priority):
            return request
        finished = wire.PredictRequest()
        finished.CopyFrom(request)
        finished.model, finished.version, finished.priority = model, version, priority
        return finished

    def metadata_request(self, num_examples: int = 0) -> wire.GetModelMetadataRequest:
        """Return the request for the model's metadata."""
        return wire.GetModelMetadataRequest(model=self.model, version=self.version, num_examples=num_examples)
