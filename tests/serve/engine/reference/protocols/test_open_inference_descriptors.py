"""Our own text of Open Inference against the one that Triton's client was generated from.

Both register the same names, and one process can hold only one of them: the client's is read in another process.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from serve.wire import open_inference_pb2 as wire

_READ_THEIRS = """
import json
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tritonclient.grpc import service_pb2
files = [service_pb2.DESCRIPTOR, *service_pb2.DESCRIPTOR.dependencies]
protos = []
for file in files:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    protos.append(proto.SerializeToString().hex())
print(json.dumps(protos))
"""


def _fields(message: descriptor_pb2.DescriptorProto) -> dict[str, Any]:
    oneofs = [oneof.name for oneof in message.oneof_decl]
    return {
        field.name: (
            field.number,
            field.label,
            field.type,
            field.type_name,
            oneofs[field.oneof_index] if field.HasField("oneof_index") else "",
        )
        for field in message.field
    }


def _messages(prefix: str, messages: Any) -> dict[str, dict[str, Any]]:
    """All messages, nested ones too, by their full names."""
    found = {}
    for message in messages:
        name = f"{prefix}.{message.name}"
        found[name] = _fields(message)
        found.update(_messages(name, message.nested_type))
    return found


def _enums(prefix: str, holder: Any) -> dict[str, dict[str, int]]:
    found = {f"{prefix}.{e.name}": {v.name: v.number for v in e.value} for e in holder.enum_type}
    for message in getattr(holder, "nested_type", None) or getattr(holder, "message_type", []):
        found.update(_enums(f"{prefix}.{message.name}", message))
    return found


def _methods(proto: descriptor_pb2.FileDescriptorProto) -> dict[str, Any]:
    return {
        f"{service.name}.{method.name}": (
            method.input_type,
            method.output_type,
            method.client_streaming,
            method.server_streaming,
        )
        for service in proto.service
        for method in service.method
    }


def _proto(file: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return proto


@pytest.fixture(scope="module")
def theirs() -> list[descriptor_pb2.FileDescriptorProto]:
    if importlib.util.find_spec("tritonclient") is None:
        pytest.skip("tritonclient is in the group 'peer'")
    done = subprocess.run([sys.executable, "-c", _READ_THEIRS], check=True, capture_output=True, text=True)
    return [descriptor_pb2.FileDescriptorProto.FromString(bytes.fromhex(h)) for h in json.loads(done.stdout)]


OURS = _proto(wire.DESCRIPTOR)


def test_every_message_of_ours_has_only_fields_of_theirs(
    theirs: list[descriptor_pb2.FileDescriptorProto],
) -> None:
    expected: dict[str, dict[str, Any]] = {}
    for proto in theirs:
        expected.update(_messages(f".{proto.package}", proto.message_type))
    got = _messages(f".{OURS.package}", OURS.message_type)
    assert len(got) > 40
    for name, fields in got.items():
        assert name in expected
        assert fields.items() <= expected[name].items(), name


def test_messages_of_inference_are_whole(theirs: list[descriptor_pb2.FileDescriptorProto]) -> None:
    expected = _messages(f".{theirs[0].package}", theirs[0].message_type)
    # The statistics have only what is counted here, the configuration (their other file) only what has a meaning here.
    partial = {".inference.ModelStatistics", ".inference.InferStatistics"}
    for name, fields in _messages(f".{OURS.package}", OURS.message_type).items():
        if name in expected and name not in partial:
            assert fields == expected[name], name


def test_enums_and_methods_are_theirs(theirs: list[descriptor_pb2.FileDescriptorProto]) -> None:
    enums: dict[str, dict[str, int]] = {}
    methods: dict[str, Any] = {}
    for proto in theirs:
        enums.update(_enums(f".{proto.package}", proto))
        methods.update(_methods(proto))
    ours = _enums(f".{OURS.package}", OURS)
    assert set(ours) == {".inference.DataType", ".inference.ModelInstanceGroup.Kind"}
    assert ours.items() <= enums.items()
    assert len(_methods(OURS)) == 12
    assert _methods(OURS).items() <= methods.items()
