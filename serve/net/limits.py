"""What clients may hold of a gRPC port, in gRPC's own words."""

from __future__ import annotations

import sys

from serve.config.settings import ConnectionLimits, ServerConfig

# Clients may ask too. gRPC's own 300 s, and 2 hours without calls, end the connections of clients that are careful.
_MIN_PING_INTERVAL_MS = 10_000
# Files and sockets beside clients' connections: artifacts, logs, the ports themselves.
_OTHER_FILES = 256
_UNBOUNDED = (1 << 31) - 1


def channel_options(limits: ConnectionLimits) -> list[tuple[str, int]]:
    """The arguments of a ``grpc.aio.server`` that keep clients within ``limits``.

    Names from gRPC's ``grpc_types.h`` and ``channel_arg_names.h``, as of 1.85.
    ``tests/serve/net/test_limits.py`` shows each at work.
    """
    options = [
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its connections silently.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_INTERVAL_MS),
        # With it, gRPC counts calls that have just ended as open ones, and resets (UNAVAILABLE) what a client that
        # keeps to the limit sends next: half of 1000 calls over a connection that may have 100 open.
        ("grpc.http.overload_protection", 0),
        # Beyond gRPC's own limits (1000, at most 3000) calls that wait for the event loop end as CANCELLED, as if their
        # clients had given up. Their number is bounded already: by connections, and streams of each.
        ("grpc.server.max_pending_requests", _UNBOUNDED),
        ("grpc.server.max_pending_requests_hard_limit", _UNBOUNDED),
    ]
    bounds = {
        "grpc.max_allowed_incoming_connections": limits.max_connections,
        "grpc.max_concurrent_streams": limits.max_concurrent_streams,
        "grpc.max_connection_idle_ms": round(limits.max_connection_idle_s * 1000),
        "grpc.max_connection_age_ms": round(limits.max_connection_age_s * 1000),
        # Left out, gRPC has bounds of its own for these three.
        "grpc.server_handshake_timeout_ms": round(limits.handshake_timeout_s * 1000) or _UNBOUNDED,
        # The network does not tell when a client's machine is gone.
        "grpc.keepalive_time_ms": round(limits.keepalive_s * 1000) or _UNBOUNDED,
        "grpc.http2.ping_timeout_ms": round(limits.keepalive_timeout_s * 1000) or _UNBOUNDED,
        # Between the two gRPC refuses some calls at random.
        "grpc.max_metadata_size": limits.max_header_bytes,
        "grpc.absolute_max_metadata_size": limits.max_header_bytes,
    }
    return options + [(name, value) for name, value in bounds.items() if value]


def num_ports(config: ServerConfig) -> int:
    """Ports that may each come to have ``max_connections``; the admin port is for a few."""
    return 1 if config.http_port is None else 2


def allow_open_files(limits: ConnectionLimits, num_ports: int = 1) -> None:
    """Raise the process's soft limit of open files to what the connections need, as far as the hard limit lets it.

    Args:
        limits: of each port.
        num_ports: that clients have connections to.
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
    """How many connections of all ports' the process may not have files for, even with its hard limit.

    Args:
        limits: of each port.
        num_ports: that clients have connections to.
    """
    if sys.platform == "win32":
        return 0
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return 0
    return max(limits.max_connections * num_ports + _OTHER_FILES - hard, 0)
