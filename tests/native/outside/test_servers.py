"""A live server with rows in three Redis nodes, under load: deltas, and nodes that hang, end and come back.

Each answer is that of one state of the rows, or the stated one.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from recsys.artifact.store.keys import CHUNK_ROWS
from recsys.artifact.store.push import push_artifact
from recsys.artifact.store.push_delta import push_delta
from serve.client.packing import read_response
from serve.observe.capture_file import CapturedRequest, header, record
from serve.wire import admin_pb2
from serve.wire import predict_pb2 as wire
from tests.conformance.support import harness
from tests.conformance.support.chains import NUM_DELTAS, Answers, Chain, answers_under_load
from tests.native.outside.items import NUM_ITEMS, NUM_USERS, Items
from tests.native.tool import needs_tool
from tests.support.serve.messages.cases import Sample, answer, assert_answers
from tests.support.services.redis_nodes import RedisNode, address_of, needs_redis, redis_nodes

pytestmark = [needs_tool, needs_redis]

#: Of a request.
NUM_ROWS = 48
#: The node that fails, and the rows that it holds.
NODE, NUM_NODES = 1, 3
_PATIENCE_S = 120.0


def is_of_node(row: int) -> bool:
    return row // CHUNK_ROWS % NUM_NODES == NODE


def sample_of(users: Sequence[int], seed: int, num_rows: int = NUM_ROWS) -> Sample:
    """A request about items of all nodes, and some users."""
    rng = np.random.default_rng(seed)

    def bags(ids: Sequence[int], most: int) -> list[list[int]]:
        return [rng.choice(ids, rng.integers(1, most + 1)).tolist() for _ in range(num_rows)]

    items = range(NUM_ITEMS)
    sparse = {
        "item": bags(items, 3),
        "seen": bags(items, 6),
        "user": bags(users, 1),
        "day": bags(range(7), 1),
    }
    return Sample(num_rows, {}, sparse, {})


@contextmanager
def serving(
    artifact: Path, nodes: list[RedisNode], folder: Path, *options: str | Path
) -> Iterator[harness.ServerUnderTest]:
    """A native server whose large tables lie in nodes."""
    push_artifact(artifact, address_of(nodes), 1_000)
    root = folder / "models"
    harness.put_version(root, "m", "1", artifact)
    (root / "m" / "deltas").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        command = [sys.executable, "-m", "serve.app.cli", "--engine", "native"]
        patch.setattr(harness, "COMMAND", command)
        rows = ["--rows", address_of(nodes), "--rows-over-bytes", "1000"]
        with harness.running(
            "--repository", root, *rows, *options, *harness.with_admin(folder), folder=folder
        ) as server:
            yield server


@pytest.mark.parametrize("cache_bytes", ["0", "20000"], ids=["uncached", "cached"])
def test_deltas_under_load(
    chain: list[Path], nodes: list[RedisNode], tmp_path: Path, cache_bytes: str
) -> None:
    """Nodes take a delta while the server still reads the rows before it; no answer mixes them."""
    sample = sample_of(range(NUM_USERS), 1)
    oracle = load_artifact(chain[0])
    answers: list[Answers] = [answer(oracle, sample)]
    for path in chain[1 : NUM_DELTAS + 1]:
        apply(prepare(oracle.rows, path))
        answers.append(answer(oracle, sample))
    options = ["--rows-deadline-ms", "60000", "--rows-cache-bytes", cache_bytes]
    with serving(chain[0], nodes, tmp_path, *options) as server:
        deltas = tmp_path / "models" / "m" / "deltas"

        def take(at: int) -> None:
            path = chain[1 + at]
            push_delta(path, address_of(nodes))
            (deltas / path.name).write_bytes(path.read_bytes())
            server.admin().ApplyDelta(admin_pb2.ApplyDeltaRequest(model="m", version="1", delta=path.name))

        seen = answers_under_load(server, Chain(deltas, sample, answers), 3, take)
        assert len(seen) > 1
        assert_answers(server.client().predict(sample.dense, sample.sparse), answers[-1])
        assert server.total("recsys_outside_rows_failures_total") == 0


def test_a_capture_fills_the_cache(chain: list[Path], nodes: list[RedisNode], tmp_path: Path) -> None:
    """What a server warmed up with it reads no rows of nodes for."""
    sample = sample_of(range(NUM_USERS), 1)
    captured = CapturedRequest(time_us=0, model="m", version="1", data=sample.request().SerializeToString())
    path = tmp_path / "requests.capture"
    path.write_bytes(header(0) + record(captured))
    options = ["--warm-up", path, "--rows-deadline-ms", "60000", "--rows-cache-bytes", "1000000"]
    with serving(chain[0], nodes, tmp_path, *options) as server:
        misses = server.total("recsys_outside_rows_misses_total")
        expected = answer(load_artifact(chain[0]), sample)
        assert_answers(server.client().predict(sample.dense, sample.sparse), expected)
        assert server.total("recsys_outside_rows_misses_total") == misses > 0


def test_a_request_in_parts(chain: list[Path], nodes: list[RedisNode], tmp_path: Path) -> None:
    """Each part of a large request reads its own rows."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("one processor computes a request whole")
    sample = sample_of(range(NUM_USERS), 1, num_rows=4_000)
    expected = answer(load_artifact(chain[0]), sample)
    options = ["--rows-deadline-ms", "60000", "--rows-cache-bytes", "20000", "--executors", "2"]
    with serving(chain[0], nodes, tmp_path, *options) as server:
        client = server.client()
        for _ in range(200):
            assert_answers(client.predict(sample.dense, sample.sparse), expected)
            if server.total("recsys_cut_requests_total") >= 3:
                return
    pytest.skip("this machine was too busy to compute requests in parts: the engine cuts where that pays")


