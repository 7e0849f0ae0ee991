"""The server's settings, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field

from serve.batching import BatchLimits


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How one server listens, batches and stops.

    Attributes:
        host: the address to listen on; anything but loopback is the operator's own choice.
        port: of the gRPC services; 0 lets the system choose.
        metrics_port: of the Prometheus metrics; 0 lets the system choose, None serves none.
        limits: of requests, batches and the queue.
        max_message_bytes: of one serialized request; a parsed one may take many times as much.
        allow_non_finite: whether NaN and infinities in dense inputs and weights reach the model.
        num_executors: threads that run batches at the same time.
        drain_timeout_s: how long accepted requests may take after the server was asked to stop.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    host: str = "127.0.0.1"
    port: int = 8500
    metrics_port: int | None = 8501
    limits: BatchLimits = field(default_factory=BatchLimits)
    max_message_bytes: int = 4 << 20
    allow_non_finite: bool = False
    num_executors: int = 1
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("host: got an empty text, expected an address such as 127.0.0.1")
        for name in ("port", "metrics_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise ValueError(f"{name}: got {port}, expected 0 to 65535")
        if self.max_message_bytes < 1024:
            raise ValueError(f"max_message_bytes: got {self.max_message_bytes}, expected at least 1024")
        if self.num_executors < 1:
            raise ValueError(f"num_executors: got {self.num_executors}, expected at least 1")
        if not self.drain_timeout_s > 0:
            raise ValueError(f"drain_timeout_s: got {self.drain_timeout_s}, expected more than 0")
