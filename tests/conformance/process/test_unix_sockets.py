"""A server on a Unix socket, asked by gRPC's own clients and by ours."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serve.client import PREDICT, AsyncClient, Client
from serve.client.packing import read_response
from serve.tools import probe
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import COMMAND, running
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine


@pytest.fixture
def socket() -> Iterator[Path]:
    """A path that is short enough, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="rs-") as folder:
        yield Path(folder) / "s.sock"


def test_a_server_on_a_unix_socket_answers_grpc(small: Exported, tmp_path: Path, socket: Path) -> None:
    sample = small.sample(3)
    data, expected = sample.request().SerializeToString(), small.answer(sample)
    with running(small.path, "--host", f"unix://{socket}", folder=tmp_path) as server:
        assert (server.ready["host"], server.ready["port"]) == (f"unix:{socket}", 0)
        for address in (f"unix:{socket}", f"unix://{socket}"):
            with grpc.insecure_channel(address) as channel:
                answer = channel.unary_unary(PREDICT)(data, timeout=60)
                assert_answers(read_response(wire.PredictResponse.FromString(answer)), expected)
                health = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=60
                )
                assert health.status == health_pb2.HealthCheckResponse.SERVING
            with Client(address, timeout_s=60) as client:
                assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), expected)

        async def ask() -> None:
            async with AsyncClient(f"unix:{socket}", timeout_s=60) as client:
                assert_answers(await client.predict(sample.dense, sample.sparse, sample.weights), expected)

        asyncio.run(ask())
        assert probe.main([f"unix:{socket}"]) == 0
        assert server.total("recsys_requests_accepted_total") == 5
        # A second server leaves it alone.
        command = [*COMMAND, str(small.path), "--host", f"unix:{socket}", "--no-metrics"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert second.returncode == 1
        assert f"cannot listen on unix:{socket}: another server listens there" in second.stderr
        code, _ = server.stop()
    assert code == 0
    assert not socket.exists()


def test_a_socket_that_was_left_behind_is_replaced(small: Exported, tmp_path: Path, socket: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with running(small.path, "--host", f"unix:{socket}", folder=tmp_path) as server:
            with Client(f"unix:{socket}", timeout_s=60) as client:
                assert client.metadata().model == server.ready["model"]
            assert socket.is_socket()
            server.signal(number)
            server.process.wait(120)
    assert not socket.exists()
