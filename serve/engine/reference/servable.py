"""One loaded version of a model: tables, checks, queue and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.artifact.delta import apply as delta
from recsys.artifact.load import LoadedArtifact
from recsys.artifact.mappings import tables_of
from recsys.managed.slots import rows_in
from serve.config.models import ModelSettings
from serve.engine.interface import ModelInfo
from serve.engine.reference.executor import AnsweredBatch, Executor, ServedModel
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.engine.reference.warm_up import captured_batches, warm_up_batches
from serve.errors import ModelChangeError
from serve.metrics.counters import ContextCacheTotals, ModelCounters, ModelDescription, ModelTotals


class ReferenceServable:
    """See ``serve.engine.interface.Servable``. Ready once ``open`` has returned.

    ``close`` waits until every routed request has ended. So the counters are complete when it has closed, and the model
    is not in use any more.

    Args:
        model: runs the batches.
        info: its identity.
        settings: how it is served.
        deliver: takes the answers of a whole batch, in an executor's thread.
    """

    def __init__(
        self,
        model: ServedModel,
        info: ModelInfo,
        settings: ModelSettings,
        deliver: Callable[[AnsweredBatch], None],
    ) -> None:
        self.info, self.signature, self.settings = info, model.signature, settings
        self.deltas: list[str] = []
        self.counters = ModelCounters(info.name, info.version)
        self.checker = RequestChecker(
            model.signature, settings.limits, allow_non_finite=settings.allow_non_finite
        )
        self.executor = Executor(model, info, settings, self.counters, deliver)
        self._model: ServedModel | None = model
        self._contexts = model.contexts if isinstance(model, LoadedArtifact) else None

    def open(self, warm_up: Iterable[bytes] = ()) -> None:
        """Start the threads and warm them up; blocks.

        Args:
            warm_up: captured requests for the warm-up in addition to generated ones, as serialized
                ``PredictRequest``s.

        Raises:
            RuntimeError: the model failed on a warm-up batch. All threads have ended.
        """
        try:
            self.executor.start(self._warm_up(warm_up))
            self.executor.wait_until_warm()
            if self._contexts is not None:
                self._contexts.reset_counts()
        except BaseException:
            self.close()
            raise
        self.counters.set_table_bytes(self.info.table_bytes)
        self.counters.describe(
            ModelDescription(
                target=self.info.target,
                digest=self.info.digest,
                num_executors=self.settings.max_executors,
                limits=self.settings.limits,
                rows_pages=self.info.rows_pages,
            )
        )

    def _warm_up(self, captured: Iterable[bytes]) -> list[list[CheckedRequest]]:
        limits, model = self.settings.limits, self._model
        verified = model.manifest.verified_rows() if isinstance(model, LoadedArtifact) else None
        return [
            *warm_up_batches(self.signature, limits, verified),
            *captured_batches(captured, self.checker, limits),
        ]

    def apply_delta(self, path: Path) -> int:
        """See ``Servable``."""
        model = self._model
        if not isinstance(model, LoadedArtifact):
            raise ModelChangeError("only artifacts take deltas")
        prepared = delta.prepare(model.rows, path)

        def apply() -> None:
            # The undo data is dropped: it holds each row twice, and a rollback goes to another version.
            delta.apply(prepared)

        self.executor.run_between_batches(apply)
        return prepared.num_dense_left

    def num_owned(self, table: str, ids: NDArray[np.int64]) -> int | None:
        """See ``Servable``."""
        model = self._model
        mapped = tables_of(model.rows.mappings).get(table) if isinstance(model, LoadedArtifact) else None
        if mapped is None:
            return None
        return int((rows_in(mapped.slots, torch.from_numpy(ids.copy())) >= 0).sum())

    def totals(self) -> ModelTotals:
        """See ``Servable``."""
        totals, contexts = self.counters.totals(), self._contexts
        if contexts is None:
            return totals
        return replace(totals, context_cache=ContextCacheTotals(**contexts.counts()))

    def close(self) -> None:
        """See ``Servable``."""
        self.executor.close()
        self.counters.wait_until_ended()
        self._model = None
        if self._contexts is not None:
            self._contexts.clear()
