"""Open Inference's metadata of the server and its models: tensors, states, and counts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from recsys.base.machine import package_version
from serve.config.models import Priority
from serve.engine.interface import Servable
from serve.metrics.counters import HistogramTotals, ModelTotals
from serve.models.status import ModelState, ModelStatus, ModelVersionStatus
from serve.protocols.open_inference import FLOAT, ID, LENGTH, TEXT, TensorSpec, input_specs, output_specs
from serve.rpc.backend import Backend
from serve.wire import open_inference_pb2 as wire

PLATFORM = "recsys"
SERVER_NAME = "recsys-serving"
# The supported extensions, by Triton's names.
EXTENSIONS = (
    "model_repository",
    "model_configuration",
    "schedule_policy",
    "statistics",
    "parameters",
    "binary_tensor_data",  # over HTTP; gRPC's tensors are always binary
)
_DATA_TYPES = {FLOAT: wire.TYPE_FP32, ID: wire.TYPE_INT64, LENGTH: wire.TYPE_INT32, TEXT: wire.TYPE_STRING}
READY = "READY"
UNAVAILABLE = "UNAVAILABLE"
# Triton's names of the states.
_STATES = {ModelState.READY: READY, ModelState.LOADING: "LOADING", ModelState.DRAINING: "UNLOADING"}
_NS_PER_S = 1e9
_MS_PER_S = 1e3


@functools.cache
def server_metadata() -> wire.ServerMetadataResponse:
    """Return the server's metadata, which the caller must not change."""
    release = package_version(SERVER_NAME) or ""  # empty if the package is not installed
    return wire.ServerMetadataResponse(name=SERVER_NAME, version=release, extensions=EXTENSIONS)


def model_metadata(servable: Servable, versions: Sequence[str]) -> wire.ModelMetadataResponse:
    """Return the input and output tensors of a model.

    Args:
        servable: the requested version.
        versions: all loaded versions.
    """
    return wire.ModelMetadataResponse(
        name=servable.info.name,
        versions=versions,
        platform=PLATFORM,
        inputs=[_metadata(spec) for spec in input_specs(servable.signature)],
        outputs=[_metadata(spec) for spec in output_specs(servable.signature)],
    )


def model_config(servable: Servable) -> wire.ModelConfig:
    """Return the fields of Triton's model configuration that apply here."""
    settings = servable.settings
    target = servable.info.target
    on_cpu = all(device.startswith("cpu") for device in target.split(","))
    group = wire.ModelInstanceGroup
    config = wire.ModelConfig(
        name=servable.info.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=0,
        input=[_config_input(spec) for spec in input_specs(servable.signature)],
        output=[_config_output(spec) for spec in output_specs(servable.signature)],
        instance_group=[
            group(
                name=servable.info.name,
                count=settings.max_executors,
                kind=group.KIND_CPU if on_cpu else group.KIND_GPU,
            )
        ],
        dynamic_batching=wire.ModelDynamicBatching(
            max_queue_delay_microseconds=int(settings.limits.max_delay_us),
            priority_levels=len(Priority),
            default_priority_level=int(Priority.NORMAL),
        ),
    )
    config.parameters["target"].string_value = target
    config.parameters["digest"].string_value = servable.info.digest
    config.parameters["context"].string_value = ",".join(servable.signature.context)
    return config


def repository_index(statuses: Sequence[ModelStatus], only_ready: bool) -> wire.RepositoryIndexResponse:
    """Return all versions of all models, or only ready ones."""
    response = wire.RepositoryIndexResponse()
    for status in statuses:
        for version in status.versions:
            state = _STATES.get(version.state, UNAVAILABLE)
            if state == READY or not only_ready:
                response.models.add(
                    name=status.model, version=version.version, state=state, reason=_reason(version)
                )
    return response


def loaded_versions(backend: Backend, model: str) -> list[str]:
    """Return the versions of a model that answer."""
    return [
        version
        for status in backend.manager.statuses()
        if status.model == model
        for version in ready_versions(status)
    ]


def ready_versions(status: ModelStatus) -> list[str]:
    """Return the versions that answer, oldest first."""
    return [version.version for version in status.versions if version.state is ModelState.READY]


def model_statistics(backend: Backend, model: str, version: str) -> wire.ModelStatisticsResponse:
    """Return counts and times since the versions were loaded.

    Args:
        backend: the server.
        model: empty for all.
        version: empty for all loaded ones.

    Raises:
        ModelNotFoundError: The model or version does not exist.
        NotReadyError: it is not loaded.
    """
    if model:
        backend.servable(model, version)
    every, _ = backend.metrics.read()
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


def _metadata(spec: TensorSpec) -> wire.ModelMetadataResponse.TensorMetadata:
    return wire.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _config_input(spec: TensorSpec) -> wire.ModelInput:
    return wire.ModelInput(name=spec.name, data_type=_DATA_TYPES[spec.datatype], dims=spec.shape)


def _config_output(spec: TensorSpec) -> wire.ModelOutput:
    return wire.ModelOutput(name=spec.name, data_type=_DATA_TYPES[spec.datatype], dims=spec.shape)
