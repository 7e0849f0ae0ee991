"""Both servers, one artifact, one request after the other: the batches are the same, and every byte of the answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from serve.client import PREDICT
from tests.conformance.artifacts import CONTEXT, Exported, export_policies, export_small
from tests.native.tool import BUILD

SERVER = BUILD / "recsys-server"

pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="needs recsys-server; make native builds it")


@contextmanager
def serving(*command: str | Path) -> Iterator[grpc.Channel]:
    options = ("--port", "0", "--no-metrics", "--json")
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = json.loads(process.stdout.readline())["port"]
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=[export_small, export_policies], ids=["small", "policies"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Exported, grpc.Channel, grpc.Channel]]:
    exported = request.param(tmp_path_factory.mktemp("served") / "artifact")
    with ExitStack() as stack:
        python = stack.enter_context(serving(sys.executable, "-m", "serve.cli", exported.path))
        native = stack.enter_context(serving(SERVER, exported.path))
        yield exported, python, native


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 64, 300])
def test_answers_to_plain_requests_are_the_same_bytes(
    served: tuple[Exported, grpc.Channel, grpc.Channel], num_rows: int
) -> None:
    exported, python, native = served
    for seed in range(10):
        data = exported.sample(num_rows, seed).request().SerializeToString()
        assert native.unary_unary(PREDICT)(data) == python.unary_unary(PREDICT)(data)


def test_answers_to_ranking_requests_are_the_same_bytes(
    served: tuple[Exported, grpc.Channel, grpc.Channel],
) -> None:
    exported, python, native = served
    if not exported.signature.context:
        pytest.skip("the model has no ranking form")
    for seed in range(10):
        once, rows = exported.sample(1, seed).request(), exported.sample(40, 100 + seed).request()
        for kept in (rows.dense, rows.sparse):
            for message in [message for message in kept if message.name in CONTEXT]:
                kept.remove(message)
        rows.context_dense.extend(message for message in once.dense if message.name in CONTEXT)
        rows.context_sparse.extend(message for message in once.sparse if message.name in CONTEXT)
        data = rows.SerializeToString()
        assert native.unary_unary(PREDICT)(data) == python.unary_unary(PREDICT)(data)
