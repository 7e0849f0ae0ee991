"""The server's interface for REST, the admin port, Ray, and the calls that Python answers."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from serve.engine.interface import Engine, Servable
from serve.engine.records import EndedRequest, Observer
from serve.errors import kind_of, status_of
from serve.metrics.registry import Metrics
from serve.models.manager import ModelManager
from serve.quality.monitor import LabelledQuality


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The parts of one server. Belongs to its event loop.

    Attributes:
        engine: answers requests.
        manager: the model manager.
        metrics: the metrics.
        observer: takes records of requests.
        quality: keeps answers for labels; None where that is off.
    """

    engine: Engine
    manager: ModelManager
    metrics: Metrics
    observer: Observer
    quality: LabelledQuality | None = None

    def servable(self, model: str = "", version: str = "") -> Servable:
        """Return the servable for a request; without a version it is drawn by the canary's share.

        Raises:
            ModelNotFoundError: The model or version does not exist.
            NotReadyError: no version of the model is ready.
        """
        return self.manager.route(model, version, random.random()).primary

    def is_keyed(self, model: str) -> bool:
        """Return whether a key of each request decides which version answers it."""
        table = self.manager.routes.table(model)
        return table is not None and table.plan.is_keyed

    def refused(self, error: Exception, protocol: str, servable: Servable | None = None) -> None:
        """Count a request that was refused before it reached the engine.

        Args:
            error: the reason.
            protocol: the protocol's name in logs and traces.
            servable: the servable that would have answered it; None if not known.
        """
        code, text = status_of(error)
        outcome = kind_of(error).outcome
        model, version = ("", "") if servable is None else (servable.info.name, servable.info.version)
        self.metrics.refused(outcome, model, version)
        sampling = self.observer.sampling
        is_logged, is_traced = sampling.is_logged(outcome), sampling.is_traced("", random.random())
        if is_logged or is_traced:
            now_s = time.monotonic()
            self.observer.ended(
                EndedRequest(
                    trace_parent="",
                    protocol=protocol,
                    model=model,
                    version=version,
                    request_id="",
                    outcome=outcome,
                    code=code.name,
                    reason=text,
                    started_s=now_s,
                    ended_s=now_s,
                    is_logged=is_logged,
                    is_traced=is_traced,
                )
            )
