"""The common part of Open Inference over gRPC and HTTP: tensor types, tensor specifications, parameters."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from recsys.inputs.signature import Output, Signature
from serve.config.models import Priority
from serve.errors import RequestError, short
from serve.wire import open_inference_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
FLOAT = "FP32"
ID = "INT64"
LENGTH = "INT32"
TEXT = "BYTES"
DTYPES: Mapping[str, np.dtype[Any]] = {
    FLOAT: np.dtype("<f4"),
    ID: np.dtype("<i8"),
    LENGTH: np.dtype("<i4"),
}
# The supported parameters; others are ignored, as the protocol allows.
_PARAMETERS = ("priority", "timeout", "context", "sequence_id")
# Triton's: 0 stands for the model's default, 1 is served first.
_PRIORITIES = {0: Priority.NORMAL, **{int(priority): priority for priority in Priority}}
_US_PER_S = 1e6
_LENGTH_PREFIX = struct.Struct("<I")
_MAX_TIMEOUT_US = 2**63 - 1


class TensorSpec(NamedTuple):
    """A tensor in the metadata; -1 is a size that requests choose."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def input_specs(signature: Signature) -> list[TensorSpec]:
    """Return the input tensors of a model; sparse inputs in their jagged form."""
    specs = [TensorSpec(d.name, FLOAT, (-1, d.width)) for d in signature.dense]
    for s in signature.sparse:
        specs.append(TensorSpec(f"{s.name}.values", TEXT if s.strings else ID, (-1,)))
        specs.append(TensorSpec(f"{s.name}.lengths", LENGTH, (-1,)))
        if s.weighted:
            specs.append(TensorSpec(f"{s.name}.weights", FLOAT, (-1,)))
    return specs


def output_specs(signature: Signature) -> list[TensorSpec]:
    """Return the output tensors of a model."""
    return [TensorSpec(o.name, output_datatype(o), o.dims(-1)) for o in signature.outputs]


def output_datatype(output: Output) -> str:
    """Return the type of an output's tensor."""
    return ID if output.is_integer else FLOAT


def pack_texts(texts: Iterable[bytes]) -> bytes:
    """Return the bytes of a BYTES tensor, as Triton defines them: each text after its length."""
    return b"".join(part for text in texts for part in (_LENGTH_PREFIX.pack(len(text)), text))


def unpack_texts(data: bytes, at_most: int | None = None) -> list[bytes] | None:
    """Return the texts of a BYTES tensor, or the first ones; None if the data ends within one of these."""
    texts: list[bytes] = []
    at = 0
    while at < len(data) and len(texts) != at_most:
        start = at + _LENGTH_PREFIX.size
        if start > len(data):
            return None
        at = start + _LENGTH_PREFIX.unpack_from(data, at)[0]
        if at > len(data):
            return None
        texts.append(data[start:at])
    return texts


@dataclass(frozen=True, slots=True)
class Parameters:
    """The supported parameters of a request.

    Attributes:
        priority: priority in the queue.
        timeout_s: time for which the client waits; None if not given.
        context: names of the inputs that have one row for all.
    """

    priority: Priority = Priority.NORMAL
    timeout_s: float | None = None
    context: frozenset[str] = frozenset()

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Parameters:
        """Parse parameters from plain values.

        Raises:
            RequestError: a parameter has a wrong type or value, or is not supported.
        """
        if not given:
            return _NO_PARAMETERS
        if given.get("sequence_id", 0) not in (0, ""):
            raise RequestError(
                "parameters['sequence_id']: got a sequence, expected none: no model here keeps state between requests"
            )
        return cls(
            priority=_priority(given.get("priority", 0)),
            timeout_s=_timeout_s(given.get("timeout", 0)),
            context=_context(given.get("context", "")),
        )

    def remaining_s(self, of_call_s: float | None) -> float | None:
        """Return the time until the earlier of the call's and the parameter's deadline; None for none."""
        if of_call_s is None or self.timeout_s is None:
            return self.timeout_s if of_call_s is None else of_call_s
        return min(of_call_s, self.timeout_s)


_NO_PARAMETERS = Parameters()


def parameters_of(message: wire.ModelInferRequest) -> Parameters:
    """Return the parameters of a request over gRPC.

    Raises:
        RequestError: see ``Parameters.read``.
    """
    values = {}
    for name in _PARAMETERS:
        given = message.parameters
        kind = given[name].WhichOneof("parameter_choice") if name in given else None
        if kind is not None:
            values[name] = getattr(given[name], kind)
    return Parameters.read(values)


def _priority(value: Any) -> Priority:
    if isinstance(value, int) and not isinstance(value, bool) and value in _PRIORITIES:
        return _PRIORITIES[value]
    raise RequestError(
        f"parameters['priority']: got {short(value)}, expected 0 (default) to {max(_PRIORITIES)} (served last)"
    )


def _timeout_s(value: Any) -> float | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_TIMEOUT_US:
        return value / _US_PER_S if value else None
    raise RequestError(
        f"parameters['timeout']: got {short(value)}, expected a whole number of microseconds (0 for none)"
    )


def _context(value: Any) -> frozenset[str]:
    if not isinstance(value, str):
        raise RequestError(
            f"parameters['context']: got {short(value)}, expected names of inputs, with commas between them"
        )
    return frozenset(name.strip(" \t") for name in value.split(",") if name.strip(" \t"))
