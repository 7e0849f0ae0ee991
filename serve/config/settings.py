"""The server's settings, checked once. Flags, environment variables, file keys and docs derive from them.

Help texts come from the Attributes sections of the docstrings (serve/config/options.py).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve.config.bounds import bounded, check_bounds
from serve.config.models import ModelSettings

if TYPE_CHECKING:
    from recsys.streams.address import KafkaAddress

ENGINES = ("auto", "native", "reference")
_MAX_PORT = 65535
_UNIX = "unix:"
# The size of sockaddr_un's path, whose last byte ends it.
_MAX_SOCKET_BYTES = 107
_MAX_POLLING_THREADS = 1024
# A call of a small model costs its polling thread more than the executors; requests of many rows need fewer polling
# threads, but those that have nothing to do cost nothing.
_PROCESSORS_PER_POLLING_THREAD = 2
# gRPC's channel arguments are int32, including times in milliseconds.
_MAX_INT32 = 2**31 - 1


def _connection_time(default: float) -> Any:
    return bounded(default, 0.001, _MAX_INT32 // 1000, or_zero=True)


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Files in PEM; read again when they change.

    Attributes:
        certificate: the server's, with its chain.
        key: the server's private key.
        client_ca: authorities that sign clients' certificates; if given, clients must present one (mTLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class AdminConfig:
    """The admin service, on a port of its own.

    Attributes:
        host: the address to listen on.
        port: 0 lets the system choose.
        token_file: file with the bearer token that calls must carry; read again when it changes.
        routing_file: file that keeps the routing that operators set over a restart, one for each server; by default
            beside the file of --config, with the ending .routing.json, if that folder can be written to. None to keep
            none.
    """

    token_file: Path
    host: str = "127.0.0.1"
    port: int = 8502
    routing_file: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", _checked_host(self.host))
        _check_port("port", self.port)


@dataclass(frozen=True, kw_only=True)
class RestConfig:
    """The HTTP port.

    Attributes:
        pages: whether it serves pages for browsers; None for only on a loopback address.
    """

    pages: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits on what clients may use of the server; 0 means no limit.

    Attributes:
        max_connections: open connections; the server closes further ones at once.
        max_message_bytes: size of one serialized request; a parsed one may take many times as much memory.
        max_json_bytes: size of the JSON in one request over HTTP; parsing it delays all other requests.
        max_concurrent_streams: open calls of one connection; further calls wait on the client's side.
        max_stream_requests: unanswered requests of one PredictStream; at this limit no further ones are read.
        max_connection_idle_s: time after which a connection without calls is closed.
        max_connection_age_s: age from which a connection is closed once its calls have ended.
        handshake_timeout_s: time from the connection to the end of the TLS and HTTP/2 handshakes.
        first_call_timeout_s: time from the connection to its first call; native engine only.
        message_timeout_s: time after which a call ends if its message does not come, or begins and does not
            grow; native engine only.
        keepalive_s: time after which a silent connection is sent a PING.
        keepalive_timeout_s: time after which it is closed if the PING is not answered.
        max_header_bytes: size of the names and values of one call's headers.
        max_connection_bytes: memory of one connection: its HTTP/2 session, open calls with their headers,
            unfinished messages, unread answers; near it new calls are refused, beyond it the connection is
            closed; native engine only. Two messages of the largest size always fit.
        max_port_bytes: the same for all connections together; above half of it connections that hold more
            than their even share get no new calls, beyond it the one that holds most is closed.
        max_resets_per_s: calls of one connection that are reset instead of answered; after a burst of ten
            seconds' worth the connection is closed; native engine only.
        max_control_frames_per_s: the same for frames without data; native engine only.
    """

    max_connections: int = bounded(8192, 0, _MAX_INT32)
    max_message_bytes: int = bounded(4 << 20, 1024, _MAX_INT32)
    max_json_bytes: int = bounded(256 << 10, 1024)
    max_concurrent_streams: int = bounded(1024, 0, _MAX_INT32)
    max_stream_requests: int = bounded(64, 1)
    max_connection_idle_s: float = _connection_time(300.0)
    max_connection_age_s: float = _connection_time(0.0)
    handshake_timeout_s: float = _connection_time(20.0)
    first_call_timeout_s: float = _connection_time(60.0)
    message_timeout_s: float = _connection_time(30.0)
    keepalive_s: float = _connection_time(60.0)
    keepalive_timeout_s: float = _connection_time(20.0)
    max_header_bytes: int = bounded(16 << 10, 1024, _MAX_INT32)
    max_connection_bytes: int = bounded(64 << 20, 0)
    max_port_bytes: int = bounded(512 << 20, 0)
    max_resets_per_s: float = bounded(200.0, 0, or_zero=True)
    max_control_frames_per_s: float = bounded(500.0, 0, or_zero=True)

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """The log.

    Attributes:
        as_json: whether each line is a JSON object.
        requests: which requests get a line: "none", "errors" or "all".
    """

    as_json: bool = False
    requests: str = "errors"

    def __post_init__(self) -> None:
        if self.requests not in ("none", "errors", "all"):
            raise ValueError(f"requests: got {self.requests!r}, expected none, errors or all")


