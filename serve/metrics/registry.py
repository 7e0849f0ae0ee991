"""The server's metrics, in a Prometheus registry of their own.

Engines count per request; what Python does outside them (refusals by other ports, comparisons of shadows,
deltas) is counted here. ``serve.metrics.collector`` turns both into metric families.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from serve.metrics.collector import MetricsCollector
from serve.metrics.counters import OUTCOMES, STATES, ModelTotals
from serve.metrics.streams import StreamStatus


class Counted(Protocol):
    """An object with the counters of one loaded version: a servable."""

    def totals(self) -> ModelTotals:
        """Return a consistent snapshot of the counters."""
        ...


@dataclass(slots=True, kw_only=True)
class _Loaded:
    """A loaded version, with the counters and the stream of deltas that Python keeps for it."""

    counted: Counted
    outcomes: Counter[str] = field(default_factory=Counter)
    shadow: Counter[str] = field(default_factory=Counter)
    deltas: Counter[str] = field(default_factory=Counter)
    stream: StreamStatus | None = None

    def totals(self) -> ModelTotals:
        """Return the counters of both, merged."""
        totals = self.counted.totals()
        return replace(
            totals,
            outcomes={outcome: n + self.outcomes[outcome] for outcome, n in totals.outcomes.items()},
            shadow={result: n + self.shadow[result] for result, n in totals.shadow.items()},
            deltas_applied=totals.deltas_applied + self.deltas["applied"],
            deltas_failed=totals.deltas_failed + self.deltas["failed"],
        )


class EngineCounts(Protocol):
    """An engine's counters that belong to no model; see ``serve.engine.interface.EngineCounts``."""

    @property
    def unrouted(self) -> Mapping[str, int]: ...

    @property
    def dropped(self) -> Mapping[str, int]: ...

    @property
    def port(self) -> Mapping[str, int]: ...


class Metrics:
    """All metrics of one server. Thread-safe.

    Args:
        now: returns the present time in seconds since the epoch.

    Attributes:
        registry: the registry that ``MetricsServer`` exposes.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._loaded: dict[tuple[str, str], _Loaded] = {}
        self._states: dict[tuple[str, str], str] = {}
        self._watched: dict[str, list[Callable[[], Mapping[str, int]]]] = {}
        self._unrouted = Counter[str]()
        # Sums of the counters of unloaded versions.
        self._gone = Counter[str]()
        self.registry.register(MetricsCollector(self, now))
        ProcessCollector(registry=self.registry)

    def add(self, counted: Counted) -> None:
        """Add a loaded version's counters. Of an earlier load of the same version only the sums remain."""
        totals = counted.totals()
        with self._lock:
            self._leave(self._loaded.pop((totals.model, totals.version), None))
            self._loaded[totals.model, totals.version] = _Loaded(counted=counted)

    def drop(self, counted: Counted) -> None:
        """Remove the series of a closed version; ``outcomes`` still counts its requests.

        Ignored if the version has been loaded again since, or was never added.
        """
        totals = counted.totals()
        with self._lock:
            loaded = self._loaded.get((totals.model, totals.version))
            if loaded is not None and loaded.counted is counted:
                self._leave(self._loaded.pop((totals.model, totals.version)))

    def _leave(self, loaded: _Loaded | None) -> None:
        """Keep the sums of a removed version. The caller holds the lock."""
        if loaded is not None:
            totals = loaded.totals()
            self._gone.update(totals.outcomes)
            self._gone["accepted"] += totals.accepted

    def set_state(self, name: str, version: str, state: str) -> None:
        """Set a version's state: one of ``STATES``, or ``available`` if it is only in the repository."""
        with self._lock:
            if state in STATES:
                self._states[name, version] = state
            else:
                self._states.pop((name, version), None)

    def refused(self, outcome: str, model: str = "", version: str = "") -> None:
        """Count one request that Python refused before an engine saw it.

        Args:
            outcome: one of ``OUTCOMES``.
            model: the requested model; empty if not known.
            version: the requested version.
        """
        with self._lock:
            loaded = self._loaded.get((model, version))
            counts = self._unrouted if loaded is None else loaded.outcomes
            counts[outcome] += 1

    def shadow(self, model: str, version: str, result: str) -> None:
        """Count one compared answer of a shadow: one of ``SHADOW_RESULTS``."""
        with self._lock:
            if (model, version) in self._loaded:
                self._loaded[model, version].shadow[result] += 1

    def delta(self, model: str, version: str, result: str) -> None:
        """Count one delta of a version: ``applied`` or ``failed``."""
        with self._lock:
            if (model, version) in self._loaded:
                self._loaded[model, version].deltas[result] += 1

    def set_stream(self, model: str, version: str, status: StreamStatus) -> None:
        """Set the status of a loaded version's stream of deltas."""
        with self._lock:
            if (model, version) in self._loaded:
                self._loaded[model, version].stream = status

    def watch(self, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Register a reader of counts, called on each collection; counts of one kind are summed.

        Args:
            what: ``capture``, ``answers``, ``log``, ``trace``, ``unrouted`` or ``port``.
            read: returns counts by result (``capture``: ``CAPTURE_RESULTS``; ``answers``: ``ANSWER_RESULTS``;
                ``unrouted``: ``OUTCOMES``; ``port``: those of ``EngineCounts``; else ``dropped``).
        """
        self._watched.setdefault(what, []).append(read)

    def watch_engine(self, read: Callable[[], EngineCounts]) -> None:
        """Register the reader of an engine's counts."""
        self.watch("unrouted", lambda: read().unrouted)
        self.watch("port", lambda: read().port)
        self.watch("answers", lambda: {"queue_full": read().dropped.get("inputs", 0)})
        for what in ("log", "trace", "capture"):
            self.watch(what, lambda what=what: {"dropped": read().dropped.get(what, 0)})  # type: ignore[misc]

    def outcomes(self) -> dict[str, int]:
        """Return the total requests of all models by outcome, and those ``accepted`` into a queue."""
        unrouted = self.read_unrouted()
        with self._lock:
            sums = self._gone.copy()
            for loaded in self._loaded.values():
                totals = loaded.totals()
                sums.update(totals.outcomes)
                sums["accepted"] += totals.accepted
        sums.update(unrouted)
        return {name: sums[name] for name in (*OUTCOMES, "accepted")}

    def read(self) -> tuple[list[ModelTotals], dict[tuple[str, str], str]]:
        """Return the counters of every loaded version, and the state of every version that has one."""
        with self._lock:
            return [loaded.totals() for loaded in self._loaded.values()], dict(self._states)

    def read_streams(self) -> dict[tuple[str, str], StreamStatus]:
        """Return the status of the stream of deltas of every loaded version that has one."""
        with self._lock:
            return {key: one.stream for key, one in self._loaded.items() if one.stream is not None}

    def read_unrouted(self) -> dict[str, int]:
        """Return the number of requests that named no loaded model, by outcome."""
        counts = Counter(self.read_watched().get("unrouted", {}))
        with self._lock:
            counts.update(self._unrouted)
        return {outcome: counts[outcome] for outcome in OUTCOMES}

    def read_watched(self) -> dict[str, dict[str, int]]:
        """Return the current counts of the readers that ``watch`` registered."""
        sums: dict[str, Counter[str]] = {what: Counter() for what in self._watched}
        for what, reads in self._watched.items():
            for read in reads:
                sums[what].update(read())
        return {what: dict(counts) for what, counts in sums.items()}
