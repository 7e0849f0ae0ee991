"""Counters and histograms of one loaded version of a model.

Every request calls these methods several times, in the event loop and in the executors' threads. They look up
no labels and format nothing: they add to plain numbers under one lock, in a fraction of a microsecond each.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from recsys.rows.memory import RowsPages
from serve.config.models import BatchLimits

OUTCOMES = (
    "ok",
    "invalid",
    "not_found",
    "rejected",
    "expired",
    "cancelled",
    "unavailable",
    "failed",
)
STAGES = ("queue", "collate", "execute", "respond")
SHADOW_RESULTS = ("same", "different", "failed", "dropped")
CAPTURE_RESULTS = ("written", "dropped", "failed")
#: What becomes of answered requests that the answer log is to have.
ANSWER_RESULTS = ("written", "queue_full", "write_failed")
# States of a version that is in memory, or failed to load. A version that is only in the repository has no
# series.
STATES = ("loading", "ready", "draining", "failed")
# 50 µs to 10 s, in steps of about two: a lookup of one row takes about the first, a queue under overload the
# last.
_SECONDS = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = tuple(float(2**power) for power in range(14))
_IDS = tuple(float(4**power) for power in range(2, 12))


@dataclass(frozen=True, slots=True)
class HistogramTotals:
    """A snapshot of a histogram.

    Attributes:
        bounds: upper bounds of the buckets, ascending; values above the last are in an extra bucket.
        counts: values in each bucket, one more than ``bounds``; not cumulative.
        sum: sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound as text with the number of values up to it; ``+Inf`` last."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Histogram:
    """Counts values by bucket. Not thread-safe: the caller holds a lock around every call.

    Args:
        bounds: upper bounds of the buckets, ascending.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Add a value; one that equals a bound belongs to that bound's bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def totals(self) -> HistogramTotals:
        """Return a snapshot."""
        return HistogramTotals(self._bounds, tuple(self._counts), self._sum)


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Constant properties of a loaded version.

    Attributes:
        target: target of the artifact, such as ``cpu``.
        digest: digest of the artifact's manifest.
        num_executors: maximum number of its batches that run at the same time.
        limits: limits of its queue.
        rows_pages: how the rows in host memory are held since they were loaded.
    """

    target: str
    digest: str
    num_executors: int
    limits: BatchLimits
    rows_pages: RowsPages = field(default_factory=RowsPages)


