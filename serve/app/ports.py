"""Which of a server's ports others listen on, and how to choose others."""

from __future__ import annotations

import errno

from serve.config.settings import ServerConfig
from serve.net.sockets import listening


def taken_ports(config: ServerConfig) -> str:
    """Return the end of an error: all ports that are taken, with their flags; empty if none is.

    A second server on a machine finds the ports of the first one taken, and should hear of all at once.

    Args:
        config: settings of a server that does not listen.
    """
    host = config.tcp_host
    ports = [("--metrics-port", host, config.metrics_port), ("--http-port", host, config.http_port)]
    if config.socket_path is None:
        ports.insert(0, ("--port", host, config.port))
    if config.admin is not None:
        ports.append(("--admin-port", config.admin.host, config.admin.port))
    taken = [flag for flag, host, port in ports if port and _is_taken(host, port)]
    if not taken:
        return ""
    numbers = [str(port) for flag, _, port in ports if flag in taken]
    are = "is taken" if len(taken) == 1 else "are taken"
    others = " ".join(f"{flag} 0" for flag in taken)
    none = " or --no-metrics" if "--metrics-port" in taken else ""
    return (
        f"; {' and '.join(numbers)} {are}, perhaps by another recsys-serve: choose other ports with "
        f"{' and '.join(taken)}{none}, or any free ones with {others}"
    )


def _is_taken(host: str, port: int) -> bool:
    try:
        listening(host, port).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
