"""Messages of Open Inference's gRPC form to requests, and answers and descriptions to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from serve.batching import Priority
from serve.errors import RequestError
from serve.hosted import HostedModel
from serve.kserve_request import PARAMETERS, InferRequest, Parameters, wanted_outputs
from serve.kserve_tensors import DTYPES, FLOAT, ID, LENGTH, Tensor, TensorSpec, input_specs, output_specs
from serve.wire import open_inference_pb2 as wire
from serve.work import Rows

PLATFORM = "recsys"
SERVER_NAME = "recsys-serving"
# Of Triton's extensions, by the names that it gives them.
EXTENSIONS = (
    "model_repository",
    "model_configuration",
    "schedule_policy",
    "statistics",
    "parameters",
    "binary_tensor_data",  # over HTTP; gRPC's tensors are binary as they are
)

_CONTENTS = {FLOAT: "fp32_contents", ID: "int64_contents", LENGTH: "int_contents"}
_DATA_TYPES = {FLOAT: wire.TYPE_FP32, ID: wire.TYPE_INT64, LENGTH: wire.TYPE_INT32}


def infer_request(message: wire.ModelInferRequest) -> InferRequest:
    """What a message asks for.

    Raises:
        RequestError: a parameter is wrong; what else is wrong shows when the request is read.
    """
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        request_id=message.id,
        parameters=Parameters.read(_values(message.parameters)),
        num_inputs=len(message.inputs),
        inputs=lambda: _tensors(message),
        num_outputs=len(message.outputs),
        outputs=lambda: _output_names(message),
    )


def infer_response(request: InferRequest, rows: Rows) -> wire.ModelInferResponse:
    """The answer, with its values as bytes."""
    response = wire.ModelInferResponse(
        model_name=rows.info.name, model_version=rows.info.version, id=request.request_id
    )
    for output in wanted_outputs(request, rows):
        response.outputs.add(name=output.name, datatype=FLOAT, shape=output.shape)
        response.raw_output_contents.append(output.values)
    return response


def server_metadata() -> wire.ServerMetadataResponse:
    """What this server is."""
    try:
        release = version(SERVER_NAME)
    except PackageNotFoundError:  # run from a folder that was never installed
        release = ""
    return wire.ServerMetadataResponse(name=SERVER_NAME, version=release, extensions=EXTENSIONS)


def model_metadata(hosted: HostedModel, versions: Sequence[str]) -> wire.ModelMetadataResponse:
    """The tensors that a model takes and gives.

    Args:
        hosted: the version that is asked for.
        versions: all that are loaded.
    """
    return wire.ModelMetadataResponse(
        name=hosted.name,
        versions=versions,
        platform=PLATFORM,
        inputs=[_metadata(spec) for spec in input_specs(hosted.signature)],
        outputs=[_metadata(spec) for spec in output_specs(hosted.signature)],
    )


def model_config(hosted: HostedModel) -> wire.ModelConfig:
    """What of a Triton model's configuration has a meaning here."""
    settings = hosted.settings
    target = hosted.model.target_name
    on_cpu = all(device.startswith("cpu") for device in target.split(","))
    group = wire.ModelInstanceGroup
    config = wire.ModelConfig(
        name=hosted.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=0,
        input=[_config_input(spec) for spec in input_specs(hosted.signature)],
        output=[_config_output(spec) for spec in output_specs(hosted.signature)],
        instance_group=[
            group(
                name=hosted.name,
                count=settings.num_executors,
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
    config.parameters["context"].string_value = ",".join(hosted.signature.context)
    return config


def _tensors(message: wire.ModelInferRequest) -> list[Tensor]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents: got {len(raw)} tensors, expected {len(message.inputs)}, as many as inputs"
        )
    tensors = []
    for i, given in enumerate(message.inputs):
        if given.parameters:
            _refuse_parameters(_field(given), given.parameters)
        if not raw:
            data = _typed_contents(given)
        elif given.HasField("contents"):
            raise RequestError(
                f"{_field(given)}.contents: got values beside raw_input_contents, expected one of the two"
            )
        else:
            data = raw[i]
        # A slice of a repeated field is a list; going through it one by one takes three times as long.
        tensors.append(Tensor(given.name, given.datatype, tuple(given.shape[:]), data))
    return tensors


def _field(given: wire.ModelInferRequest.InferInputTensor) -> str:
    return f"inputs[{given.name[:64]!r}]"


def _typed_contents(given: wire.ModelInferRequest.InferInputTensor) -> bytes:
    """The values of a tensor that came as numbers."""
    contents = given.contents
    name = _CONTENTS.get(given.datatype)
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if name is None or not filled:
        return b""  # where the type is none that is served, or values are missing, the tensor's checks say so
    if filled != [name]:
        raise RequestError(
            f"{_field(given)}.contents: got {', '.join(filled)}, expected {name} for {given.datatype}"
        )
    return np.array(getattr(contents, name)[:], DTYPES[given.datatype]).tobytes()


def _refuse_parameters(field: str, parameters: Mapping[str, Any]) -> None:
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise RequestError(
                f"{field}.parameters[{name!r}]: got {name}, expected none: this server has no such"
            )


def _output_names(message: wire.ModelInferRequest) -> list[str]:
    for output in message.outputs:
        if output.parameters:
            _refuse_parameters(f"outputs[{output.name[:64]!r}]", output.parameters)
    return [output.name for output in message.outputs]


def _values(parameters: Mapping[str, wire.InferParameter]) -> dict[str, Any]:
    """The parameters that are read, as plain values."""
    values = {}
    for name in PARAMETERS:
        kind = parameters[name].WhichOneof("parameter_choice") if name in parameters else None
        if kind is not None:
            values[name] = getattr(parameters[name], kind)
    return values


def _metadata(spec: TensorSpec) -> wire.ModelMetadataResponse.TensorMetadata:
    return wire.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _config_input(spec: TensorSpec) -> wire.ModelInput:
    return wire.ModelInput(name=spec.name, data_type=_DATA_TYPES[spec.datatype], dims=spec.shape)


def _config_output(spec: TensorSpec) -> wire.ModelOutput:
    return wire.ModelOutput(name=spec.name, data_type=_DATA_TYPES[spec.datatype], dims=spec.shape)
