"""The interface of an engine, implemented by ``serve.engine.native`` and ``serve.engine.reference``.

Python loads models, sets routes, swaps versions, writes logs and exposes metrics. The engine owns the
inference port and all work per request: parsing, checks, routing by its table, queue, batches, answers,
counters.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.manifest import Manifest
from recsys.inputs.signature import Signature
from recsys.inputs.sketch import DataSketch
from recsys.rows.memory import RowsPages
from serve.config.bounds import bounded
from serve.config.models import ModelSettings
from serve.config.settings import ConnectionLimits, TlsConfig
from serve.metrics.counters import ModelTotals

if TYPE_CHECKING:
    from serve.engine.routes import RouteTable


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Identity of a model for clients and metrics.

    Attributes:
        name: the name that requests use.
        version: version reported in each response; empty if no repository has named it.
        target: the artifact's target that runs, such as ``cpu``.
        digest: digest of the artifact's manifest.
        table_bytes: bytes of each table's rows, by table.
        format_version: the artifact's format version.
        torch_version: version of torch that the artifact was made with.
        fbgemm_version: version of fbgemm_gpu that the artifact was made with.
        rows_pages: how the rows in host memory are held since they were loaded.
        examples: rows like those of the training, as a request in JSON; empty if none are known.
        data_sketch: what the training data looks like; None if it is not known.
    """

    name: str
    version: str = ""
    target: str = ""
    digest: str = ""
    table_bytes: Mapping[str, int] = field(default_factory=dict)
    format_version: str = ""
    torch_version: str = ""
    fbgemm_version: str = ""
    rows_pages: RowsPages = field(default_factory=RowsPages)
    examples: Mapping[str, Any] = field(default_factory=dict)
    data_sketch: DataSketch | None = None

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> ModelInfo:
        """Return the identity of an artifact. A repository names its version."""
        versions = manifest.versions
        return cls(
            name=manifest.name,
            digest=artifact_digest(manifest),
            table_bytes=manifest.layout.table_bytes,
            format_version=str(manifest.format_version),
            torch_version=versions.get("torch", ""),
            fbgemm_version=versions.get("fbgemm-gpu-cpu") or versions.get("fbgemm-gpu", ""),
            examples=manifest.fitting_examples(),
            data_sketch=manifest.data_sketch,
        )


