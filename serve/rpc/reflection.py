"""Server reflection as ``grpc.reflection.v1`` and as ``v1alpha``: the same messages under two names.

grpcio-reflection has ``v1alpha`` alone. The description of ``v1`` is made from it, in a pool of its own, where it
cannot clash with generated code of ``v1`` in the same process.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.descriptor import FileDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from serve.protocols.calls import BytesMethod, parse

_V1 = "grpc.reflection.v1.ServerReflection"
SERVICES = (_V1, reflection.SERVICE_NAME)
_METHOD = "ServerReflectionInfo"


def reflection_methods(services: Sequence[str]) -> dict[str, BytesMethod]:
    """Return the streams of both services by full name, each for one message.

    Args:
        services: the port's other services.
    """
    every = (*services, *SERVICES)
    servicer = reflection.ReflectionServicer(every, pool=_pool(every))

    async def answer(data: bytes) -> bytes:
        request = parse(reflection_pb2.ServerReflectionRequest, data)
        (response,) = servicer.ServerReflectionInfo(iter((request,)), None)
        serialized: bytes = response.SerializeToString()
        return serialized

    return {f"/{service}/{_METHOD}": answer for service in SERVICES}


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Add both services to a ``grpc.aio`` server.

    Args:
        server: the server, not started yet.
        services: its other services.
    """
    every = (*services, *SERVICES)
    servicer = reflection.aio.ReflectionServicer(every, pool=_pool(every))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(service, {_METHOD: handler}) for service in SERVICES)
    )


def _pool(services: Sequence[str]) -> descriptor_pool.DescriptorPool:
    """Return the descriptions of services, with those of ``v1``."""
    known = descriptor_pool.Default()
    files: dict[str, FileDescriptor] = {}
    for service in services:
        if service != _V1:
            _collect(known.FindFileContainingSymbol(service), files)
    pool = descriptor_pool.DescriptorPool()
    for file in files.values():
        pool.AddSerializedFile(file.serialized_pb)
    text = text_format.MessageToString(_proto(reflection_pb2.DESCRIPTOR))
    text = text.replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
    v1 = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    v1.name = "grpc/reflection/v1/reflection.proto"
    pool.AddSerializedFile(v1.SerializeToString())
    return pool


def _collect(file: FileDescriptor, files: dict[str, FileDescriptor]) -> None:
    """Add a file after those that it imports."""
    for imported in file.dependencies:
        _collect(imported, files)
    files.setdefault(file.name, file)


def _proto(file: FileDescriptor) -> descriptor_pb2.FileDescriptorProto:
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    return proto
