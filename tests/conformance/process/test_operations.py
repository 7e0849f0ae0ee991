"""What operators' tools rely on: health, reflection, limits of connections, the end of a server."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from serve.client.errors import PredictError, UnavailableError
from serve.client.packing import read_response
from serve.wire import admin_pb2, open_inference_pb2, predict_pb2, predictor_pb2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import (
    ENGINE,
    ServerUnderTest,
    put_version,
    running,
    status_of,
    with_admin,
)
from tests.conformance.support.http2 import ACK, GOAWAY, SETTINGS, RawConnection, hello
from tests.support.serve.messages.cases import Sample, assert_answers

PREDICTION = "recsys.v1.PredictionService"
# Enough to keep the slow model busy for a moment.
NUM_CALLS = 16
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
MAX_CONCURRENT_STREAMS = 3  # of HTTP/2's settings (RFC 9113, 6.5.2)


def check(server: ServerUnderTest, service: str) -> int:
    stub = health_pb2_grpc.HealthStub(server.channel())
    status: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status
    return status


def watch(server: ServerUnderTest, service: str) -> Iterator[int]:
    stub = health_pb2_grpc.HealthStub(server.channel())
    for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=120):
        yield answer.status


def slow_request(num_rows: int) -> bytes:
    rows = [[at % 1000] for at in range(num_rows)]
    data: bytes = Sample(num_rows, {}, {"id": rows}, {}).request().SerializeToString()
    return data


@pytest.mark.parametrize("service", ["", PREDICTION, f"{PREDICTION}/small"])
def test_health_says_serving_of_the_server_its_service_and_its_model(
    server: ServerUnderTest, service: str
) -> None:
    assert check(server, service) == SERVING
    assert next(watch(server, service)) == SERVING


@pytest.mark.engine
def test_a_file_that_is_written_to_is_served_on_as_long_as_its_bytes_are_the_same(
    small: Exported, tmp_path: Path
) -> None:
    artifact = shutil.copytree(small.path, tmp_path / "artifact")
    rows = artifact / "rows.bin"
    sample = small.sample(3)
    with running(artifact, folder=tmp_path) as server:
        client = server.client()
        statuses = watch(server, PREDICTION)
        assert next(statuses) == SERVING
        data = rows.read_bytes()
        os.utime(rows, (5, 5))
        assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))
        rows.write_bytes(data)
        assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))
        assert check(server, PREDICTION) == SERVING
        rows.write_bytes(bytes([data[0] ^ 255]) + data[1:])
        with pytest.raises(PredictError):
            client.predict(sample.dense, sample.sparse, sample.weights)
        assert next(statuses) == NOT_SERVING
        with pytest.raises(UnavailableError):
            client.predict(sample.dense, sample.sparse, sample.weights)
    assert (tmp_path / "server.log").read_text().count("it was written to while it was in use") >= 1


def test_health_of_what_is_not_there_is_not_found(server: ServerUnderTest) -> None:
    assert status_of(lambda: check(server, "recsys.v1.Guess"))[0] is grpc.StatusCode.NOT_FOUND
    assert next(watch(server, f"{PREDICTION}/other")) == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def test_a_watch_of_a_model_follows_it_out_and_in(repository: Path, small: Exported, tmp_path: Path) -> None:
    put_version(repository, "m", "1", small.path)
    put_version(repository, "n", "1", small.path)
    with running("--repository", repository, *with_admin(tmp_path), folder=tmp_path) as server:
        watched = watch(server, f"{PREDICTION}/m")
        assert next(watched) == SERVING
        server.admin().UnloadModel(admin_pb2.UnloadModelRequest(model="m"))
        assert next(watched) == NOT_SERVING
        assert check(server, f"{PREDICTION}/n") == SERVING
        server.admin().LoadModel(admin_pb2.LoadModelRequest(model="m"))
        assert next(watched) == SERVING


def test_reflection_lists_the_services_of_every_protocol(server: ServerUnderTest) -> None:
    services = set(ProtoReflectionDescriptorDatabase(server.channel()).get_services())
    assert {
        PREDICTION,
        "inference.GRPCInferenceService",
        "predictor.Predictor",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    } <= services
    assert "recsys.v1.AdminService" not in services


@pytest.mark.parametrize(
    "module", [predict_pb2, open_inference_pb2, predictor_pb2], ids=lambda m: m.DESCRIPTOR.package
)
def test_reflection_describes_every_method_and_message_as_the_protocol_has_them(
    server: ServerUnderTest, module: Any
) -> None:
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(server.channel()))
    ours = module.DESCRIPTOR
    for service in ours.services_by_name.values():
        theirs = pool.FindServiceByName(service.full_name)
        methods = [
            {m.name: (m.input_type.full_name, m.output_type.full_name) for m in one.methods}
            for one in (theirs, service)
        ]
        assert methods[0] == methods[1]
    for message in ours.message_types_by_name.values():
        theirs = pool.FindMessageTypeByName(message.full_name)
        assert fields_of(theirs) == fields_of(message)


def fields_of(message: Descriptor) -> set[tuple[str, int, int, int, str]]:
    plain = descriptor_pb2.DescriptorProto()
    message.CopyToProto(plain)
    return {(f.name, f.number, f.type, f.label, f.type_name) for f in plain.field}


def test_a_client_that_knows_nothing_predicts_by_reflection(server: ServerUnderTest, small: Exported) -> None:
    channel = server.channel()
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    method = pool.FindServiceByName(PREDICTION).FindMethodByName("Predict")
    request_class = message_factory.GetMessageClass(method.input_type)
    response_class = message_factory.GetMessageClass(method.output_type)
    sample = small.sample(3)
    request = request_class.FromString(sample.request().SerializeToString())
    assert [one.name for one in request.dense] == ["context", "price"]
    call = channel.unary_unary(
        f"/{PREDICTION}/Predict",
        request_serializer=request_class.SerializeToString,
        response_deserializer=response_class.FromString,
    )
    assert_answers(read_response(call(request, timeout=60)), small.answer(sample))


def test_all_ports_are_on_loopback_unless_the_operator_says_otherwise(server: ServerUnderTest) -> None:
    assert (server.ready["host"], server.ready["engine"]) == ("127.0.0.1", ENGINE)
    ours = {server.ready[name] for name in ("port", "metrics_port", "http_port", "admin_port")}
    listening = "0A"  # of the kernel's states of a TCP connection
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            host, port = local.split(":")
            if state == listening and int(port, 16) in ours:
                found[int(port, 16)] = host
    assert set(found) == ours
    # 127.0.0.1, also as IPv6 writes it.
    assert set(found.values()) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def filled(data: bytes, size: int) -> bytes:
    """The message with a field 100 that nobody knows, so long that all of it has this size."""
    rest = size - len(data) - 4
    return data + bytes([0xA2, 0x06, rest & 0x7F | 0x80, rest >> 7]) + bytes(rest)


def test_a_message_beyond_the_limit_is_refused_and_one_within_is_not(small: Exported, tmp_path: Path) -> None:
    sample = small.sample(2)
    data = sample.request().SerializeToString()
    with running(small.path, "--max-message-bytes", "8192", folder=tmp_path) as server:
        call = server.predict_bytes()
        within, beyond = (filled(data, size) for size in (8192, 8193))
        assert (len(within), len(beyond)) == (8192, 8193)
        assert status_of(lambda: call(within, timeout=60))[0] is grpc.StatusCode.OK
        assert status_of(lambda: call(beyond, timeout=60))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status_of(lambda: call(within, timeout=60))[0] is grpc.StatusCode.OK


def test_calls_beyond_a_connections_limit_wait_and_none_fails(small: Exported, tmp_path: Path) -> None:
    samples = [small.sample(1 + at % 3, at) for at in range(16)]
    with running(small.path, "--max-concurrent-streams", "7", folder=tmp_path) as server:
        with RawConnection(server.address) as raw:
            raw.send(hello())
            settings = next(f for f in raw.frames() if f.kind == SETTINGS and not f.flags & ACK)
        assert dict(struct.iter_unpack(">HI", settings.payload))[MAX_CONCURRENT_STREAMS] == 7
        call = server.predict_bytes()
        calls = [
            call.future(samples[at % 16].request().SerializeToString(), timeout=120) for at in range(500)
        ]
        for at, one in enumerate(calls):
            response = predict_pb2.PredictResponse.FromString(one.result())
            assert_answers(read_response(response), small.answer(samples[at % 16]))


@pytest.mark.parametrize("limit", ["--max-connection-idle-s", "--max-connection-age-s"])
def test_an_old_or_idle_connection_is_told_goodbye_and_a_new_one_is_taken(
    small: Exported, tmp_path: Path, limit: str
) -> None:
    sample = small.sample(1)
    with running(small.path, limit, "0.2", folder=tmp_path) as server:
        with RawConnection(server.address) as raw:
            raw.send(hello())
            assert GOAWAY in [frame.kind for frame in raw.frames()]  # ends when the server closes
        client = server.client()
        for _ in range(3):
            assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), small.answer(sample))


def test_connections_beyond_the_limit_are_refused_and_those_within_live_on(
    small: Exported, tmp_path: Path
) -> None:
    data = small.sample(1).request().SerializeToString()
    with running(small.path, "--max-connections", "2", folder=tmp_path) as server:
        first, second = (server.predict_bytes() for _ in range(2))
        for call in (first, second):
            assert status_of(lambda call=call: call(data, timeout=60))[0] is grpc.StatusCode.OK
        third = server.predict_bytes()
        assert status_of(lambda: third(data, timeout=60))[0] is grpc.StatusCode.UNAVAILABLE
        for call in (first, second):
            assert status_of(lambda call=call: call(data, timeout=60))[0] is grpc.StatusCode.OK


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_server_that_is_asked_to_stop_says_so_answers_what_it_took_and_ends_with_0(
    slow: Exported, tmp_path: Path, number: signal.Signals
) -> None:
    with running(slow.path, "--max-batch-rows", "64", folder=tmp_path) as server:
        states: queue.Queue[int] = queue.Queue()
        watching = {service: watch(server, service) for service in ("", PREDICTION, f"{PREDICTION}/slow")}
        assert [next(watched) for watched in watching.values()] == [SERVING] * 3
        threads = [
            threading.Thread(target=lambda one=one: states.put(next(one))) for one in watching.values()
        ]
        for thread in threads:
            thread.start()
        call = server.predict_bytes()
        calls = [call.future(slow_request(64), timeout=120) for _ in range(NUM_CALLS)]
        while server.total("recsys_requests_accepted_total") < NUM_CALLS:
            pass
        server.signal(number)
        assert [states.get(timeout=60) for _ in threads] == [NOT_SERVING] * 3
        code, stopped = server.finish()
        for one in calls:
            answer = read_response(predict_pb2.PredictResponse.FromString(one.result()))
            np.testing.assert_array_equal(answer["score"], np.arange(64))
        for thread in threads:
            thread.join()
    assert code == 0
    assert (stopped["event"], stopped["in_time"]) == ("stopped", True)
    assert stopped["ok"] == stopped["accepted"] == NUM_CALLS


def test_what_is_not_done_within_the_drain_limit_is_given_up_and_the_exit_code_is_1(
    slow: Exported, tmp_path: Path
) -> None:
    arguments = ["--drain-timeout-s", "0.2", "--max-batch-rows", "512"]
    with running(slow.path, *arguments, folder=tmp_path) as server:
        call = server.predict_bytes()
        # More than executors: those that run may still be answered, those that wait are given up.
        calls = [call.future(slow_request(1024), timeout=120) for _ in range(8)]
        while server.total("recsys_requests_accepted_total") < 8:
            pass
        code, stopped = server.stop()
        codes = {one.code() for one in calls}
    assert (code, stopped["in_time"]) == (1, False)
    assert codes & {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_sigterm_while_a_version_is_loading_ends_the_server_at_once_and_cleanly(
    repository: Path, small: Exported, slow: Exported, tmp_path: Path
) -> None:
    """A load has accepted nothing: nobody waits for it, and its thread does not spoil the end."""
    put_version(repository, "m", "1", small.path)
    with running("--repository", repository, *with_admin(tmp_path), folder=tmp_path) as server:
        sample = small.sample(2)
        put_version(repository, "m", "2", slow.path)
        server.signal(signal.SIGHUP)
        admin = server.admin()
        for _ in range(10_000):
            (model,) = admin.ListModels(admin_pb2.ListModelsRequest()).models
            states = {version.version: version.state for version in model.versions}
            if states.get("2") in (admin_pb2.MODEL_STATE_LOADING, admin_pb2.MODEL_STATE_READY):
                break
        assert_answers(
            server.client(version="1").predict(sample.dense, sample.sparse, sample.weights),
            small.answer(sample),
        )
        code, stopped = server.stop()
    assert (code, stopped["in_time"], stopped["ok"]) == (0, True, 1)
    assert "terminate called" not in server.log.read_text()