class Servable(Protocol):
    """One loaded version of a model. Its methods may be called from any thread.

    Attributes:
        info: its identity.
        signature: its inputs and outputs.
        settings: how it is served.
        deltas: names of the delta files that were applied, in order; kept by the model manager.
    """

    info: ModelInfo
    signature: Signature
    settings: ModelSettings
    deltas: list[str]

    def apply_delta(self, path: Path) -> int:
        """Replace rows and dense weights between two batches; blocks.

        Returns:
            Number of dense weights that keep their values although they had changed when the delta was made.

        Raises:
            ArtifactError: the delta is damaged or does not fit. The model is unchanged.
        """
        ...

    def num_owned(self, table: str, ids: NDArray[np.int64]) -> int | None:
        """Return how many raw IDs own a row of a managed table.

        Args:
            table: its name in the signature.
            ids: ``[N]``.

        Returns:
            None if the artifact keeps no mapping of the table beside its rows, or the version was closed.
        """
        ...

    def totals(self) -> ModelTotals:
        """Return a consistent snapshot of its counters."""
        ...

    def close(self) -> None:
        """Answer the accepted requests, end the threads and free the memory; blocks. Idempotent.

        No published route may lead to it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PortSettings:
    """The inference port.

    Attributes:
        host: the address to listen on.
        port: 0 lets the system choose.
        num_threads: threads that poll the port; native engine only.
        connections: limits on connections and messages.
        tls: not set for plain text.
    """

    host: str = "127.0.0.1"
    port: int = bounded(0, 0, 65535)
    num_threads: int = bounded(1, 1, 1024)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    tls: TlsConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """How a request that did not come through the port is read and answered.

    Attributes:
        form: ``recsys`` for a PredictRequest of recsys.v1, ``kserve`` for a ModelInferRequest of Open Inference.
        protocol: the name of its source in records.
        remaining_s: seconds until the deadline; not set for none.
        headers: the request's headers that the engine reads, under lower-case names.
        drew_version: whether the routing drew the message's version, so that the shadow's share applies.
        client: names the client, such as its connection: clients take turns.
    """

    form: str = "recsys"
    protocol: str = "rest"
    remaining_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drew_version: bool = False
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(SubmitOptions):
    """A request that did not come through the inference port, such as from REST or Ray Serve.

    Attributes:
        message: a serialized ``recsys.v1.PredictRequest``, or ``inference.ModelInferRequest``.
    """

    message: bytes


class Handed(NamedTuple):
    """A connection of the HTTP port that the engine hands over.

    Attributes:
        socket: the connection; closing it uncounts it.
        received: what its client has sent, which nobody has answered.
    """

    socket: socket.socket
    received: bytes


@dataclass(frozen=True, kw_only=True)
class HostCall:
    """A method of the inference port that is implemented in Python.

    Attributes:
        answer: maps a message to its answer; an exception becomes the call's status.
        is_stream: whether the method is a stream; each of its messages gets one answer.
    """

    answer: Callable[[bytes], Awaitable[bytes]]
    is_stream: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineCounts:
    """Counters of an engine that belong to no model.

    Attributes:
        unrouted: requests that named no loaded model, by outcome.
        dropped: records lost because their queue was full, by kind (``log``, ``trace``, ``capture``,
            ``answered``, and of these ``inputs``, the ones that were to have their inputs).
        port: counters of the inference port's connections; empty if the engine does not count them.
    """

    unrouted: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    port: Mapping[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Answers requests. All methods belong to the event loop, except ``open``, which blocks.

    Attributes:
        kind: ``native`` or ``reference``.
    """

    kind: str

    @property
    def is_draining(self) -> bool:
        """Whether requests are refused because the server is stopping."""
        ...

    @property
    def num_active(self) -> int:
        """Return the number of requests in progress."""
        ...

    async def listen(self, port: PortSettings, calls: Mapping[str, HostCall]) -> int:
        """Open the inference port.

        Args:
            port: the address and the limits.
            calls: methods implemented in Python, by full name (``/package.Service/Method``).

        Returns:
            The port's number.

        Raises:
            OSError: the port is taken or the address is not this machine's.
            SecurityError: the TLS files cannot be used.
        """
        ...

    def listen_http(
        self, listening: socket.socket, max_json_bytes: int, serve: Callable[[Handed], None]
    ) -> bool:
        """Answer predictions over HTTP/1.1 without TLS, with the inference port's limits.

        Call it once, after ``listen``.

        Args:
            listening: a listening socket. The engine accepts its connections, and goes on where it is closed.
            max_json_bytes: largest JSON of a body.
            serve: takes over connections that send anything but a prediction in its usual form.

        Returns:
            False if the engine answers nothing over HTTP: then ``listening`` is left alone.
        """
        ...

    def open(
        self, name: str, version: str, path: Path, settings: ModelSettings, warm_up: Iterable[bytes] = ()
    ) -> Servable:
        """Load an artifact and warm it up. Blocks; call it in a thread.

        Args:
            name: name of the model.
            version: version of the model.
            path: path of the artifact.
            settings: how to serve it.
            warm_up: captured requests for the warm-up in addition to generated ones, as serialized
                ``recsys.v1.PredictRequest``s; those that do not fit the model are skipped.

        Raises:
            ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
            RuntimeError: the model failed on a warm-up batch.
        """
        ...

    def publish(self, table: RouteTable) -> None:
        """Replace a model's route table."""
        ...

    def withdraw(self, model: str) -> None:
        """Remove a model's route table."""
        ...

    async def submit(self, submitted: Submitted) -> bytes:
        """Return the serialized answer to a request. Cancelling drops the request.

        Raises:
            Exception: any error that ``serve.errors.status_of`` maps to a status.
        """
        ...

    def set_health(self, service: str, is_serving: bool) -> None:
        """Set the status of a service in the port's ``grpc.health.v1.Health``; empty for the whole server."""
        ...

    def counts(self) -> EngineCounts:
        """Return the counters that belong to no model."""
        ...

    def take_records(self) -> None:
        """Pass the records that wait to the observer: those of all requests whose clients have their answer."""
        ...

    def drain(self) -> None:
        """Refuse further requests, also those of open streams; accepted ones are still answered. Idempotent."""
        ...

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all accepted requests are answered and their answers sent, or until the timeout.

        Returns:
            False on timeout.
        """
        ...

    async def close(self) -> None:
        """End the port's remaining calls and close it. Servables stay open."""
        ...
