"""Every message of the wire with every field set, as bytes; run with other versions of protobuf and grpcio too."""

from __future__ import annotations

import json
from importlib.metadata import version

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToJson, Parse
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from serve.wire import (
    admin_pb2,
    admin_pb2_grpc,
    feedback_pb2,
    feedback_pb2_grpc,
    open_inference_pb2,
    open_inference_pb2_grpc,
    predict_pb2,
    predict_pb2_grpc,
    predictor_pb2,
    predictor_pb2_grpc,
)

PACKAGES = ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")
_MODULES = (admin_pb2, feedback_pb2, open_inference_pb2, predict_pb2, predictor_pb2)
_STUBS = (
    admin_pb2_grpc.AdminServiceStub,
    feedback_pb2_grpc.FeedbackServiceStub,
    open_inference_pb2_grpc.GRPCInferenceServiceStub,
    predict_pb2_grpc.PredictionServiceStub,
    predictor_pb2_grpc.PredictorStub,
)
_TEXT, _BYTES, _MESSAGE = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
)


def _fill(message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.type == _MESSAGE:
            _fill_messages(message, field)
            continue
        value = {_TEXT: f"of {field.name}", _BYTES: b"\x00\xff"}.get(field.type, 1)
        if field.type == FieldDescriptor.TYPE_BOOL:
            value = True
        if isinstance(getattr(message, field.name), bool | int | float | str | bytes):
            setattr(message, field.name, value)
        else:
            getattr(message, field.name).extend([value, value])


def _fill_messages(message: Message, field: FieldDescriptor) -> None:
    inner = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        _, value = field.message_type.fields
        if value.type == _MESSAGE:
            _fill(inner["key"])
        else:
            inner["key"] = "value" if value.type == _TEXT else 1
    elif hasattr(inner, "add"):
        _fill(inner.add())
    else:
        _fill(inner)


def messages() -> dict[str, str]:
    """Return each message by its name, as bytes in hexadecimal; both ways through bytes and JSON are checked."""
    made = {}
    for module in _MODULES:
        for descriptor in module.DESCRIPTOR.message_types_by_name.values():
            kind = GetMessageClass(descriptor)
            message = kind()
            _fill(message)
            data = message.SerializeToString(deterministic=True)
            assert kind.FromString(data) == message, descriptor.full_name
            assert Parse(MessageToJson(message), kind()) == message, descriptor.full_name
            made[descriptor.full_name] = data.hex()
    return made


if __name__ == "__main__":
    print(json.dumps({"versions": {name: version(name) for name in PACKAGES}, "messages": messages()}))
