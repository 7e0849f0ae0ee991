"""Listening sockets of the servers, with a bound on connections."""

from __future__ import annotations

import ipaddress
import socket
import weakref
from typing import Any

import grpc
import grpc.aio

from serve.config.settings import TlsConfig
from serve.net.tls import server_credentials

_BACKLOG = 128


def add_port(server: grpc.aio.Server, host: str, port: int, tls: TlsConfig | None, purpose: str) -> int:
    """Add a port to a ``grpc.aio`` server and return its number.

    Args:
        server: the server, not started yet.
        host: the address to listen on.
        port: 0 lets the system choose.
        tls: None for plain text.
        purpose: the action to name in the error if the port is not available, such as ``listen``.

    Raises:
        OSError: the port is taken or the address is not this machine's.
        SecurityError: the TLS files cannot be used.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, server_credentials(tls)))
    except RuntimeError as error:
        raise OSError(
            f"cannot {purpose} on {address}: the port is taken or the address is not ours"
        ) from error


def listening(host: str, port: int, backlog: int = _BACKLOG) -> socket.socket:
    """Return one listening socket for an address or name; ``::`` accepts IPv4 too, as gRPC does.

    Args:
        host: the address, or a name of one.
        port: 0 lets the system choose.
        backlog: connections that may wait to be accepted.

    Raises:
        OSError: the port is taken or the address is not this machine's.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=backlog, dualstack_ipv6=both)


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own, out of reach of others."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class BoundedListener(socket.socket):
    """A listening socket that closes new connections at once while the maximum number is open.

    Connections are counted when accepted, before TLS, so unfinished handshakes count too.

    Args:
        listens: a listening socket, which this one replaces.
        max_connections: maximum number of open connections; 0 for no limit.
    """

    def __init__(self, listens: socket.socket, max_connections: int) -> None:
        family, kind, protocol = listens.family, listens.type, listens.proto
        super().__init__(family, kind, protocol, fileno=listens.detach())
        self._max_connections = max_connections
        # Weak references: a socket that was not closed is uncounted when it is garbage-collected.
        self._accepted: weakref.WeakSet[_Accepted] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        """See ``socket.accept``.

        Raises:
            ConnectionAbortedError: the maximum is reached; event loops go on with the next connection.
        """
        connection, address = super().accept()
        if self._max_connections and len(self._accepted) >= self._max_connections:
            connection.close()
            raise ConnectionAbortedError
        accepted = _Accepted(connection, self._accepted)
        self._accepted.add(accepted)
        return accepted, address


class _Accepted(socket.socket):
    """A connection that is uncounted when it is closed."""

    def __init__(self, connection: socket.socket, among: weakref.WeakSet[_Accepted]) -> None:
        family, kind, protocol = connection.family, connection.type, connection.proto
        super().__init__(family, kind, protocol, fileno=connection.detach())
        self._among = among

    def close(self) -> None:
        """See ``socket.close``."""
        self._among.discard(self)
        super().close()
