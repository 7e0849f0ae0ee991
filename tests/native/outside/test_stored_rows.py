"""Rows that lie in Redis nodes give the same bits as rows in memory, through deltas and failures of nodes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from export.cli import main
from export.delta.compact import compact
from export.delta.delta import DeltaConfig, export_delta
from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.artifact.store.keys import kept
from recsys.artifact.store.nodes import StoreError
from recsys.artifact.store.push import push_artifact
from recsys.artifact.store.push_delta import push_delta
from recsys.errors import DeltaError
from serve.engine.reference.raw_request import RawRequestLike
from tests.native.models.test_model import assert_same, batches
from tests.native.outside.items import NUM_ITEMS, NUM_USERS, Items, moved
from tests.native.tool import NativeError, NativeModel, as_json, needs_tool
from tests.support.services.redis_nodes import RedisNode, address_of, needs_redis, redis_nodes

pytestmark = [needs_tool, needs_redis]


@pytest.fixture(scope="module")
def python(chain: list[Path]) -> LoadedArtifact:
    return load_artifact(chain[0])


def push(chain: list[Path], nodes: list[RedisNode], over_bytes: int = 1_000) -> None:
    push_artifact(chain[0], address_of(nodes), over_bytes)


def open_there(native: NativeModel, chain: list[Path], nodes: list[RedisNode], **options: object) -> None:
    rows = [node.address for node in nodes]
    native.open(chain[0], rows=rows, **{"rows_over_bytes": 1_000, **options})


def some(python: LoadedArtifact, seed: int, num: int = 25) -> list[list[RawRequestLike]]:
    return list(batches(python.signature, seed, num))


@pytest.mark.parametrize("num_nodes", [1, 3])
@pytest.mark.parametrize("cache_bytes", [0, 10_000, 1 << 20], ids=["uncached", "small", "large"])
def test_the_same_bits(
    native: NativeModel,
    chain: list[Path],
    nodes: list[RedisNode],
    python: LoadedArtifact,
    num_nodes: int,
    cache_bytes: int,
) -> None:
    push(chain, nodes[:num_nodes])
    open_there(native, chain, nodes[:num_nodes], rows_cache_bytes=cache_bytes)
    for batch in 2 * some(python, 1):
        assert_same(native, python, batch)
    counts = native.call("outside_rows")
    assert counts["misses"] > 0
    assert (counts["hits"] > 0) == (cache_bytes > 0)
    assert counts["cache_bytes"] <= cache_bytes
    assert counts["failures"] == 0
    answer = native.call("predict_in_threads", requests=[as_json(r) for r in some(python, 2)[-1]])
    assert answer["num_different"] == 0


def test_deltas(native: NativeModel, chain: list[Path], nodes: list[RedisNode]) -> None:
    """Each state gives its own rows, also where the nodes hold later ones."""
    push(chain, nodes)
    open_there(native, chain, nodes, rows_cache_bytes=10_000)
    python = load_artifact(chain[0])
    # The nodes run ahead by up to two deltas.
    for path in chain[1:3]:
        push_delta(path, address_of(nodes))
    for number, path in enumerate(chain[1:], start=1):
        for batch in some(python, number, 8):
            assert_same(native, python, batch)
        if number > 2:
            push_delta(path, address_of(nodes))
        native.call("prepare", path=str(path))
        native.call("apply")
        apply(prepare(python.rows, path))
    for batch in some(python, 99, 8):
        assert_same(native, python, batch)
    # The nodes keep the artifact's rows.
    open_there(native, chain, nodes)
    fresh = load_artifact(chain[0])
    for batch in some(fresh, 7, 8):
        assert_same(native, fresh, batch)


def test_other_deltas_of_the_same_number(
    native: NativeModel, chain: list[Path], nodes: list[RedisNode], tmp_path: Path
) -> None:
    """A node that was filled again, with other deltas, is never answered from."""
    other = tmp_path / "other.delta"
    model = Items()
    export_delta(model, moved(model, 77), other, DeltaConfig(artifact=chain[0]))
    push(chain, nodes[:1])
    push_delta(chain[1], address_of(nodes[:1]))
    open_there(native, chain, nodes[:1], rows_cache_bytes=0)
    native.call("prepare", path=str(chain[1]))
    native.call("apply")
    python = load_artifact(chain[0])
    apply(prepare(python.rows, chain[1]))
    batch = some(python, 3)[-1]
    assert_same(native, python, batch)
    with nodes[0].client as client:
        client.flushall()
    push(chain, nodes[:1])
    push_delta(other, address_of(nodes[:1]))
    with pytest.raises(NativeError, match="node 1 of 1 does not hold this state of the rows"):
        native.predict(python.signature, batch)


def test_an_interrupted_delta_goes_on(native: NativeModel, chain: list[Path], nodes: list[RedisNode]) -> None:
    """Where a writer ended before it replaced a row, the records before it are there once."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    push(chain, nodes[:1])
    open_there(native, chain, nodes[:1], rows_cache_bytes=0)
    python = load_artifact(chain[0])
    batch = some(python, 3)[-1]
    for path in chain[1:3]:
        with pytest.raises(KeyboardInterrupt):
            push_delta(path, address_of(nodes[:1]), stop)
        assert_same(native, python, batch)
        report = push_delta(path, address_of(nodes[:1]))
        assert not report.was_there
        assert_same(native, python, batch)
    *old, present = (bytes([number, 0, 0, 0, 9]) for number in (4, 3, 2, 1, 0, 5))
    assert kept(present, b"".join(old[:2]), 5) == present + old[0] + old[1]
    assert kept(present, b"".join([present, *old[:2]]), 5) == present + old[0] + old[1]
    assert kept(present, b"".join(old), 5) == present + old[0] + old[1] + old[-1]