@dataclass(frozen=True, kw_only=True)
class TraceConfig:
    """OpenTelemetry traces.

    Attributes:
        endpoint: address of an OTLP collector over gRPC, such as http://127.0.0.1:4317.
        share: share of the requests to trace if the client does not say; 0 to 1.
    """

    endpoint: str
    share: float = 0.01

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint: got {self.endpoint!r}, expected http:// or https://, host and port")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected 0 to 1")


@dataclass(frozen=True, kw_only=True)
class CaptureConfig:
    """Requests written to a file for replay.

    Attributes:
        path: the file; an old one is replaced.
        share: share of the requests to capture, above 0 to 1.
        max_bytes: size at which the file stops growing.
    """

    path: Path
    share: float = 0.01
    max_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected above 0, up to 1")
        _check_at_least("max_bytes", self.max_bytes, 1)


def _topic(field: str, address: str, others: str = "") -> KafkaAddress:
    """Return the topic that a field names.

    Raises:
        ValueError: it names none.
    """
    from recsys.streams.address import KafkaAddress, parse_stream_address  # the client has no streams

    try:
        parsed = parse_stream_address(address)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None
    if not isinstance(parsed, KafkaAddress):
        raise ValueError(f"{field}: got {address[:80]!r}, expected {others}kafka://HOST:PORT/TOPIC")
    return parsed


@dataclass(frozen=True, kw_only=True)
class AnswerLogConfig:
    """Answered requests written to Parquet files or to Kafka, to be joined with labels for training.

    Attributes:
        destination: a folder for Parquet files, or kafka://HOST:PORT/TOPIC.
        share: share of the answered requests to write, above 0 to 1: by the request ID's hash where there is one, so
            that all servers write the same requests, else at random.
        leave_out: names of inputs and outputs that are not written.
        hash: names of sparse inputs of which keyed hashes are written in place of IDs and texts.
        hash_key_file: file with the secret key of the hashes, of at least 16 bytes.
        max_file_bytes: size at which a file is finished and the next one begins.
        max_file_age_s: age at which it is finished; what a file holds is lost if the server is killed before.
        max_files: files in the folder, of which the oldest are deleted; 0 keeps all.
        max_waiting_bytes: requests and answers that wait to be written; further ones are dropped and counted.
    """

    destination: str
    share: float = 1.0
    leave_out: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    hash_key_file: Path | None = None
    max_file_bytes: int = bounded(256 << 20, 1)
    max_file_age_s: float = bounded(60.0, 0.001)
    max_files: int = bounded(0, 0)
    max_waiting_bytes: int = bounded(64 << 20, 1)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: got {self.share}, expected above 0, up to 1")
        if not self.destination:
            raise ValueError("destination: got an empty text, expected a folder or kafka://HOST:PORT/TOPIC")
        _ = self.topic
        if self.hash and self.hash_key_file is None:
            raise ValueError("hash_key_file: got none, expected the file of the key that hash needs")
        both = sorted({*self.hash} & {*self.leave_out})
        if both:
            raise ValueError(f"hash: got {both[0]!r}, which leave_out names too, expected one of the two")
        check_bounds(self)

    @property
    def topic(self) -> KafkaAddress | None:
        """The topic that ``destination`` names; None for a folder."""
        return _topic("destination", self.destination, "a folder or ") if "://" in self.destination else None