@dataclass
class Load:
    """Clients that ask for samples all the time, and what they were answered.

    Attributes:
        server: that is asked.
        cases: by name, a sample and the answers that it may get, by name.
    """

    server: harness.ServerUnderTest
    cases: dict[str, tuple[Sample, dict[str, Answers]]]
    _answered: queue.Queue[tuple[str, str]] = field(default_factory=queue.Queue)
    _done: threading.Event = field(default_factory=threading.Event)

    def _ask(self, name: str) -> None:
        sample, answers = self.cases[name]
        call, request = self.server.predict_bytes(), sample.request().SerializeToString()
        while not self._done.is_set():
            try:
                outputs = read_response(wire.PredictResponse.FromString(call(request, timeout=_PATIENCE_S)))
            except grpc.RpcError as error:
                self._answered.put((name, f"{error.code().name}: {error.details()}"))
                continue
            fits = [
                which
                for which, expected in answers.items()
                if all(np.allclose(outputs[key], expected[key], rtol=1e-4, atol=1e-5) for key in expected)
            ]
            self._answered.put((name, fits[0] if fits else "a wrong answer"))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask until the end of the block, two clients for each sample."""
        with ThreadPoolExecutor(2 * len(self.cases)) as pool:
            clients = [pool.submit(self._ask, name) for name in [*self.cases, *self.cases]]
            try:
                yield
            finally:
                self._done.set()
            for client in clients:
                client.result(_PATIENCE_S)
            while not self._answered.empty():
                self._next()

    def _next(self) -> tuple[str, str]:
        name, what = self._answered.get(timeout=_PATIENCE_S)
        assert what in self.cases[name][1] or what.startswith("UNAVAILABLE: rows of table "), (name, what)
        return name, what

    def wait_for(self, **wanted: str) -> None:
        """Wait until each sample was answered ten times in a row by what begins with a text."""
        counts = dict.fromkeys(wanted, 0)
        for _ in range(100_000):
            name, what = self._next()
            counts[name] = counts[name] + 1 if what.startswith(wanted[name]) else 0
            if min(counts.values()) >= 10:
                return
        raise AssertionError(f"expected {wanted}, got {counts} of them in a row at last")


def without_items_of_node() -> Items:
    """The model with zeros for the items that one node holds."""
    model = Items()
    rows = torch.tensor([is_of_node(row) for row in range(NUM_ITEMS)])
    with torch.no_grad():
        model.bags.embedding_bags["items"].weight[rows] = 0
    return model


def test_nodes_that_fail_under_load(chain: list[Path], tmp_path: Path) -> None:
    """Tables in ``rows_zero`` answer with zeros, others with an error; then as before."""
    export_model(without_items_of_node(), tmp_path / "zeros", ExportConfig())
    zeros, whole = load_artifact(tmp_path / "zeros"), load_artifact(chain[0])
    others = sample_of([row for row in range(NUM_USERS) if not is_of_node(row)], 1)
    users = sample_of([row for row in range(NUM_USERS) if is_of_node(row)], 2)
    cases = {
        "others": (others, {"right": answer(whole, others), "zeros": answer(zeros, others)}),
        "users": (users, {"right": answer(whole, users)}),
    }
    table = next(info.table.name for info in whole.manifest.tables if info.table.name.endswith("items"))
    options = ["--rows-cache-bytes", "0", "--rows-deadline-ms", "300", "--rows-zero", table]
    down = {"others": "zeros", "users": "UNAVAILABLE: rows of table 'bags.users': node 2 of 3 "}
    up = {"others": "right", "users": "right"}
    with (
        redis_nodes(NUM_NODES) as nodes,
        serving(chain[0], nodes, tmp_path, *options) as server,
    ):
        load = Load(server, cases)
        with load.running():
            load.wait_for(**up)
            nodes[NODE].stop()
            load.wait_for(**down)
            nodes[NODE].go_on()
            load.wait_for(**up)
            nodes[NODE].kill()
            load.wait_for(**down)
            # It comes back without rows, and gets them again.
            nodes[NODE].start()
            load.wait_for(**down)
            push_artifact(chain[0], address_of(nodes), 1_000)
            load.wait_for(**up)
        assert server.total("recsys_outside_rows_failures_total") > 0
        assert server.total("recsys_outside_rows_zeros_total") > 0


def test_a_replica_answers_under_load(chain: list[Path], tmp_path: Path) -> None:
    """No answer is missing or wrong while a node hangs that has a replica."""
    sample = sample_of(range(NUM_USERS), 1)
    cases = {"all": (sample, {"right": answer(load_artifact(chain[0]), sample)})}
    with redis_nodes(2) as (node, replica):
        push_artifact(chain[0], address_of([node]), 1_000)
        replica.follow(node)
        options = ["--rows-cache-bytes", "0", "--rows-deadline-ms", "60000"]
        replicas = ["--rows-replicas", address_of([replica])]
        with serving(chain[0], [node], tmp_path, *options, *replicas) as server:
            load = Load(server, cases)
            with load.running():
                load.wait_for(all="right")
                node.stop()
                load.wait_for(all="right")
                node.go_on()
                load.wait_for(all="right")
            assert server.total("recsys_outside_rows_hedged_total") > 0
            assert server.total("recsys_outside_rows_failures_total") == 0
