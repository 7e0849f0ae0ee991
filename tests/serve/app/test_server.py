"""The live server on loopback: wrong requests, neighbours, concurrency, deadlines, cancellation, overload, drain."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serve.app.server import Server
from serve.client import GET_MODEL_METADATA, PREDICT, AsyncClient, Client
from serve.client.errors import (
    DeadlineError,
    OverloadedError,
    ServerError,
    UnavailableError,
    UnknownModelError,
)
from serve.client.packing import read_response
from serve.config.models import BatchLimits, ModelSettings
from serve.config.settings import AdminConfig, ConnectionLimits, ServerConfig
from serve.engine.reference.executor import ServedModel
from serve.engine.reference.protocols.recsys_v1 import SERVICE
from serve.wire import predict_pb2 as wire
from tests.support.serve.live import INFO, LiveServer, server_of
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.messages.wrong import WRONG, Wrong, good
from tests.support.serve.models import SIGNATURE, FailingModel, GatedModel

Outputs = dict[str, np.ndarray]


def raw_call(channel: grpc.Channel, method: str = PREDICT) -> Callable[..., bytes]:
    """A method that takes and gives bytes, past every check of our own client."""
    return channel.unary_unary(method)


@pytest.fixture(scope="module")
def channel(live: LiveServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(live.address) as made:
        yield made


@pytest.fixture
def gated(model: ServedModel) -> Iterator[GatedModel]:
    made = GatedModel(model)
    yield made
    made.gate.set()


def sample_of(rows: int, seed: int = 0) -> Sample:
    return random_sample(SIGNATURE, rows, np.random.default_rng(seed))


def predict(client: Client, sample: Sample, timeout_s: float = 60.0) -> Outputs:
    return client.predict(sample.dense, sample.sparse, sample.weights, timeout_s=timeout_s)


def until(live: LiveServer, outcome: str, count: int) -> None:
    """Make calls until the server has counted so many requests of that outcome."""
    with Client(live.address) as client:
        for _ in range(20_000):
            if live.server.metrics.outcomes()[outcome] >= count:
                return
            client.metadata()
    pytest.fail(f"{outcome}: got {live.server.metrics.outcomes()[outcome]}, expected {count}")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_each_wrong_request_gets_invalid_argument(channel: grpc.Channel, wrong: Wrong) -> None:
    request = good()
    wrong.spoil(request)
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(channel)(request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert wrong.text in caught.value.details()


def test_a_long_request_id_is_refused(channel: grpc.Channel) -> None:
    request = good()
    request.request_id = "x" * 129
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(channel)(request.SerializeToString())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "request_id: got 129 bytes, expected at most" in caught.value.details()


@pytest.mark.parametrize("method", [PREDICT, GET_MODEL_METADATA])
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x02\xff\xfe", b"\x22\xff\xff\xff\xff\x7f"])
def test_bytes_that_are_no_message_get_invalid_argument(
    channel: grpc.Channel, method: str, data: bytes
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(channel, method)(data)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"message: got {len(data)} bytes that are not a " in caught.value.details()


def test_a_message_beyond_the_limit_is_refused(model: ServedModel) -> None:
    config = ServerConfig(port=0, metrics_port=None, connections=ConnectionLimits(max_message_bytes=4096))
    with LiveServer(model, config) as live, Client(live.address) as client:
        with pytest.raises(OverloadedError):
            client.predict({"context": np.zeros((1000, 3))})
        assert_answers(predict(client, sample_of(2)), answer(model, sample_of(2)))


def test_another_models_name_is_not_found(live: LiveServer) -> None:
    with Client(live.address, model="other") as other:
        with pytest.raises(UnknownModelError, match="model: got 'other', expected 'small'"):
            predict(other, sample_of(1))
        with pytest.raises(UnknownModelError):
            other.metadata()
    with Client(live.address, model="small") as named:
        assert named.metadata().model == "small"


def test_neighbours_of_wrong_requests_in_one_batch_are_answered_right(
    model: ServedModel, gated: GatedModel
) -> None:
    samples = [sample_of(1 + i % 3, seed=i) for i in range(8)]
    with LiveServer(gated) as live, grpc.insecure_channel(live.address) as channel:
        call = channel.unary_unary(PREDICT)
        gated.close_gate()
        running = call.future(sample_of(1).request().SerializeToString())
        assert gated.started.acquire(timeout=60)
        goods, bads = [], []
        for sample, wrong in zip(samples, WRONG, strict=False):
            goods.append(call.future(sample.request().SerializeToString()))
            bad = good()
            wrong.spoil(bad)
            bads.append(call.future(bad.SerializeToString()))
        for bad_call in bads:
            assert bad_call.code() is grpc.StatusCode.INVALID_ARGUMENT
        until(live, "accepted", 9)
        gated.gate.set()
        running.result(60)
        for sample, good_call in zip(samples, goods, strict=True):
            response = wire.PredictResponse.FromString(good_call.result(60))
            assert_answers(read_response(response), answer(model, sample))
            assert (response.model, response.version) == (INFO.name, INFO.version)
    assert gated.batches == [1, sum(sample.num_rows for sample in samples)]


def test_concurrent_requests_over_many_connections_each_get_their_own_answer(
    model: ServedModel, live: LiveServer
) -> None:
    def one_connection(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with Client(live.address) as client:
            for _ in range(25):
                sample = random_sample(SIGNATURE, int(rng.integers(0, 9)), rng)
                assert_answers(predict(client, sample), answer(model, sample))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(one_connection, seed) for seed in range(8)]:
            done.result(120)


def test_a_request_whose_deadline_passes_in_the_queue_is_not_computed(
    model: ServedModel, gated: GatedModel
) -> None:
    with LiveServer(gated) as live, Client(live.address) as client, ThreadPoolExecutor(1) as pool:
        gated.close_gate()
        running = pool.submit(predict, client, sample_of(1))
        assert gated.started.acquire(timeout=60)
        # On a slow machine the deadline may pass before the server has the request.
        for timeout_s in (0.2, 2.0, 20.0):
            with pytest.raises(DeadlineError):
                predict(client, sample_of(5), timeout_s=timeout_s)
            if live.server.metrics.outcomes()["accepted"] == 2:
                break
        until(live, "expired", 1)
        gated.gate.set()
        assert_answers(running.result(60), answer(model, sample_of(1)))
        assert_answers(predict(client, sample_of(2)), answer(model, sample_of(2)))
    assert gated.batches == [1, 2]


def test_a_cancelled_request_leaves_the_queue(model: ServedModel, gated: GatedModel) -> None:
    with LiveServer(gated) as live, grpc.insecure_channel(live.address) as channel:
        call = channel.unary_unary(PREDICT)
        gated.close_gate()
        running = call.future(sample_of(1).request().SerializeToString())
        assert gated.started.acquire(timeout=60)
        unwanted = call.future(sample_of(5).request().SerializeToString())
        until(live, "accepted", 2)
        unwanted.cancel()
        until(live, "cancelled", 1)
        wanted = call.future(sample_of(2).request().SerializeToString())
        until(live, "accepted", 3)
        gated.gate.set()
        running.result(60)
        response = wire.PredictResponse.FromString(wanted.result(60))
        assert_answers(read_response(response), answer(model, sample_of(2)))
    assert gated.batches == [1, 2]


def test_a_full_queue_is_resource_exhausted(model: ServedModel, gated: GatedModel) -> None:
    limits = BatchLimits(max_queue_rows=4, max_request_rows=4)
    config = ServerConfig(port=0, metrics_port=None, defaults=ModelSettings(limits=limits))
    with LiveServer(gated, config) as live, Client(live.address) as client, ThreadPoolExecutor(2) as pool:
        gated.close_gate()
        accepted = [pool.submit(predict, client, sample_of(1))]
        assert gated.started.acquire(timeout=60)
        accepted.append(pool.submit(predict, client, sample_of(4)))
        until(live, "accepted", 2)
        with pytest.raises(OverloadedError, match="queue: 4 rows wait, at most 4 may"):
            predict(client, sample_of(1))
        gated.gate.set()
        for rows, done in zip((1, 4), accepted, strict=True):
            assert_answers(done.result(60), answer(model, sample_of(rows)))
        assert_answers(predict(client, sample_of(1)), answer(model, sample_of(1)))


def test_a_model_that_raises_fails_its_own_requests_only(model: ServedModel) -> None:
    bad_id = 777_000
    bad = sample_of(1)
    bad = Sample(1, bad.dense, {**bad.sparse, "item": [[bad_id]]}, bad.weights)
    with LiveServer(FailingModel(model, bad_id)) as live, Client(live.address) as client:
        with pytest.raises(ServerError, match="INTERNAL: the model failed on this request") as caught:
            predict(client, bad)
        assert "secret" not in caught.value.message
        assert_answers(predict(client, sample_of(2)), answer(model, sample_of(2)))
        assert live.server.metrics.outcomes()["failed"] == 1


def health_of(channel: grpc.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=30).status)


@pytest.mark.parametrize("service", ["", SERVICE])
def test_health_says_serving_only_after_the_warm_up(gated: GatedModel, service: str) -> None:
    gated.close_gate()
    live = LiveServer(gated, wait=False)
    with live, grpc.insecure_channel(live.address) as channel:
        assert gated.started.acquire(timeout=60)
        assert health_of(channel, service) == health_pb2.HealthCheckResponse.NOT_SERVING
        gated.gate.set()
        live.wait_until_ready()
        assert health_of(channel, service) == health_pb2.HealthCheckResponse.SERVING


def test_a_request_before_the_model_is_ready_is_unavailable(model: ServedModel, gated: GatedModel) -> None:
    gated.close_gate()
    live = LiveServer(gated, wait=False)
    with live, Client(live.address) as client:
        with pytest.raises(UnavailableError, match="ready"):
            predict(client, sample_of(3))
        gated.gate.set()
        live.wait_until_ready()
        assert_answers(predict(client, sample_of(3)), answer(model, sample_of(3)))


def _health(server: Server) -> tuple[int, bytes]:
    """Ask the metrics port."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.metrics_port}/healthz", timeout=30
        ) as answered:
            return answered.status, answered.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_drain_answers_what_was_accepted_refuses_what_is_new_and_ends_watches(
    model: ServedModel, gated: GatedModel
) -> None:
    async def scenario() -> None:
        server = server_of(gated, ServerConfig(port=0, metrics_port=0, drain_timeout_s=60))
        await server.start()
        await server.wait_until_ready()
        assert await asyncio.to_thread(_health, server) == (200, b"SERVING\n")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            call = channel.unary_unary(PREDICT)
            gated.close_gate()
            accepted = [call(sample_of(rows).request().SerializeToString()) for rows in (1, 2, 3)]
            while server.metrics.outcomes()["accepted"] < 3:
                await channel.unary_unary(GET_MODEL_METADATA)(b"")
            stopping = asyncio.ensure_future(server.stop())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await asyncio.to_thread(_health, server) == (503, b"NOT_SERVING\n")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as late:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await late.unary_unary(PREDICT)(sample_of(1).request().SerializeToString())
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not stopping.done()
            gated.gate.set()
            for rows, one in zip((1, 2, 3), accepted, strict=True):
                response = wire.PredictResponse.FromString(await one)
                assert_answers(read_response(response), answer(model, sample_of(rows)))
            assert await asyncio.wait_for(stopping, 30)
        assert server.metrics.outcomes()["ok"] == 3

    asyncio.run(scenario())