@dataclass(frozen=True, kw_only=True)
class QualityConfig:
    """Quality of answers by labels that are sent for them, and drift of inputs.

    Attributes:
        within_s: time for which an answer is kept for labels.
        max_bytes: memory of answers that are kept; the oldest make room.
        share: share of the requests with an ID whose answers are kept, 0 to 1.
        scores: what the outputs are, "probability" or "logit".
        labels: a topic that labels come from too, kafka://HOST:PORT/TOPIC; None for none.
        drift_share: share of the requests whose inputs are compared with the training data, 0 to 1.
    """

    within_s: float = bounded(3600.0, 0.001, _MAX_INT32)
    max_bytes: int = bounded(64 << 20, 1 << 16)
    share: float = bounded(1.0, 0.0, 1.0)
    scores: str = "probability"
    labels: str | None = None
    drift_share: float = bounded(0.01, 0.0, 1.0)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.scores not in ("probability", "logit"):
            raise ValueError(f"scores: got {self.scores!r}, expected probability or logit")
        _ = self.topic

    @property
    def topic(self) -> KafkaAddress | None:
        """The topic that ``labels`` names."""
        return None if self.labels is None else _topic("labels", self.labels)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How one server listens, batches and stops.

    Attributes:
        host: the address to listen on, or ``unix:PATH`` for the gRPC services, with all else on loopback; the default
            is loopback.
        port: port of the gRPC services; 0 lets the system choose.
        metrics_port: port of the Prometheus metrics; 0 lets the system choose, None disables them.
        http_port: port of the REST form of Open Inference; 0 lets the system choose, None disables it.
        defaults: settings of models that ``models`` does not name.
        models: settings by model.
        rest: the HTTP port.
        connections: limits of connections.
        tls: None for plain text.
        admin: None for no admin service.
        log: the log.
        trace: None for no traces.
        capture: None for no capture.
        answer_log: None for no log of answers.
        quality: None for neither labels nor drift.
        polling_threads: threads that read and write the connections of the gRPC services; 0 for one for
            each 2 processors; native engine only.
        poll_repository_s: interval between scans of the repository for new versions; 0 for none.
        drain_timeout_s: time that accepted requests may take after the server was asked to stop.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    host: str = "127.0.0.1"
    port: int = 8500
    metrics_port: int | None = 8501
    http_port: int | None = None
    defaults: ModelSettings = field(default_factory=ModelSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    rest: RestConfig = field(default_factory=RestConfig)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: TlsConfig | None = None
    admin: AdminConfig | None = None
    log: LogConfig = field(default_factory=LogConfig)
    trace: TraceConfig | None = None
    capture: CaptureConfig | None = None
    answer_log: AnswerLogConfig | None = None
    quality: QualityConfig | None = None
    polling_threads: int = bounded(0, 0, _MAX_POLLING_THREADS)
    poll_repository_s: float = 0.0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_bounds(self)
        object.__setattr__(self, "host", _checked_socket(self.host) or _checked_host(self.host))
        for name in ("port", "metrics_port", "http_port"):
            port = getattr(self, name)
            if port is not None:
                _check_port(name, port)
        if not 0 <= self.poll_repository_s < math.inf:
            raise ValueError(f"poll_repository_s: got {self.poll_repository_s}, expected 0 or more")
        if not 0 < self.drain_timeout_s < math.inf:
            raise ValueError(f"drain_timeout_s: got {self.drain_timeout_s}, expected more than 0")

    @property
    def socket_path(self) -> Path | None:
        """The Unix socket of the gRPC services; None where they have a port."""
        return Path(self.host.removeprefix(_UNIX)) if self.host.startswith(_UNIX) else None

    @property
    def tcp_host(self) -> str:
        """The address of the ports for HTTP and metrics."""
        return self.host if self.socket_path is None else "127.0.0.1"

    @property
    def num_polling_threads(self) -> int:
        """Return ``polling_threads``, or what the number of processors asks for if it is 0."""
        from recsys.base.machine import num_processors  # clients read settings too, without torch

        return self.polling_threads_of(num_processors())

    def polling_threads_of(self, processors: int) -> int:
        """Return ``polling_threads``, or what so many processors ask for if it is 0."""
        return self.polling_threads or max(1, processors // _PROCESSORS_PER_POLLING_THREAD)

    def settings_of(self, model: str) -> ModelSettings:
        """Return the settings of ``model``."""
        return self.models.get(model, self.defaults)


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """The source of the models: an artifact or a repository.

    Attributes:
        artifact: an artifact written by recsys-export, or its address in an object store, such as
            s3://bucket/ranker.artifact; either artifact or repository is needed.
        repository: a folder of models, each a folder of versions, or its address, such as s3://bucket/models.
        models: models of the repository to serve; empty for all.
        artifact_cache: the folder of this machine to which artifacts and deltas of object stores are copied; None for
            recsys-serving in the user's cache folder.
        artifact_cache_bytes: size up to which the folder may grow; what no server has loaded is removed for new copies,
            least recently used first. 0 for what the disk holds.
    """

    artifact: Path | str | None = None
    repository: Path | str | None = None
    models: tuple[str, ...] = ()
    artifact_cache: Path | None = None
    artifact_cache_bytes: int = bounded(0, 0)

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("artifact", "repository"):
            address = getattr(self, name)
            if isinstance(address, str):
                _check_address(name, address)
        if self.models and self.repository is None and self.artifact is not None:
            raise ValueError(f"models: got {','.join(self.models)} beside an artifact, expected a repository")
        if not all(self.models):
            raise ValueError("models: got an empty name, expected names of models")


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """The process as a whole.

    Attributes:
        engine: "native" (C++), "reference" (Python), or "auto" for native if it is available.
        intra_op_threads: torch's own threads within one operator.
        malloc_tuning: whether the C allocator keeps freed memory for the next batch.
        switch_interval_us: time for which one Python thread may keep another waiting.
    """

    engine: str = "auto"
    intra_op_threads: int = 1
    malloc_tuning: bool = True
    # With Python's default of 5 ms, the event loop could keep an executor waiting for longer than a batch
    # takes.
    switch_interval_us: int = 200

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine: got {self.engine!r}, expected one of {', '.join(ENGINES)}")
        _check_at_least("intra_op_threads", self.intra_op_threads, 1)
        _check_at_least("switch_interval_us", self.switch_interval_us, 1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one recsys-serve process.

    Attributes:
        source: what is served.
        process: the process as a whole.
        server: everything else.
    """

    source: SourceConfig = field(default_factory=SourceConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    server: ServerConfig = field(default_factory=ServerConfig)


def _checked_socket(host: str) -> str:
    """Return the address of a Unix socket as ``unix:PATH``; empty for other addresses."""
    if not host.startswith(_UNIX):
        return ""
    path = host.removeprefix(_UNIX)
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path or path.startswith("//") or path.endswith("/") or "\0" in path:
        raise ValueError(f"host: got {host[:80]!r}, expected {_UNIX}PATH, such as unix:/run/recsys.sock")
    if len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
        raise ValueError(
            f"host: got a path of {len(os.fsencode(path))} bytes, expected at most {_MAX_SOCKET_BYTES}"
        )
    return _UNIX + path


def _checked_host(host: str) -> str:
    """Return an address without the brackets that IPv6 has in URLs."""
    address = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if host.startswith((_UNIX, "unix-abstract:")):
        raise ValueError(
            f"host: got {host[:80]!r}, expected an address such as 127.0.0.1 or ::1; only the gRPC services listen on "
            "Unix sockets, unix:PATH"
        )
    if not address or re.search(r"[\s/\[\]]", address) or re.fullmatch(r"[^:]*:[0-9]*", address):
        raise ValueError(
            f"host: got {host[:80]!r}, expected an address such as 127.0.0.1 or ::1, without a port; that has a "
            "setting of its own"
        )
    return address


def _check_address(name: str, address: str) -> None:
    from recsys.base.remote import parse_address  # the client has no object stores

    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: got {value}, expected at least {least}")


def _check_port(name: str, port: int) -> None:
    if not 0 <= port <= _MAX_PORT:
        raise ValueError(f"{name}: got {port}, expected 0 to {_MAX_PORT}")
