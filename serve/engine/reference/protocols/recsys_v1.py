"""This project's protocol, ``recsys.v1.PredictionService``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from recsys.inputs.signature import Signature
from serve.config.models import Priority
from serve.engine.interface import ModelInfo
from serve.engine.reference.gateway import Request
from serve.engine.reference.raw_request import RawRequestLike
from serve.engine.reference.servable import ReferenceServable
from serve.errors import RequestError
from serve.protocols.calls import checked_request_id, parse
from serve.wire import predict_pb2 as wire

SERVICE = wire.DESCRIPTOR.services_by_name["PredictionService"].full_name


@dataclass(eq=False, slots=True, kw_only=True)
class PredictRequest(Request):
    """One ``recsys.v1.PredictRequest``.

    Attributes:
        message: the parsed message; its inputs are read without conversion.
    """

    PROTOCOL: ClassVar[str] = "recsys"

    message: wire.PredictRequest

    @classmethod
    def parse(cls, data: bytes) -> PredictRequest:
        """Parse a message.

        Raises:
            RequestError: the bytes are not such a message, or its ID or priority is invalid.
        """
        message = parse(wire.PredictRequest, data)
        return cls(
            message=message,
            model=message.model,
            version=message.version,
            request_id=checked_request_id(message.request_id),
            priority=_priority(message.priority),
            num_bytes=len(data),
        )

    def read(self, servable: ReferenceServable) -> RawRequestLike:
        """See ``Request``."""
        del servable
        return self.message

    def encode(self, values: Sequence[bytes]) -> bytes:
        """See ``Request``."""
        assert self.servable is not None
        return encode_response(self.servable.info, self.servable.signature, self.num_rows, values)


def encode_response(info: ModelInfo, signature: Signature, num_rows: int, values: Sequence[bytes]) -> bytes:
    """Return a serialized ``PredictResponse``.

    Args:
        info: name and version for the answer.
        signature: names and shapes of the outputs.
        num_rows: B.
        values: values of each output: little-endian float32 or int64, row-major ``[B, *shape]``.
    """
    response = wire.PredictResponse(model=info.name, version=info.version)
    for output, data in zip(signature.outputs, values, strict=True):
        written = response.outputs.add(name=output.name, dims=output.dims(num_rows))
        if output.is_integer:
            written.int64_values = data
        else:
            written.values = data
    serialized: bytes = response.SerializeToString()
    return serialized


def _priority(number: int) -> Priority:
    if number == wire.PRIORITY_UNSPECIFIED:
        return Priority.NORMAL
    try:
        return Priority(number)
    except ValueError:
        raise RequestError(f"priority: got {number}, expected HIGH (1), NORMAL (2) or LOW (3)") from None