def test_a_compacted_chain(
    native: NativeModel, chain: list[Path], nodes: list[RedisNode], tmp_path: Path
) -> None:
    push(chain, nodes[:1])
    compact(chain[1:4], tmp_path / "chain.delta")
    report = push_delta(tmp_path / "chain.delta", address_of(nodes[:1]))
    assert (report.number, report.was_there) == (1, False)
    assert push_delta(tmp_path / "chain.delta", address_of(nodes[:1])).was_there
    open_there(native, chain, nodes[:1])
    python = load_artifact(chain[0])
    native.call("prepare", path=str(tmp_path / "chain.delta"))
    native.call("apply")
    apply(prepare(python.rows, tmp_path / "chain.delta"))
    for batch in some(python, 3, 8):
        assert_same(native, python, batch)


def test_batches_while_deltas_are_applied(
    native: NativeModel, chain: list[Path], nodes: list[RedisNode]
) -> None:
    """Each batch is of one state: what it says is what that state's rows in memory say."""
    push(chain, nodes)
    open_there(native, chain, nodes, rows_cache_bytes=10_000)
    for path in chain[1:4]:
        push_delta(path, address_of(nodes))
    of = [[as_json(request) for request in batch] for batch in some(load_artifact(chain[0]), 5, 6)[1:]]
    paths = [str(path) for path in chain[1:4]]
    found = native.call("predict_while_applying", batches=of, paths=paths)
    assert found["num_different"] == 0
    native.open(chain[0])
    assert native.call("predict_while_applying", batches=of, paths=paths)["answers"] == found["answers"]


def test_rows_are_read_back(
    chain: list[Path], nodes: list[RedisNode], capsys: pytest.CaptureFixture[str]
) -> None:
    """The artifact's rows are compared also where deltas have replaced them, each byte of them."""
    command = ["--push-rows", address_of(nodes), "--check-rows", str(chain[0])]
    assert main(command) == 1
    assert "does not hold part 0/3" in capsys.readouterr().err
    push(chain, nodes)
    for path in chain[1:]:
        push_delta(path, address_of(nodes))
    assert main(command) == 0
    assert f"hold {NUM_ITEMS + NUM_USERS:,} rows" in capsys.readouterr().out
    with nodes[2].client as client:
        client.delete(*client.scan_iter("*:2}:*"))
    assert main(command) == 1
    assert "node 3 of 3 lacks rows" in capsys.readouterr().err
    push_again = ["--push-rows", address_of(nodes), "--rows-over-bytes", "1000", str(chain[0])]
    for node in nodes:
        with node.client as client:
            client.flushall()
    assert main(push_again) == 0
    with nodes[2].client as client:
        key = next(iter(client.scan_iter("*:2}")))
        client.setrange(key, client.strlen(key) - 1, bytes([client.getrange(key, -1, -1)[0] ^ 1]))
    assert main(command) == 1
    assert "the nodes hold others than the artifact" in capsys.readouterr().err


