"""Connection limits of a gRPC port as gRPC's channel arguments."""

from __future__ import annotations

import sys

from serve.config.settings import ConnectionLimits, ServerConfig

# Clients may send pings too. gRPC's default minimum of 300 s, and of 2 hours without calls, would close
# connections of clients with keepalive.
_MIN_PING_INTERVAL_MS = 10_000
# Files and sockets other than clients' connections: artifacts, logs, the ports themselves.
_OTHER_FILES = 256
_UNBOUNDED = (1 << 31) - 1


def channel_options(limits: ConnectionLimits) -> list[tuple[str, int]]:
    """Return the arguments of a ``grpc.aio.server`` that enforce ``limits``.

    Names from gRPC's ``grpc_types.h`` and ``channel_arg_names.h``, as of 1.85.
    ``tests/serve/net/test_limits.py`` tests each.
    """
    options = [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Else two servers on one port would silently share its connections.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        # With it, gRPC counts calls that have just ended as open, and resets (UNAVAILABLE) calls of clients
        # within the limit: half of 1000 calls over a connection with 100 allowed.
        ("grpc.http.overload_protection", 0),
        # Beyond gRPC's own limits (1000, at most 3000), calls that wait for the event loop end as CANCELLED,
        # as if cancelled by the client. The limits of connections and of streams per connection bound them
        # already.
        ("grpc.server.max_pending_requests", _UNBOUNDED),
        ("grpc.server.max_pending_requests_hard_limit", _UNBOUNDED),
    ]
    bounds = {
        "grpc.max_allowed_incoming_connections": limits.max_connections,
        "grpc.max_concurrent_streams": limits.max_concurrent_streams,
        "grpc.max_connection_idle_ms": round(limits.max_connection_idle_s * 1000),
        "grpc.max_connection_age_ms": round(limits.max_connection_age_s * 1000),
        # gRPC has other defaults for these three if they are not set.
        "grpc.server_handshake_timeout_ms": round(limits.handshake_timeout_s * 1000) or _UNBOUNDED,
        # The network does not report that a client's machine is gone.
        "grpc.keepalive_time_ms": round(limits.keepalive_s * 1000) or _UNBOUNDED,
        "grpc.http2.ping_timeout_ms": round(limits.keepalive_timeout_s * 1000) or _UNBOUNDED,
        # Between the soft and the hard limit gRPC refuses some calls at random.
        "grpc.max_metadata_size": limits.max_header_bytes,
        "grpc.absolute_max_metadata_size": limits.max_header_bytes,
    }
    return options + [(name, value) for name, value in bounds.items() if value]


def num_ports(config: ServerConfig) -> int:
    """Return the number of ports that may each have ``max_connections``; the admin port has few."""
    return 1 if config.http_port is None else 2


def allow_open_files(limits: ConnectionLimits, num_ports: int = 1) -> None:
    """Raise the soft limit of open files to what the connections need, up to the hard limit.

    Args:
        limits: limits of each port.
        num_ports: number of ports for clients.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.max_connections * num_ports + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def missing_open_files(limits: ConnectionLimits, num_ports: int = 1) -> int:
    """Return the number of allowed connections, over all ports, that exceed the hard limit of open files.

    Args:
        limits: limits of each port.
        num_ports: number of ports for clients.
    """
    if sys.platform == "win32":
        return 0
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return 0
    return max(limits.max_connections * num_ports + _OTHER_FILES - hard, 0)
