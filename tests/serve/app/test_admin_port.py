"""The admin port of a real server: what operators may do, who may not, and what is written down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from serve.app.server import Server
from serve.client import AsyncClient
from serve.config.settings import AdminConfig, ServerConfig
from serve.models.repository import Repository
from serve.rpc.reflection import SERVICES as REFLECTION
from serve.wire import admin_pb2 as wire
from serve.wire import open_inference_pb2 as inference
from tests.support.serve.admin_live import SERVICE, TOKEN, AdminLive, admin_live, write_token
from tests.support.serve.certificates import Authority, write_tls
from tests.support.serve.messages.echo import OWN_CONNECTION

_BEARER = (("authorization", f"Bearer {TOKEN}"),)
_INFERENCE = "/inference.GRPCInferenceService/"
Scenario = Callable[[AdminLive, grpc.aio.Channel], Awaitable[None]]


def _run(scenario: Scenario, folder: Path, artifact: Path) -> None:
    async def run() -> None:
        async with admin_live(folder, artifact) as live, grpc.aio.insecure_channel(live.address) as channel:
            await scenario(live, channel)

    asyncio.run(run())


def _states(status: wire.ModelStatus) -> dict[str, str]:
    return {v.version: wire.ModelState.Name(v.state).removeprefix("MODEL_STATE_") for v in status.versions}


def test_a_versions_life_from_load_to_unload(artifact_path: Path, tmp_path: Path) -> None:
    async def scenario(live: AdminLive, channel: grpc.aio.Channel) -> None:
        (status,) = (await live.call(channel, wire.ListModelsRequest())).models
        assert (status.model, status.serving, status.routing.serve) == ("small", "2", "latest")
        assert _states(status)["2"] == "READY"

        version = await live.call(channel, wire.LoadModelRequest(model="small", version="1"))
        assert (version.version, version.state) == ("1", wire.MODEL_STATE_READY)
        assert version.table_bytes > 0
        assert version.digest

        canary = wire.Routing(serve="2", canary="1", canary_percent=100)
        status = await live.call(channel, wire.SetRoutingRequest(model="small", routing=canary))
        assert status.routing == canary
        async with AsyncClient(f"127.0.0.1:{live.port}", timeout_s=60) as client:
            assert (await client.metadata()).version == "1"

        status = await live.call(channel, wire.RollbackRequest(model="small"))
        assert (status.serving, status.routing.canary) == ("2", "")
        await live.call(channel, wire.UnloadModelRequest(model="small", version="1"))
        (status,) = (await live.call(channel, wire.ListModelsRequest())).models
        assert _states(status) == {"1": "AVAILABLE", "2": "READY"}

    _run(scenario, tmp_path, artifact_path)


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        pytest.param(wire.LoadModelRequest(), "INVALID_ARGUMENT", "model: got an empty text", id="no-model"),
        pytest.param(wire.LoadModelRequest(model="other"), "NOT_FOUND", "model: got 'other'", id="model"),
        pytest.param(wire.LoadModelRequest(model="../etc"), "NOT_FOUND", "model: got '../etc'", id="path"),
        pytest.param(
            wire.LoadModelRequest(model="small", version="9"), "NOT_FOUND", "version: got '9'", id="version"
        ),
        pytest.param(wire.UnloadModelRequest(model="x"), "NOT_FOUND", "model: got 'x'", id="unload"),
        pytest.param(
            wire.SetRoutingRequest(model="small"), "INVALID_ARGUMENT", "routing: missing", id="no-routing"
        ),
        pytest.param(
            wire.SetRoutingRequest(model="small", routing=wire.Routing(canary="1", canary_percent=101)),
            "INVALID_ARGUMENT",
            "routing.canary_percent: got 101.0, expected above 0, up to 100",
            id="percent",
        ),
        pytest.param(
            wire.SetRoutingRequest(
                model="small", routing=wire.Routing(canary="1", canary_percent=float("nan"))
            ),
            "INVALID_ARGUMENT",
            "routing.canary_percent: got nan",
            id="nan",
        ),
        pytest.param(
            wire.SetRoutingRequest(model="small", routing=wire.Routing(serve="9")),
            "NOT_FOUND",
            "'9'",
            id="pinned",
        ),
        pytest.param(
            wire.RollbackRequest(model="small"), "FAILED_PRECONDITION", "", id="nothing-to-roll-back"
        ),
        pytest.param(
            wire.ApplyDeltaRequest(model="small"), "INVALID_ARGUMENT", "delta: got an empty", id="no-delta"
        ),
        pytest.param(
            wire.ApplyDeltaRequest(model="small", delta="../../etc/passwd"),
            "INVALID_ARGUMENT",
            "delta: got '../../etc/passwd', expected the name of a file",
            id="delta-path",
        ),
        pytest.param(
            wire.ApplyDeltaRequest(model="small", delta="missing"),
            "NOT_FOUND",
            "delta: got 'missing'",
            id="delta",
        ),
    ],
)
def test_wrong_calls_are_refused_and_change_nothing(
    request_: Message, code: str, text: str, artifact_path: Path, tmp_path: Path
) -> None:
    async def scenario(live: AdminLive, channel: grpc.aio.Channel) -> None:
        before = await live.call(channel, wire.ListModelsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await live.call(channel, request_)
        assert caught.value.code().name == code
        assert text in (caught.value.details() or "")
        assert str(tmp_path) not in (caught.value.details() or "")
        assert await live.call(channel, wire.ListModelsRequest()) == before

    _run(scenario, tmp_path, artifact_path)


def test_without_the_token_nothing_answers(
    artifact_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(_: AdminLive, channel: grpc.aio.Channel) -> None:
        for token in (None, "", "wrong-token-of-some-length", TOKEN + "x"):
            for name in (f"/{SERVICE}/ListModels", f"{_INFERENCE}ServerLive", "/no.Such/Method"):
                metadata = None if token is None else [("authorization", f"Bearer {token}")]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(name)(b"", timeout=60, metadata=metadata)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        # A caller who keeps its stream open is not waited for.
        stream = channel.stream_stream(f"{_INFERENCE}ModelStreamInfer")(timeout=60)
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        # With the token: what is not there is not there.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/no.Such/Method")(b"", timeout=60, metadata=_BEARER)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with caplog.at_level(logging.INFO, logger="serve"):
        _run(scenario, tmp_path, artifact_path)
    refused = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(refused) == 4 * 3 + 3
    assert "wrong-token" not in caplog.text
    assert TOKEN not in caplog.text


def test_a_client_of_the_model_is_told_that_this_is_the_admin_port(
    artifact_path: Path, tmp_path: Path
) -> None:
    async def scenario(live: AdminLive, _: grpc.aio.Channel) -> None:
        for token in ("", TOKEN):
            headers = (("authorization", f"Bearer {token}"),) if token else ()
            async with grpc.aio.insecure_channel(live.address) as channel:
                call = channel.unary_unary("/recsys.v1.PredictionService/GetModelMetadata")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", metadata=headers)
            assert "this is the admin port; requests go to the port= of the server's ready line" in (
                caught.value.details() or ""
            )
            code = caught.value.code()
            assert code is (grpc.StatusCode.UNIMPLEMENTED if token else grpc.StatusCode.UNAUTHENTICATED)

    _run(scenario, tmp_path, artifact_path)


def test_a_new_token_holds_without_a_restart(artifact_path: Path, tmp_path: Path) -> None:
    async def scenario(live: AdminLive, channel: grpc.aio.Channel) -> None:
        write_token(tmp_path, "another-token-for-a-new-day")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await live.call(channel, wire.ListModelsRequest())
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await live.call(channel, wire.ListModelsRequest(), "another-token-for-a-new-day")).models

    _run(scenario, tmp_path, artifact_path)


def test_every_admin_call_is_written_down_without_the_token(
    artifact_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(live: AdminLive, channel: grpc.aio.Channel) -> None:
        await live.call(channel, wire.LoadModelRequest(model="small", version="1"))
        with pytest.raises(grpc.aio.AioRpcError):
            await live.call(channel, wire.UnloadModelRequest(model="line\nbreak"))
        with pytest.raises(grpc.aio.AioRpcError):
            await channel.unary_unary(f"/{SERVICE}/Rollback")(b"\xff\xff", timeout=60, metadata=_BEARER)
        load = inference.RepositoryModelUnloadRequest(model_name="small").SerializeToString()
        await channel.unary_unary(f"{_INFERENCE}RepositoryModelUnload")(load, timeout=60, metadata=_BEARER)

    with caplog.at_level(logging.INFO, logger="serve.admin"):
        _run(scenario, tmp_path, artifact_path)
    lines = [record.getMessage() for record in caplog.records if record.name == "serve.admin"]
    assert [line.partition(" from ")[0] for line in lines] == [
        'LoadModel {model: "small" version: "1"}',
        'UnloadModel {model: "line\\nbreak"}',
        "Rollback {2 bytes that are no message}",
        'RepositoryModelUnload {model_name: "small"}',
    ]
    outcomes = [line.partition(" from ")[2] for line in lines]
    assert all(outcome.startswith("ipv4:127.0.0.1:") for outcome in outcomes)
    assert [outcome.split(": ")[1] for outcome in outcomes] == ["OK", "NOT_FOUND", "INVALID_ARGUMENT", "OK"]
    assert TOKEN not in caplog.text


def test_open_inference_loads_and_unloads_on_the_admin_port_alone(
    artifact_path: Path, tmp_path: Path
) -> None:
    unload = inference.RepositoryModelUnloadRequest(model_name="small").SerializeToString()
    load = inference.RepositoryModelLoadRequest(model_name="small").SerializeToString()

    async def scenario(live: AdminLive, channel: grpc.aio.Channel) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{live.port}") as other:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await other.unary_unary(f"{_INFERENCE}RepositoryModelUnload")(
                    unload, timeout=60, metadata=_BEARER
                )
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await live.call(other, wire.ListModelsRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await channel.unary_unary(f"{_INFERENCE}RepositoryModelUnload")(unload, timeout=60, metadata=_BEARER)
        (status,) = (await live.call(channel, wire.ListModelsRequest())).models
        assert status.serving == ""
        await channel.unary_unary(f"{_INFERENCE}RepositoryModelLoad")(load, timeout=60, metadata=_BEARER)
        (status,) = (await live.call(channel, wire.ListModelsRequest())).models
        assert status.serving == "2"

    _run(scenario, tmp_path, artifact_path)


def test_health_and_reflection_answer_those_who_show_the_token(artifact_path: Path, tmp_path: Path) -> None:
    async def scenario(_: AdminLive, channel: grpc.aio.Channel) -> None:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(
                health_pb2.HealthCheckRequest(service=service), timeout=60, metadata=_BEARER
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for service in REFLECTION:
            method = channel.stream_stream(
                f"/{service}/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            ask = [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=service),
            ]
            listed, described = [one async for one in method(iter(ask), timeout=60, metadata=_BEARER)]
            names = {one.name for one in listed.list_services_response.service}
            assert {SERVICE, "inference.GRPCInferenceService", *REFLECTION} <= names
            assert len(described.file_descriptor_response.file_descriptor_proto) == 1
            # Without requests: grpc.aio reports one that meets the refusal on its way as its own internal error.
            assert await method(iter(()), timeout=60).code() is grpc.StatusCode.UNAUTHENTICATED

    _run(scenario, tmp_path, artifact_path)


def test_the_admin_port_has_the_servers_tls(artifact_path: Path, tmp_path: Path) -> None:
    authority, clients = Authority(), Authority("clients")
    tls = write_tls(tmp_path, authority.issue(), clients.certificate)
    client = clients.issue("operator")

    async def scenario() -> None:
        async with admin_live(tmp_path, artifact_path, tls) as live:
            known = grpc.ssl_channel_credentials(authority.certificate, client.key, client.certificate)
            async with grpc.aio.secure_channel(live.address, known) as channel:
                assert (await live.call(channel, wire.ListModelsRequest())).models
            unknown = grpc.ssl_channel_credentials(authority.certificate)
            for channel in (
                grpc.aio.secure_channel(live.address, unknown, options=OWN_CONNECTION),
                grpc.aio.insecure_channel(live.address),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await live.call(channel, wire.ListModelsRequest())
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                await channel.close()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_said_so(artifact_path: Path, tmp_path: Path) -> None:
    async def scenario(live: AdminLive, _: grpc.aio.Channel) -> None:
        taken = AdminConfig(token_file=live.token_file, port=live.server.admin_port or 0)
        second = Server(Repository(live.root), ServerConfig(port=0, metrics_port=None, admin=taken))
        with pytest.raises(
            OSError, match=r"cannot serve administration on 127\.0\.0\.1:[0-9]+: the port is taken"
        ):
            await second.start()

    _run(scenario, tmp_path, artifact_path)