def test_a_drain_that_takes_too_long_says_so(gated: GatedModel) -> None:
    async def scenario() -> bool:
        server = server_of(gated, ServerConfig(port=0, metrics_port=None, drain_timeout_s=0.2))
        await server.start()
        await server.wait_until_ready()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            gated.close_gate()
            stuck = channel.unary_unary(PREDICT)(sample_of(1).request().SerializeToString())
            stuck = asyncio.ensure_future(_code(stuck))
            while server.metrics.outcomes()["accepted"] < 1:
                await channel.unary_unary(GET_MODEL_METADATA)(b"")
            stopping = asyncio.ensure_future(server.stop())
            assert await stuck is not grpc.StatusCode.OK
            gated.gate.set()
            return await asyncio.wait_for(stopping, 30)

    assert not asyncio.run(scenario())


async def _code(call: grpc.aio.UnaryUnaryCall) -> grpc.StatusCode:
    return await call.code()


def test_after_the_server_has_stopped_clients_hear_unavailable(model: ServedModel) -> None:
    with LiveServer(model) as live:
        address = live.address
    with Client(address) as client, pytest.raises(UnavailableError):
        client.metadata()


def test_a_taken_port_is_a_clear_error(live: LiveServer, model: ServedModel) -> None:
    async def start(config: ServerConfig) -> None:
        await server_of(model, config).start()

    port, metrics_port = live.server.port, live.server.metrics_port
    with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:.* choose other ports with --port, or"):
        asyncio.run(start(ServerConfig(port=port, metrics_port=None)))
    with pytest.raises(OSError, match=r"cannot serve metrics on port .* with --metrics-port or --no-metrics"):
        asyncio.run(start(ServerConfig(port=0, metrics_port=metrics_port)))
    with pytest.raises(OSError, match=f"{port} and {metrics_port} are taken, .* --port 0 --metrics-port 0"):
        asyncio.run(start(ServerConfig(port=port, metrics_port=metrics_port)))
    with pytest.raises(OSError, match=r"not ours$"):
        asyncio.run(start(ServerConfig(host="192.0.2.1", port=0, metrics_port=None)))


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_is_listened_on(model: ServedModel, host: str) -> None:
    async def ask() -> str:
        server = server_of(model, ServerConfig(host=host, port=0, metrics_port=0))
        await server.start()
        await server.wait_until_ready()
        async with AsyncClient(f"[::1]:{server.port}") as client:
            answered = (await client.metadata()).model
        await server.stop()
        return answered

    assert asyncio.run(ask())


