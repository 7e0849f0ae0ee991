"""The native side's own copies of gRPC's protocols are those of the Python packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]

PROTOS = Path(__file__).parents[2] / "cpp_client" / "protos"


@pytest.mark.parametrize(
    ("name", "official"),
    [
        ("grpc/health/v1/health.proto", health_pb2),
        ("grpc/reflection/v1alpha/reflection.proto", reflection_pb2),
    ],
)
def test_a_protocol_of_grpcs_has_the_official_descriptors(name: str, official: Any, tmp_path: Path) -> None:
    out = tmp_path / "descriptors"
    arguments = ["protoc", f"--proto_path={PROTOS}", f"--descriptor_set_out={out}", name]
    assert protoc.main(arguments) == 0
    (ours,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    theirs = descriptor_pb2.FileDescriptorProto()
    official.DESCRIPTOR.CopyToProto(theirs)
    theirs.name = ours.name  # Python's package has folders of its own
    for file in (ours, theirs):
        file.ClearField("source_code_info")
        for message in file.message_type:
            drop_json_names(message)
    assert ours == theirs


def drop_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """They follow from the names; protoc writes them, and the packages do not hold them."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        drop_json_names(nested)
