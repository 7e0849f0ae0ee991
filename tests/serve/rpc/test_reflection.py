"""Server reflection under both of its names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from serve.engine.reference.protocols.recsys_v1 import SERVICE
from tests.support.serve.live import LiveServer

V1, V1_ALPHA = "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"


@pytest.fixture(scope="module")
def channel(live: LiveServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live.address) as made:
        yield made


class Renamed:
    """A channel on which a client of ``v1alpha`` calls another service."""

    def __init__(self, channel: grpc.Channel, service: str) -> None:
        self._channel = channel
        self._service = service

    def stream_stream(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        assert V1_ALPHA in method
        return self._channel.stream_stream(method.replace(V1_ALPHA, self._service), *arguments, **keywords)


@pytest.mark.parametrize("name", [V1, V1_ALPHA])
def test_reflection_describes_the_wire(channel: grpc.Channel, name: str) -> None:
    database = ProtoReflectionDescriptorDatabase(Renamed(channel, name))
    assert {SERVICE, "grpc.health.v1.Health", V1, V1_ALPHA} <= set(database.get_services())
    service = DescriptorPool(database).FindServiceByName(SERVICE)
    assert [method.name for method in service.methods] == ["Predict", "GetModelMetadata", "PredictStream"]
    assert service.file.name == "recsys/v1/predict.proto"


@pytest.mark.parametrize("name", [V1, V1_ALPHA])
def test_every_listed_service_is_described(channel: grpc.Channel, name: str) -> None:
    database = ProtoReflectionDescriptorDatabase(Renamed(channel, name))
    pool = DescriptorPool(database)
    for listed in database.get_services():
        assert pool.FindServiceByName(listed).methods, listed


def test_v1_is_v1alpha_under_another_name(channel: grpc.Channel) -> None:
    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    (method,) = pool.FindServiceByName(V1).methods
    assert method.full_name == f"{V1}.ServerReflectionInfo"
    assert (method.client_streaming, method.server_streaming) == (True, True)
    package = reflection_pb2.DESCRIPTOR.package
    for kind in (method.input_type, method.output_type):
        theirs = reflection_pb2.DESCRIPTOR.message_types_by_name[kind.name]
        fields = [
            (f.name, f.number, f.type, f.message_type and f.message_type.full_name) for f in kind.fields
        ]
        assert fields == [
            (
                f.name,
                f.number,
                f.type,
                f.message_type and f.message_type.full_name.replace(package, "grpc.reflection.v1"),
            )
            for f in theirs.fields
        ]


@pytest.mark.parametrize("name", [V1, V1_ALPHA])
def test_an_unknown_symbol_is_not_found_and_the_stream_goes_on(channel: grpc.Channel, name: str) -> None:
    call = channel.stream_stream(
        f"/{name}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="recsys.v1.Nothing"),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="recsys.v1.PredictRequest"),
    ]
    missing, found = call(iter(asked), timeout=60)
    assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert found.file_descriptor_response.file_descriptor_proto
