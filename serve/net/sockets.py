"""Listening sockets of the servers, with a bound on connections."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import math
import os
import socket
import stat
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from serve.config.settings import TlsConfig
from serve.net.tls import server_credentials

_BACKLOG = 128
# accept(2)
_NO_MORE_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_WARNING_INTERVAL_S = 60.0
_PAUSE_S = 0.02
_log = logging.getLogger("serve")


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
    is_unix = host.startswith("unix:")
    address = host if is_unix else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if tls is None:
            number = server.add_insecure_port(address)
        else:
            number = server.add_secure_port(address, server_credentials(tls))
        return 0 if is_unix else int(number)
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


@contextlib.contextmanager
def unix_socket(path: Path) -> Iterator[None]:
    """Make room for a Unix socket, which a server opens within, and remove it at the end.

    Args:
        path: the socket. One that a server has left behind is removed first.

    Raises:
        OSError: another server listens there, a file of another kind is there, or the folder does not exist.
    """
    at = f"cannot listen on unix:{path}"
    if not path.absolute().parent.is_dir():
        raise OSError(f"{at}: its folder does not exist")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(f"{at}: there is a file that is no socket")
        if _is_listened_on(path):
            raise OSError(f"{at}: another server listens there")
        path.unlink()
    yield
    # Whoever started in the meantime has found this one left behind, and has one of its own.
    if not _is_listened_on(path):
        path.unlink(missing_ok=True)


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def is_loopback(host: str) -> bool:
    """Return whether an address or name is this machine's own, out of reach of others."""
    if host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class BoundedListener(socket.socket):
    """A listening socket that closes new connections at once while the maximum number is open.

    Connections are counted when accepted, before TLS, so unfinished handshakes count too. It does the same while the
    process may open no more files, and says so once a minute: event loops would log an error for each attempt, and try
    again at once.

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
        self._next_warning_s = -math.inf
        self._num_refused = 0
        # Closed for a moment where there are no more files, to accept a connection and close it.
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept(self) -> tuple[socket.socket, Any]:
        """See ``socket.accept``.

        Raises:
            ConnectionAbortedError: a limit is reached; event loops go on with the next connection.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in _NO_MORE_FILES:
                raise
            self._refuse_one(error)
            raise ConnectionAbortedError from None
        if self._max_connections and len(self._accepted) >= self._max_connections:
            connection.close()
            raise ConnectionAbortedError
        accepted = _Accepted(connection, self._accepted)
        self._accepted.add(accepted)
        return accepted, address

    def close(self) -> None:
        """See ``socket.close``."""
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        super().close()

    def _refuse_one(self, error: OSError) -> None:
        self._num_refused += 1
        if time.monotonic() >= self._next_warning_s:
            _log.warning(
                "port %d: cannot accept connections (%s); %d refused since the last such line. Raise the limit of open "
                "files (ulimit -n)",
                self.getsockname()[1],
                error.strerror,
                self._num_refused,
            )
            self._next_warning_s, self._num_refused = time.monotonic() + _WARNING_INTERVAL_S, 0
        if self._spare is None:
            # Another thread took the file: the connection waits, and so must the loop, which would try again at once.
            time.sleep(_PAUSE_S)
        else:
            os.close(self._spare)
            self._spare = None
            with contextlib.suppress(OSError):
                super().accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


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