def test_a_delta_that_the_nodes_lack(native: NativeModel, chain: list[Path], nodes: list[RedisNode]) -> None:
    push(chain, nodes)
    open_there(native, chain, nodes)
    with pytest.raises(NativeError, match="node 1 of 3 of the rows does not hold it") as caught:
        native.call("prepare", path=str(chain[1]))
    assert caught.value.kind is DeltaError
    with pytest.raises(StoreError, match=r"node 1 of 3 holds state .* push deltas in the order"):
        push_delta(chain[2], address_of(nodes))


def test_an_interrupted_push_goes_on(
    chain: list[Path], nodes: list[RedisNode], native: NativeModel, python: LoadedArtifact
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_artifact(chain[0], address_of(nodes), 1_000, stop)
    with pytest.raises(NativeError, match="node 1 of 3 does not hold the rows"):
        open_there(native, chain, nodes)
    report = push_artifact(chain[0], address_of(nodes), 1_000)
    assert 0 < report.num_rows < NUM_ITEMS + NUM_USERS
    assert push_artifact(chain[0], address_of(nodes), 1_000).was_there
    open_there(native, chain, nodes)
    for batch in some(python, 4, 8):
        assert_same(native, python, batch)
    with pytest.raises(StoreError, match=r"holds part 1/3 of these rows, expected 0/3"):
        push_artifact(chain[0], address_of([nodes[1], nodes[0], nodes[2]]), 1_000)
    with pytest.raises(NativeError, match="expected part 0/2"):
        open_there(native, chain, nodes[:2])


@pytest.mark.parametrize("fault", ["killed", "stopped", "empty"])
def test_a_node_that_fails(
    native: NativeModel, chain: list[Path], python: LoadedArtifact, fault: str
) -> None:
    """No wrong score, the stated answer, and recovery."""
    batch = some(python, 6)[-1]
    with redis_nodes(2) as nodes:
        push(chain, nodes)
        open_there(native, chain, nodes, rows_cache_bytes=0, rows_deadline_ms=200)
        assert_same(native, python, batch)
        if fault == "stopped":
            nodes[1].stop()
        else:
            nodes[1].kill()
            if fault == "empty":
                nodes[1].start()
        with pytest.raises(NativeError, match=r"rows of table '.*(items|users)': node 2 of 2 "):
            native.predict(python.signature, batch)
        assert native.call("outside_rows")["failures"] >= 1
        if fault == "stopped":
            nodes[1].go_on()
        else:
            nodes[1].kill()
            nodes[1].start()
            with nodes[0].client as client:
                client.flushall()
            push(chain, nodes)
        until = time.monotonic() + 30
        while True:
            try:
                assert_same(native, python, batch)
                break
            except NativeError as error:
                if "send the request again" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.05)


def test_zero_rows(native: NativeModel, chain: list[Path], python: LoadedArtifact) -> None:
    tables = [info.table.name for info in python.manifest.tables]
    batch = some(python, 6)[-1]
    with redis_nodes(1) as nodes:
        push(chain, nodes)
        open_there(native, chain, nodes, rows_cache_bytes=0, rows_zero=tables)
        assert_same(native, python, batch)
        nodes[0].kill()
        answer = native.predict(python.signature, batch)
        assert np.all(answer["item"] == 0)
        assert native.call("outside_rows")["zeros"] > 0


def test_a_replica_answers(native: NativeModel, chain: list[Path], python: LoadedArtifact) -> None:
    with redis_nodes(2) as (node, replica):
        push(chain, [node])
        replica.follow(node)
        open_there(
            native, chain, [node], rows_cache_bytes=0, rows_replicas=[replica.address], rows_deadline_ms=5_000
        )
        node.stop()
        for batch in some(python, 8, 5):
            assert_same(native, python, batch)
        assert native.call("outside_rows")["hedged"] > 0
        node.go_on()


def test_an_answer_after_the_deadline_is_no_other_reads(
    native: NativeModel, chain: list[Path], python: LoadedArtifact
) -> None:
    """The first batch fails before its replica is asked; what the replica is asked then must leave nothing behind."""
    with redis_nodes(2) as (node, replica):
        push(chain, [node])
        push(chain, [replica])
        replicas = [replica.address]
        options = {"rows_cache_bytes": 0, "rows_deadline_ms": 50, "rows_hedge_ms": 1_000}
        open_there(native, chain, [node], rows_replicas=replicas, **options)
        node.stop()
        first, *others = some(python, 9)[::-1]
        with pytest.raises(NativeError, match="did not answer within 50 ms"):
            native.predict(python.signature, first)
        for batch in others[:5]:  # the node counts as down for a while
            assert_same(native, python, batch)
        node.go_on()