class ContextCacheTotals(NamedTuple):
    """A snapshot of a version's context cache; all zeros without one.

    Attributes:
        hits: contexts of batches, equal ones of a batch once, whose values it held.
        misses: contexts that were computed.
        evictions: contexts that made room for others.
        entries: contexts that it holds.
        bytes: memory that it holds.
        grown: contexts, missed ones too, that were computed on from what it held before their histories grew.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    entries: int = 0
    bytes: int = 0
    grown: int = 0


NO_CONTEXT_CACHE = ContextCacheTotals()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideRowsTotals:
    """What one version read of the rows outside the process.

    Attributes:
        hits: rows of batches that the cache held.
        misses: those that it did not.
        cache_bytes: bytes that it holds.
        read_bytes: bytes that nodes sent.
        failures: reads of nodes that failed.
        hedged: reads that replicas were asked for too.
        zeros: rows that were answered as zeros.
        seconds: times of batches' reads.
    """

    hits: int = 0
    misses: int = 0
    cache_bytes: int = 0
    read_bytes: int = 0
    failures: int = 0
    hedged: int = 0
    zeros: int = 0
    seconds: HistogramTotals = HistogramTotals((), (0,), 0.0)


NO_OUTSIDE_ROWS = OutsideRowsTotals()


class PendingTotals(NamedTuple):
    """Sizes of the waiting requests of a queue."""

    rows: int = 0
    ids: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTotals:
    """A consistent snapshot of one version's counters.

    Attributes:
        model: the model's name; empty for requests that named no loaded model.
        version: its version.
        outcomes: ended requests by outcome.
        accepted: requests that joined the queue.
        stages: seconds by stage: ``queue`` per request, the others per batch.
        request: seconds of whole answered requests.
        batch_requests: requests per batch.
        batch_rows: rows per batch.
        batch_ids: IDs per batch.
        last_batch_s: when the last batch was counted, in seconds since the epoch; 0 for never.
        pending: sizes of the waiting requests.
        table_bytes: bytes of rows by table.
        shadow: comparisons with the version that answered, by result.
        cut_requests: requests whose rows several executors have computed.
        deltas_applied: table deltas that were applied.
        deltas_failed: table deltas that were refused.
        description: None before ``ModelCounters.describe``.
        context_cache: the context cache.
        outside_rows: rows that were read from nodes.
    """

    model: str
    version: str
    outcomes: dict[str, int]
    accepted: int
    stages: dict[str, HistogramTotals]
    request: HistogramTotals
    batch_requests: HistogramTotals
    batch_rows: HistogramTotals
    batch_ids: HistogramTotals
    last_batch_s: float
    pending: PendingTotals
    table_bytes: dict[str, int]
    shadow: dict[str, int]
    deltas_applied: int = 0
    deltas_failed: int = 0
    cut_requests: int = 0
    description: ModelDescription | None = None
    context_cache: ContextCacheTotals = NO_CONTEXT_CACHE
    outside_rows: OutsideRowsTotals = NO_OUTSIDE_ROWS


class ModelCounters:
    """The counters of one loaded version. Thread-safe.

    Args:
        model: the model's name.
        version: its version.
    """

    def __init__(self, model: str, version: str) -> None:
        self.model = model
        self.version = version
        # Held for well below a microsecond.
        self._lock = threading.Lock()
        self._num_active = 0
        self._all_ended = threading.Condition(self._lock)
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        self._accepted = 0
        self._stages = {stage: Histogram(_SECONDS) for stage in STAGES}
        self._request = Histogram(_SECONDS)
        self._batch_requests = Histogram(_ROWS)
        self._batch_rows = Histogram(_ROWS)
        self._batch_ids = Histogram(_IDS)
        self._last_batch_s = 0.0
        self._pending = (0, 0, 0)
        self._table_bytes: dict[str, int] = {}
        self._shadow = dict.fromkeys(SHADOW_RESULTS, 0)
        self._description: ModelDescription | None = None

    def begin_request(self) -> None:
        """Note that a request was routed to this version, which ``end_request`` ends once it is counted."""
        with self._lock:
            self._num_active += 1

    def end_request(self) -> None:
        """Note that a request has ended here, or was routed elsewhere."""
        with self._lock:
            self._num_active -= 1
            if self._num_active == 0:
                self._all_ended.notify_all()

    def wait_until_ended(self) -> None:
        """Block until every request that has begun has ended."""
        with self._all_ended:
            self._all_ended.wait_for(lambda: self._num_active == 0)

    def count(self, outcome: str) -> None:
        """Count one ended request, by one of ``OUTCOMES``; see ``answered`` for successful ones."""
        with self._lock:
            self._outcomes[outcome] += 1

    def answered(self, seconds: float) -> None:
        """Count one request as ``ok``, with the time from its arrival to its answer."""
        with self._lock:
            self._outcomes["ok"] += 1
            self._request.add(seconds)

    def accepted(self) -> None:
        """Count one request that joined the queue."""
        with self._lock:
            self._accepted += 1

    def observe(self, stage: str, seconds: float) -> None:
        """Add one time to one of ``STAGES``: ``queue`` per request, the others per batch."""
        with self._lock:
            self._stages[stage].add(seconds)

    def observe_stages(self, queue: Iterable[float], collate: float, execute: float, respond: float) -> None:
        """Add all times of one batch, in seconds; cheaper than calling ``observe`` for each.

        Args:
            queue: time of each request.
            collate: time of the batch.
            execute: time of the batch.
            respond: time of the batch.
        """
        stages = self._stages
        with self._lock:
            for seconds in queue:
                stages["queue"].add(seconds)
            stages["collate"].add(collate)
            stages["execute"].add(execute)
            stages["respond"].add(respond)

    def observe_batch(self, num_requests: int, num_rows: int, num_ids: int) -> None:
        """Add one batch."""
        now_s = time.time()
        with self._lock:
            self._batch_requests.add(num_requests)
            self._batch_rows.add(num_rows)
            self._batch_ids.add(num_ids)
            self._last_batch_s = now_s

    def set_pending(self, rows: int, ids: int, num_bytes: int) -> None:
        """Set the sizes of the waiting requests; call it whenever the queue changes."""
        self._pending = (rows, ids, num_bytes)

    def set_table_bytes(self, table_bytes: Mapping[str, int]) -> None:
        """Set the bytes of each table's rows."""
        self._table_bytes = dict(table_bytes)

    def describe(self, description: ModelDescription) -> None:
        """Set the version's description."""
        self._description = description

    def shadow(self, result: str) -> None:
        """Count one answer of this version that was compared with the client's answer.

        Args:
            result: one of ``SHADOW_RESULTS``.
        """
        with self._lock:
            self._shadow[result] += 1

    def totals(self) -> ModelTotals:
        """Return a snapshot of all counters."""
        with self._lock:
            return ModelTotals(
                model=self.model,
                version=self.version,
                outcomes=dict(self._outcomes),
                accepted=self._accepted,
                stages={stage: histogram.totals() for stage, histogram in self._stages.items()},
                request=self._request.totals(),
                batch_requests=self._batch_requests.totals(),
                batch_rows=self._batch_rows.totals(),
                batch_ids=self._batch_ids.totals(),
                last_batch_s=self._last_batch_s,
                pending=PendingTotals(*self._pending),
                table_bytes=self._table_bytes,
                shadow=dict(self._shadow),
                description=self._description,
            )
