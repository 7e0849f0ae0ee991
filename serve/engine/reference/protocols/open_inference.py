"""Open Inference over gRPC: ``inference.GRPCInferenceService.ModelInfer``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from serve.engine.reference.gateway import Request
from serve.engine.reference.protocols.tensors import Tensor, raw_request
from serve.engine.reference.raw_request import RawRequestLike
from serve.engine.reference.servable import ReferenceServable
from serve.errors import RequestError, listed
from serve.protocols.calls import checked_request_id, parse
from serve.protocols.open_inference import (
    DTYPES,
    FLOAT,
    ID,
    LENGTH,
    TEXT,
    Parameters,
    output_datatype,
    parameters_of,
)
from serve.wire import open_inference_pb2 as wire

_CONTENTS = {FLOAT: "fp32_contents", ID: "int64_contents", LENGTH: "int_contents", TEXT: "bytes_contents"}
# Values, lengths and weights of a sparse input.
_MOST_PARTS = 3


@dataclass(eq=False, slots=True, kw_only=True)
class InferRequest(Request):
    """One ``inference.ModelInferRequest``.

    Attributes:
        message: the parsed message.
        parameters: parameters of the message.
    """

    PROTOCOL: ClassVar[str] = "kserve"

    message: wire.ModelInferRequest
    parameters: Parameters

    @classmethod
    def parse(cls, data: bytes) -> InferRequest:
        """Parse a message.

        Raises:
            RequestError: the bytes are not such a message, or its ID or a parameter is invalid. Errors in its
                tensors are raised by ``read``.
        """
        message = parse(wire.ModelInferRequest, data)
        parameters = parameters_of(message)
        return cls(
            message=message,
            parameters=parameters,
            model=message.model_name,
            version=message.model_version,
            request_id=checked_request_id(message.id, "id"),
            priority=parameters.priority,
            remaining_s=parameters.timeout_s,
            num_bytes=len(data),
        )

    def read(self, servable: ReferenceServable) -> RawRequestLike:
        """See ``Request``."""
        signature = servable.signature
        self._check_outputs([output.name for output in signature.outputs])
        num_inputs = len(self.message.inputs)
        most = len(signature.dense) + _MOST_PARTS * len(signature.sparse)
        if num_inputs > most:
            raise RequestError(f"inputs: got {num_inputs} tensors, expected at most {most} for this model")
        return raw_request(
            signature, _tensors(self.message), self.parameters.context, servable.settings.limits
        )

    def encode(self, values: Sequence[bytes]) -> bytes:
        """Encode the requested outputs, in the request's order."""
        assert self.servable is not None
        info, outputs = self.servable.info, self.servable.signature.outputs
        response = wire.ModelInferResponse(
            model_name=info.name, model_version=info.version, id=self.request_id
        )
        every = {output.name: (output, data) for output, data in zip(outputs, values, strict=True)}
        wanted = [output.name for output in self.message.outputs]
        for name in wanted or every:
            output, data = every[name]
            response.outputs.add(
                name=name, datatype=output_datatype(output), shape=output.dims(self.num_rows)
            )
            response.raw_output_contents.append(data)
        serialized: bytes = response.SerializeToString()
        return serialized

    def _check_outputs(self, names: Sequence[str]) -> None:
        outputs = self.message.outputs
        if len(outputs) > len(names):
            raise RequestError(f"outputs: got {len(outputs)}, expected at most {len(names)}, each once")
        for output in outputs:
            if output.parameters:
                _refuse_parameters(f"outputs[{output.name[:64]!r}]", output.parameters)
        wanted = [output.name for output in outputs]
        unknown = next((name for name in wanted if name not in names), None)
        if unknown is not None:
            raise RequestError(f"outputs: got an unknown output {unknown[:64]!r}, expected {listed(names)}")
        if len(set(wanted)) != len(wanted):
            raise RequestError("outputs: got an output more than once, expected each at most once")


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
        texts: Sequence[bytes] = ()
        data = b""
        if not raw:
            contents = _typed_contents(given)
            if given.datatype == TEXT:
                texts = contents
            elif contents:
                data = np.array(contents, DTYPES[given.datatype]).tobytes()
        elif given.HasField("contents"):
            raise RequestError(
                f"{_field(given)}.contents: got values beside raw_input_contents, expected one of the two"
            )
        else:
            data = raw[i]
        # A slice of a repeated field is a list; iterating over the field takes three times as long.
        tensors.append(Tensor(given.name, given.datatype, tuple(given.shape[:]), data, texts))
    return tensors


def _field(given: wire.ModelInferRequest.InferInputTensor) -> str:
    return f"inputs[{given.name[:64]!r}]"


def _typed_contents(given: wire.ModelInferRequest.InferInputTensor) -> list[Any]:
    """Return the numbers or texts of a tensor that was not sent as bytes; none for unknown types."""
    contents = given.contents
    name = _CONTENTS.get(given.datatype)
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if name is None or not filled:
        return []  # the tensor's checks report unknown types and missing values
    if filled != [name]:
        raise RequestError(
            f"{_field(given)}.contents: got {', '.join(filled)}, expected {name} for {given.datatype}"
        )
    found: list[Any] = getattr(contents, name)[:]
    return found


def _refuse_parameters(field: str, parameters: Mapping[str, Any]) -> None:
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise RequestError(
                f"{field}.parameters[{name!r}]: got {name}, expected none: this server has no such"
            )