@pytest.mark.parametrize(
    "host", ["", "unix-abstract:a", "[::1]:80", "127.0.0.1:80", "http://a", "a b", "[::1"]
)
def test_what_is_no_address_is_refused(host: str) -> None:
    for make in (ServerConfig, lambda **of: AdminConfig(token_file=Path("t"), **of)):
        with pytest.raises(
            ValueError, match=r"^host: got .*, expected an address such as 127\.0\.0\.1 or ::1"
        ):
            make(host=host)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("unix:", "expected unix:PATH"),
        ("unix:folder/", "expected unix:PATH"),
        ("unix://host/path", "expected unix:PATH"),
        ("unix:a\0b", "expected unix:PATH"),
        ("unix:/" + "a" * 107, "got a path of 108 bytes, expected at most 107"),
    ],
)
def test_what_is_no_socket_is_refused(host: str, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^host: .*{said}"):
        ServerConfig(host=host)
    with pytest.raises(ValueError, match=r"only the gRPC services listen on Unix sockets, unix:PATH"):
        AdminConfig(token_file=Path("t"), host="unix:/a")


def test_no_file_of_another_kind_is_replaced_by_a_socket(model: ServedModel, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    for host, said in (
        (path, "there is a file that is no socket"),
        (tmp_path / "no/socket", "does not exist"),
    ):
        config = ServerConfig(host=f"unix:{host}", metrics_port=None)
        with pytest.raises(OSError, match=said):
            asyncio.run(server_of(model, config).start())
    assert path.read_text() == "kept"


def test_metadata_is_the_whole_signature(client: Client) -> None:
    metadata = client.metadata()
    assert [(d.name, d.width) for d in metadata.dense] == [("context", 3), ("price", 1)]
    assert [s.name for s in metadata.sparse] == ["user", "genres", "item", "tags"]
    genres, item, tags = metadata.sparse[1:]
    assert (genres.pooling, genres.weighted, genres.id_limit) == (wire.POOLING_MEAN, False, 7)
    assert (item.tables[0].name, item.tables[0].num_embeddings) == ("catalog", 11)
    assert item.tables[0].id_policy == wire.ID_POLICY_HASH
    assert not item.HasField("id_limit")
    assert tags.weighted
    assert [(o.name, list(o.shape)) for o in metadata.outputs] == [("score", []), ("vectors", [2, 3])]
    assert metadata.limits.max_rows == BatchLimits().max_request_rows
    assert (metadata.model, metadata.version, metadata.target) == ("small", "7", "cpu")


def test_metrics_count_requests_batches_and_tables(model: ServedModel) -> None:
    with LiveServer(model) as live, Client(live.address) as client:
        for rows in (1, 2):
            predict(client, sample_of(rows))
        with pytest.raises(UnknownModelError), Client(live.address, model="x") as other:
            predict(other, sample_of(1))
        with urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics") as page:
            lines = page.read().decode().splitlines()
    labels = 'model="small",version="7"'
    for line in (
        f'recsys_requests_total{{{labels},outcome="ok"}} 2.0',
        'recsys_requests_total{model="",version="",outcome="not_found"} 1.0',
        f"recsys_batch_rows_sum{{{labels}}} 3.0",
        f"recsys_batch_rows_count{{{labels}}} 2.0",
        *(
            f'recsys_stage_seconds_count{{{labels},stage="{stage}"}} 2.0'
            for stage in ("queue", "collate", "execute", "respond")
        ),
        f"recsys_pending_rows{{{labels}}} 0.0",
        f'recsys_table_bytes{{{labels},table="users"}} 1600.0',
    ):
        assert _with_sorted_labels(line) in map(_with_sorted_labels, lines), line


def _with_sorted_labels(line: str) -> tuple[str, list[str], str]:
    name, _, rest = line.partition("{")
    labels, _, value = rest.partition("}")
    return name, sorted(labels.split(",")), value


def test_two_executors_answer_as_one(model: ServedModel) -> None:
    config = ServerConfig(port=0, metrics_port=None, defaults=ModelSettings(num_executors=2))
    with LiveServer(model, config) as live, Client(live.address) as client, ThreadPoolExecutor(8) as pool:
        samples = [sample_of(1 + seed % 4, seed) for seed in range(64)]
        answers: list[Future[Outputs]] = [pool.submit(predict, client, sample) for sample in samples]
        for sample, done in zip(samples, answers, strict=True):
            assert_answers(done.result(60), answer(model, sample))
