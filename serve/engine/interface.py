"""What Python asks of an engine. There are two: ``serve.engine.native`` and ``serve.engine.reference``.

Python steers: it loads, routes, swaps, logs and shows. The engine owns the inference port, and whatever happens per
request: parsing, checks, routing by the table that it was given, queue, batches, answers, counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from recsys.artifact.loaded_rows import artifact_digest
from recsys.artifact.manifest import FORMAT_VERSION, Manifest
from recsys.signature import Signature
from serve.config.models import ModelSettings
from serve.config.settings import ConnectionLimits, TlsConfig
from serve.metrics.counters import ModelTotals

if TYPE_CHECKING:
    from serve.engine.routes import RouteTable


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """How a model presents itself to clients and in the metrics.

    Attributes:
        name: requests may name it.
        version: stands in each response.
        target: which of the artifact's targets runs, such as ``cpu``.
        digest: of the artifact's manifest.
        table_bytes: bytes of each table's rows, by table.
        format_version: of the artifact.
        torch_version: that the artifact was made with.
        fbgemm_version: that the artifact was made with.
    """

    name: str
    version: str
    target: str = ""
    digest: str = ""
    table_bytes: Mapping[str, int] = field(default_factory=dict)
    format_version: str = ""
    torch_version: str = ""
    fbgemm_version: str = ""

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> ModelInfo:
        """Return how an artifact presents itself. Its version is the digest of its manifest."""
        table_bytes: Counter[str] = Counter()
        for block in manifest.layout.blocks:
            table_bytes[block.table] += block.num_bytes
        versions = manifest.versions
        return cls(
            name=manifest.name,
            version=artifact_digest(manifest),
            digest=artifact_digest(manifest),
            table_bytes=table_bytes,
            format_version=str(FORMAT_VERSION),
            torch_version=versions.get("torch", ""),
            fbgemm_version=versions.get("fbgemm-gpu-cpu") or versions.get("fbgemm-gpu", ""),
        )


class Servable(Protocol):
    """One loaded version of a model. Its methods may be called from any thread.

    Attributes:
        info: how it presents itself.
        signature: its inputs and outputs.
        settings: how it is served.
        deltas: names of the delta files that were applied, in order; kept by the model manager.
    """

    info: ModelInfo
    signature: Signature
    settings: ModelSettings
    deltas: list[str]

    def apply_delta(self, path: Path) -> int:
        """Exchange rows between two batches; blocks.

        Returns:
            How many dense weights stay as they were exported, although they had changed when the delta was made.

        Raises:
            ArtifactError: the delta is damaged or does not fit. Nothing has changed then.
        """
        ...

    def totals(self) -> ModelTotals:
        """Return its numbers, all of one moment."""
        ...

    def close(self) -> None:
        """Answer what was accepted, end the threads and free the memory; blocks. Idempotent.

        No route may lead to it any more.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class PortSettings:
    """The inference port.

    Attributes:
        host: the address to listen on.
        port: 0 lets the system choose.
        limits: what clients may hold of it.
        tls: None for plain text.
    """

    host: str
    port: int
    limits: ConnectionLimits
    tls: TlsConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A request from another door than the port, such as REST or Ray Serve.

    Attributes:
        message: a serialized ``recsys.v1.PredictRequest``, or ``inference.ModelInferRequest``.
        form: ``recsys`` or ``kserve``: which of the two.
        protocol: the door's name in logs and traces.
        remaining_s: until the deadline; None for none.
        trace_parent: the W3C ``traceparent`` header; empty where the client sent none.
        drew_version: whether the message's version was drawn by the routing, so that the shadow's share applies.
    """

    message: bytes
    form: str = "recsys"
    protocol: str = "rest"
    remaining_s: float | None = None
    trace_parent: str = ""
    drew_version: bool = False


@dataclass(frozen=True, kw_only=True)
class RareCall:
    """A method of the inference port that Python answers.

    Attributes:
        answer: from the message to the answer; what it raises becomes the call's status.
        is_stream: whether the method is a stream; each message then gets one answer.
    """

    answer: Callable[[bytes], Awaitable[bytes]]
    is_stream: bool = False


@dataclass(frozen=True, kw_only=True)
class EngineCounts:
    """Numbers of an engine that belong to no model.

    Attributes:
        unrouted: requests that named no model that the server holds, by outcome.
        dropped: records that were lost because nobody took them in time, by kind (``log``, ``trace``, ``capture``).
        port: what happened on the inference port's connections; empty where the engine does not count it.
    """

    unrouted: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    port: Mapping[str, int] = field(default_factory=dict)


class Engine(Protocol):
    """Answers requests. All methods belong to the event loop, but for ``open``, which blocks.

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
        """Return how many requests are being answered."""
        ...

    async def listen(self, port: PortSettings, calls: Mapping[str, RareCall]) -> int:
        """Open the inference port.

        Args:
            port: where, and within which limits.
            calls: by full name (``/package.Service/Method``) the methods that Python answers.

        Returns:
            The port's number.

        Raises:
            OSError: the port is taken or the address is not this machine's.
            SecurityError: the TLS files cannot be used.
        """
        ...

    def open(
        self, name: str, version: str, path: Path, settings: ModelSettings, warm_up: Iterable[bytes] = ()
    ) -> Servable:
        """Load an artifact and warm it up; blocks, in a thread of the caller's.

        Args:
            name: of the model.
            version: of the model.
            path: of the artifact.
            settings: how to serve it.
            warm_up: captured requests to warm up with beside made ones, as serialized ``recsys.v1.PredictRequest``s;
                those that do not fit the model are left out.

        Raises:
            ArtifactError: the artifact is damaged, foreign, newer, or has no such target.
            RuntimeError: the model failed on a warm-up batch.
        """
        ...

    def publish(self, table: RouteTable) -> None:
        """Route the requests of a model by a new table from now on."""
        ...

    def withdraw(self, model: str) -> None:
        """Forget a model."""
        ...

    async def submit(self, submitted: Submitted) -> bytes:
        """Answer a request from another door, with the answer's message. Cancelling gives the request up.

        Raises:
            Exception: what ``serve.errors.status_of`` has a status for.
        """
        ...

    def set_health(self, service: str, is_serving: bool) -> None:
        """Set what the port's ``grpc.health.v1.Health`` says of a service; empty for the server as a whole."""
        ...

    def counts(self) -> EngineCounts:
        """Return the numbers that belong to no model."""
        ...

    def drain(self) -> None:
        """Refuse requests from now on, those of open streams too; what was accepted is answered."""
        ...

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until all accepted requests are answered and their answers are on their way, or for so long.

        Returns:
            Whether they are.
        """
        ...

    async def close(self) -> None:
        """End what is left of the port's calls and close it; servables stay open."""
        ...
