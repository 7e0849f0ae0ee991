"""What Open Inference's clients may know of models and versions: their states, and what they have counted."""

from __future__ import annotations

from collections.abc import Sequence

from serve.gateway import Gateway
from serve.histogram import HistogramTotals
from serve.model_metrics import ModelTotals
from serve.status import ModelState, ModelStatus, ModelVersionStatus
from serve.wire import open_inference_pb2 as wire

READY = "READY"
UNAVAILABLE = "UNAVAILABLE"
# Triton's words for our states.
_STATES = {ModelState.READY: READY, ModelState.LOADING: "LOADING", ModelState.DRAINING: "UNLOADING"}
_NS_PER_S = 1e9
_MS_PER_S = 1e3


def repository_index(statuses: Sequence[ModelStatus], only_ready: bool) -> wire.RepositoryIndexResponse:
    """All versions of all models; or those that are ready."""
    response = wire.RepositoryIndexResponse()
    for status in statuses:
        for version in status.versions:
            state = _STATES.get(version.state, UNAVAILABLE)
            if state == READY or not only_ready:
                response.models.add(
                    name=status.model, version=version.version, state=state, reason=_reason(version)
                )
    return response


def loaded_versions(gateway: Gateway, model: str) -> list[str]:
    """The versions of a model that answer."""
    return [
        version.version
        for status in gateway.manager.statuses()
        if status.model == model
        for version in status.versions
        if version.state is ModelState.READY
    ]


def model_statistics(gateway: Gateway, model: str, version: str) -> wire.ModelStatisticsResponse:
    """Counts and times since the versions were loaded.

    Args:
        gateway: knows the models.
        model: empty for all.
        version: empty for all that are loaded.

    Raises:
        ModelNotFoundError: there is no such model or version.
        NotReadyError: it is not loaded.
    """
    if model:
        gateway.hosted(model, version)
    every, _ = gateway.metrics.read()
    return wire.ModelStatisticsResponse(
        model_stats=[
            _statistics(totals)
            for totals in every
            if model in ("", totals.model) and version in ("", totals.version)
        ]
    )


def _statistics(totals: ModelTotals) -> wire.ModelStatistics:
    num_failed = sum(count for outcome, count in totals.outcomes.items() if outcome != "ok")
    return wire.ModelStatistics(
        name=totals.model,
        version=totals.version,
        last_inference=int(totals.last_batch_s * _MS_PER_S),
        inference_count=int(totals.batch_rows.sum),
        execution_count=totals.batch_rows.count,
        inference_stats=wire.InferStatistics(
            success=wire.StatisticDuration(
                count=totals.outcomes["ok"], ns=int(totals.request.sum * _NS_PER_S)
            ),
            fail=wire.StatisticDuration(count=num_failed),
            queue=_duration(totals.stages["queue"]),
            compute_input=_duration(totals.stages["collate"]),
            compute_infer=_duration(totals.stages["execute"]),
            compute_output=_duration(totals.stages["respond"]),
        ),
        memory_usage=[wire.MemoryUsage(type="tables", byte_size=sum(totals.table_bytes.values()))],
    )


def _duration(times: HistogramTotals) -> wire.StatisticDuration:
    return wire.StatisticDuration(count=times.count, ns=int(times.sum * _NS_PER_S))


def _reason(version: ModelVersionStatus) -> str:
    return version.reason or ("not loaded" if version.state is ModelState.AVAILABLE else "")
