"""What the server counts and times, for Prometheus, in a registry of its own.

A version's ``ModelMetrics`` adds to plain numbers; ``serve.metrics_collector`` turns them into Prometheus' families
when somebody asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.process_collector import ProcessCollector

from serve.metrics_collector import MetricsCollector
from serve.model_metrics import OUTCOMES, STATES, ModelMetrics, ModelTotals


class Metrics:
    """All metrics of one server. Thread-safe.

    Attributes:
        registry: what ``MetricsServer`` shows.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._states: dict[tuple[str, str], str] = {}
        self._watched: dict[str, Callable[[], Mapping[str, int]]] = {}
        self._unrouted = dict.fromkeys(OUTCOMES, 0)
        # What versions that are gone have counted, and still count where somebody holds their ModelMetrics.
        self._gone = ModelMetrics("", "", self._lock)
        self.registry.register(MetricsCollector(self))
        ProcessCollector(registry=self.registry)

    def model(self, name: str, version: str) -> ModelMetrics:
        """The numbers of a version that has begun and was not dropped."""
        with self._lock:
            return self._models[name, version]

    def begin(self, name: str, version: str) -> ModelMetrics:
        """The numbers of a version that is being loaded: all zero, also where an earlier load of it is not gone yet."""
        made = ModelMetrics(name, version, self._lock)
        with self._lock:
            self._keep_counts(self._models.get((name, version)))
            self._models[name, version] = made
        return made

    def drop(self, model: ModelMetrics) -> None:
        """Let the series of a version that was unloaded disappear; ``outcomes`` still counts its requests.

        Where the version has begun anew meanwhile, its series are the new one's, and stay.
        """
        key = (model.model, model.version)
        with self._lock:
            if self._models.get(key) is model:
                self._keep_counts(self._models.pop(key))

    def _keep_counts(self, model: ModelMetrics | None) -> None:
        """Let what a version has counted, and still counts, be among what is gone. The caller holds the lock."""
        if model is None:
            return
        gone = self._gone
        for outcome, count in model._outcomes.items():
            gone._outcomes[outcome] += count
        gone._totals["accepted"] += model._totals["accepted"]
        model._outcomes, model._totals = gone._outcomes, gone._totals

    def set_state(self, name: str, version: str, state: str) -> None:
        """Say how far a version is: one of ``STATES``, or ``available`` for one that only lies in the repository."""
        with self._lock:
            if state in STATES:
                self._states[name, version] = state
            else:
                self._states.pop((name, version), None)

    def unrouted(self, outcome: str) -> None:
        """Count one request that named no model that the server holds: ``not_found``, or ``invalid`` bytes."""
        with self._lock:
            self._unrouted[outcome] += 1

    def watch(self, what: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Read counts that others keep, whenever the metrics are read.

        Args:
            what: ``capture``, ``log`` or ``trace``.
            read: returns counts by result (for ``capture``: ``CAPTURE_RESULTS``; else ``dropped``).
        """
        self._watched[what] = read

    def outcomes(self) -> dict[str, int]:
        """Requests so far by outcome, and how many were ``accepted`` into a queue, over all models, also past ones."""
        with self._lock:
            models = [*self._models.values(), self._gone]
            counts = [self._unrouted, *(model._outcomes for model in models)]
            totals = {outcome: sum(count[outcome] for count in counts) for outcome in OUTCOMES}
            return {**totals, "accepted": sum(model._totals["accepted"] for model in models)}

    def read(self) -> tuple[list[ModelTotals], dict[tuple[str, str], str]]:
        """The numbers of every loaded version, and the state of every version that has one; for the collector."""
        with self._lock:
            return [model._read() for model in self._models.values()], dict(self._states)

    def read_unrouted(self) -> dict[str, int]:
        """Requests that named no model that the server holds, by outcome."""
        with self._lock:
            return dict(self._unrouted)

    def read_watched(self) -> dict[str, dict[str, int]]:
        """What ``watch`` was given, read now."""
        return {what: dict(read()) for what, read in self._watched.items()}
