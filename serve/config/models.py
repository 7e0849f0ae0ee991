"""How models are served: limits, priorities, routing. Checked once, when they are read.

Help texts are made from the docstrings of these classes (serve/config/options.py).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.rows.memory import RowsMemory
from serve.config.bounds import bounded, check_bounds

if TYPE_CHECKING:  # clients read settings too, without torch
    from recsys.artifact.cuda.graphs import CudaGraphOptions

LATEST = "latest"
_FEATURE, _HEADER = "feature:", "header:"
# A gRPC metadata key; values of keys that end in -bin are no text.
_HEADER_NAME = re.compile(r"[0-9a-z_.-]+(?<!-bin)")


class Priority(IntEnum):
    """How urgent a request is."""

    HIGH = 1
    NORMAL = 2
    LOW = 3


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """Bounds on requests, batches and the queue.

    A request may be larger than a batch (it runs alone then), but not larger than the queue.

    Attributes:
        max_batch_rows: rows of one batch; a request without rows counts as one row, here and below.
        max_batch_ids: IDs of one batch, over all sparse inputs.
        max_request_rows: rows of one request.
        max_request_ids: IDs of one request.
        max_queue_rows: rows that may wait.
        max_queue_ids: IDs that may wait.
        max_queue_bytes: serialized bytes of requests that may wait; a larger request is refused.
        max_delay_us: time that the oldest request may wait for others to fill its batch while an executor is
            free; 0 for none.
        priority_window_us: how much later a request may arrive and still overtake one that is one level less
            urgent; 0 keeps the order of arrival.

    Raises:
        ValueError: a limit is below its minimum, or a request could be larger than the queue.
    """

    max_batch_rows: int = bounded(512, 1)
    max_batch_ids: int = bounded(1 << 18, 1)
    max_request_rows: int = bounded(4096, 1)
    max_request_ids: int = bounded(1 << 18, 1)
    max_queue_rows: int = bounded(8192, 1)
    max_queue_ids: int = bounded(1 << 22, 1)
    max_queue_bytes: int = bounded(256 << 20, 1)
    max_delay_us: int = bounded(0, 0)
    priority_window_us: int = bounded(100_000, 0)

    def __post_init__(self) -> None:
        check_bounds(self)
        for what in ("rows", "ids"):
            request, queue = getattr(self, f"max_request_{what}"), getattr(self, f"max_queue_{what}")
            if request > queue:
                raise ValueError(
                    f"max_request_{what}: got {request}, expected at most max_queue_{what} ({queue}), "
                    "or such a request could never be taken in"
                )


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The routing that an operator sets.

    Attributes:
        serve: ``latest``, or a version to pin.
        canary: a version that answers a share of the requests; empty for none.
        canary_percent: that share, above 0 to 100.
        canary_key: what keeps a client with one version: ``feature:NAME`` or ``header:NAME``; empty to draw for
            each request.
        shadow: a version that also computes a share of the requests, without answering them; empty for none.
        shadow_percent: that share, above 0 to 100.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    serve: str = LATEST
    canary: str = ""
    canary_percent: float = 0.0
    canary_key: str = ""
    shadow: str = ""
    shadow_percent: float = 0.0

    def __post_init__(self) -> None:
        if not self.serve:
            raise ValueError("serve: got an empty text, expected latest or a version")
        for name in ("canary", "shadow"):
            version, percent = getattr(self, name), getattr(self, f"{name}_percent")
            if version and not 0 < percent <= 100:
                raise ValueError(f"{name}_percent: got {percent}, expected above 0, up to 100")
            if not version and percent:
                raise ValueError(f"{name}: got no version for {percent} percent of the requests")
            if version and version in (self.serve, LATEST):
                raise ValueError(
                    f"{name}: got {version!r}, expected another version than the one that serves"
                )
        if self.canary_key:
            _check_key(self.canary_key)
            if not self.canary:
                raise ValueError(f"canary: got no version for canary_key {self.canary_key!r}")

    @property
    def key_feature(self) -> str:
        """Return the sparse input whose first ID is the key; empty for none."""
        return self.canary_key.removeprefix(_FEATURE) if self.canary_key.startswith(_FEATURE) else ""

    @property
    def key_header(self) -> str:
        """Return the header whose value is the key; empty for none."""
        return self.canary_key.removeprefix(_HEADER) if self.canary_key.startswith(_HEADER) else ""

    @property
    def named(self) -> frozenset[str]:
        """Return the versions that it names."""
        return frozenset({self.serve, self.canary, self.shadow} - {"", LATEST})

    def without(self, version: str) -> Routing:
        """Return the same routing with ``version`` removed as canary and shadow."""
        canary = "" if self.canary == version else self.canary
        shadow = "" if self.shadow == version else self.shadow
        return Routing(
            serve=self.serve,
            canary=canary,
            canary_percent=self.canary_percent if canary else 0.0,
            canary_key=self.canary_key if canary else "",
            shadow=shadow,
            shadow_percent=self.shadow_percent if shadow else 0.0,
        )

    def pinned(self, version: str) -> Routing:
        """Return the same routing with ``version`` serving, and neither canary nor shadow."""
        return replace(self.without(version), serve=version)


def _check_key(key: str) -> None:
    """Raise ValueError for a key that is neither a sparse input nor a header."""
    kind, _, name = key.partition(":")
    if kind not in ("feature", "header") or not name:
        raise ValueError(f"canary_key: got {key!r}, expected feature:NAME, a sparse input, or header:NAME")
    if kind == "header" and not _HEADER_NAME.fullmatch(name):
        raise ValueError(
            f"canary_key: got {key!r}, expected a header in lower case that does not end in -bin"
        )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How one model is served.

    Attributes:
        limits: limits of requests, batches and the queue.
        routing: which version answers.
        target: the artifact's target to run; None for the first whose devices this machine has.
        verify_checksums: whether to read and check every byte of the rows before serving.
        copy_rows: whether to copy the rows into the process's memory, on huge pages where the system has them, where
            changes to the file cannot reach them; otherwise the file is mapped, and processes share its pages.
        lock_rows: whether to lock the rows in memory.
        numa: NUMA nodes of copied rows: "interleave" over all, or "local" to the thread that loads them; None for the
            system's choice.
        random_access: whether mapped rows are read from the file in single pages, without their neighbours; None for
            rows of more than three quarters of the memory.
        allow_non_finite: whether NaN and infinities are accepted in dense inputs and weights.
        context_cache_bytes: memory of each version for what its program computes of contexts alone; the values of a
            context that is asked about again are taken from it. 0 for none.
        rows: Redis or Valkey nodes, such as redis://host:6379,other:6379, that hold the rows of large tables;
            ``recsys-export --push-rows`` fills them. Empty: all rows are read from the artifact. Native engine only.
        rows_replicas: a replica of each of these nodes, in the same order; one that is late is read there too.
        rows_over_bytes: tables with more bytes of rows are read from the nodes.
        rows_cache_bytes: memory of each version for such rows that are read often.
        rows_deadline_ms: milliseconds that a batch waits for its rows.
        rows_hedge_ms: milliseconds after which replicas are asked too.
        rows_zero: tables whose rows count as zeros where they cannot be read in time; requests that need rows of others
            end as UNAVAILABLE then.
        num_executors: maximum number of the model's batches that run at the same time; they share its tables'
            memory. The engine decides how many run. 0 for the number of processors that the process may use.
        cpus: processors that its executors may use; empty for all.
        warm_up: a file of captured requests for the warm-up, in addition to generated ones; None for none.
        keep_previous: whether the previously serving version stays in memory, so that a rollback is instant.
        deltas: a stream of deltas to apply as they appear, each after its predecessor: a folder, s3://BUCKET/FOLDER (or
            gs, az), or kafka://HOST:PORT/TOPIC; None for none.
        poll_deltas_s: interval between looks into that stream; Kafka's messages are noticed when they arrive, too.
        delta_cache: a folder for deltas that are downloaded from stores and Kafka; None for one in the user's cache.
        delta_cache_bytes: bytes that the downloaded deltas of one model may take.
        cuda_graph_rows: numbers of rows, such as 1,8,32,128, to which batches on a CUDA device are padded so that they
            run as CUDA graphs; empty for none. Larger batches run without. Reference engine only.
        cuda_graph_ids_per_row: IDs for each of these rows that a batch may hold in all, 1024 at least; 0 for four for
            each sparse input. Batches with more run without.

    Raises:
        ValueError: a setting is out of its range; the text names it.
    """

    limits: BatchLimits = field(default_factory=BatchLimits)
    routing: Routing = field(default_factory=Routing)
    target: str | None = None
    verify_checksums: bool = True
    copy_rows: bool = False
    lock_rows: bool = False
    numa: str | None = None
    random_access: bool | None = None
    allow_non_finite: bool = False
    context_cache_bytes: int = bounded(0, 0)
    rows: str = ""
    rows_replicas: str = ""
    rows_over_bytes: int = bounded(1 << 30, 0)
    rows_cache_bytes: int = bounded(256 << 20, 0)
    rows_deadline_ms: int = bounded(20, 1)
    rows_hedge_ms: int = bounded(5, 1)
    rows_zero: tuple[str, ...] = ()
    num_executors: int = 0
    cpus: tuple[int, ...] = ()
    warm_up: Path | None = None
    keep_previous: bool = True
    deltas: Path | str | None = None
    poll_deltas_s: float = 10.0
    delta_cache: Path | None = None
    delta_cache_bytes: int = bounded(8 << 30, 1)
    cuda_graph_rows: tuple[int, ...] = ()
    cuda_graph_ids_per_row: int = 0

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.deltas is not None:
            from recsys.streams.address import parse_stream_address  # the client has no streams

            try:
                parse_stream_address(self.deltas)
            except ValueError as error:
                raise ValueError(f"deltas: {error}") from None
        if not 0 < self.poll_deltas_s < math.inf:
            raise ValueError(f"poll_deltas_s: got {self.poll_deltas_s}, expected more than 0")
        if self.num_executors < 0:
            raise ValueError(f"num_executors: got {self.num_executors}, expected at least 0")
        if any(cpu < 0 for cpu in self.cpus):
            raise ValueError(f"cpus: got {list(self.cpus)}, expected numbers of processors, from 0")
        if self.target == "":
            raise ValueError("target: got an empty text, expected the name of a target such as cpu")
        _ = self.rows_memory
        if self.rows or self.rows_replicas:
            self._check_rows()
        if self.cuda_graph_rows or self.cuda_graph_ids_per_row:
            _ = self.cuda_graphs

    def _check_rows(self) -> None:
        from recsys.artifact.store.address import StoreAddressError, parse_nodes  # clients read no rows

        counts = {}
        for name in ("rows", "rows_replicas"):
            if getattr(self, name):
                try:
                    counts[name] = len(parse_nodes(getattr(self, name)))
                except StoreAddressError as error:
                    raise ValueError(f"{name}: {error}") from None
        if len({*counts.values(), counts.get("rows", 0)}) > 1:
            raise ValueError(
                f"rows_replicas: got {counts['rows_replicas']}, expected one for each of {counts.get('rows', 0)} "
                "nodes of rows"
            )
        if self.rows and (self.copy_rows or self.lock_rows):
            raise ValueError("rows: got nodes and copy_rows or lock_rows, which need all rows in memory")

    @property
    def rows_memory(self) -> RowsMemory:
        """Return how the rows are held."""
        return RowsMemory(
            copy_rows=self.copy_rows,
            lock_rows=self.lock_rows,
            numa=self.numa,
            random_access=self.random_access,
        )

    @property
    def cuda_graphs(self) -> CudaGraphOptions:
        """Return which batches run as CUDA graphs."""
        from recsys.artifact.cuda.graphs import CudaGraphOptions  # imports torch

        return CudaGraphOptions(rows=self.cuda_graph_rows, ids_per_row=self.cuda_graph_ids_per_row)

    @property
    def max_executors(self) -> int:
        """Return ``num_executors``, or the number of processors if it is 0."""
        from recsys.base.machine import num_processors  # clients read settings too, without torch

        return self.num_executors or len(self.cpus) or num_processors()
