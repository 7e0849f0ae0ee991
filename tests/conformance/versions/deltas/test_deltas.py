"""Table deltas over the admin port: rows change under a serving model, between two batches, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from serve.wire import admin_pb2
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.chains import NUM_DELTAS, Chain, answers_under_load
from tests.conformance.support.harness import (
    ServerUnderTest,
    put_version,
    running,
    spoil,
    status_of,
    with_admin,
)
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine


@contextmanager
def serving(root: Path, chain: Chain, small: Exported, folder: Path) -> Iterator[ServerUnderTest]:
    """Version 1 of model m, and the deltas where the server looks for them."""
    put_version(root, "m", "1", small.path)
    deltas = root / "m" / "deltas"
    deltas.mkdir()
    for path in chain.folder.iterdir():
        (deltas / path.name).write_bytes(path.read_bytes())
    first = (deltas / "0.delta").read_bytes()
    (deltas / "damaged.delta").write_bytes(first)
    spoil(deltas / "damaged.delta", at=200)
    (deltas / "half.delta").write_bytes(first[:300])
    (deltas / "foreign.delta").write_bytes(b"no delta" * 100)
    with running("--repository", root, *with_admin(folder), folder=folder) as server:
        yield server


@pytest.fixture
def served(repository: Path, chain: Chain, small: Exported, tmp_path: Path) -> Iterator[ServerUnderTest]:
    """A server of the case's own."""
    with serving(repository, chain, small, tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def untouched(
    chain: Chain, small: Exported, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    """A server that is shared by cases which change nothing."""
    folder = tmp_path_factory.mktemp("untouched")
    with serving(folder / "models", chain, small, folder) as server:
        yield server


def change(server: ServerUnderTest, delta: str, version: str = "1") -> admin_pb2.ModelVersion:
    return server.admin().ApplyDelta(admin_pb2.ApplyDeltaRequest(model="m", version=version, delta=delta))


def assert_has(server: ServerUnderTest, chain: Chain, num_deltas: int) -> None:
    """The rows, and what the server says of them, are those after so many deltas."""
    client = server.client()
    sample = chain.sample
    assert_answers(client.predict(sample.dense, sample.sparse, sample.weights), chain.answers[num_deltas])
    names = [f"{at}.delta" for at in range(num_deltas)]
    assert list(client.metadata().deltas) == names
    (model,) = server.admin().ListModels(admin_pb2.ListModelsRequest()).models
    assert [list(one.deltas) for one in model.versions if one.version == model.serving] == [names]


def test_deltas_change_rows_in_place_and_metadata_lists_them(served: ServerUnderTest, chain: Chain) -> None:
    assert_has(served, chain, 0)
    for at in range(NUM_DELTAS):
        assert list(change(served, f"{at}.delta").deltas)[-1] == f"{at}.delta"
        assert_has(served, chain, at + 1)
    assert served.total("recsys_deltas_applied_total", model="m") == NUM_DELTAS


def test_under_full_load_every_answer_is_of_one_state_and_none_fails(
    served: ServerUnderTest, chain: Chain
) -> None:
    seen = answers_under_load(served, chain, 16, lambda at: change(served, f"{at}.delta"))
    assert {0, NUM_DELTAS} <= set(seen)
    code, stopped = served.stop()
    assert (code, stopped["ok"]) == (0, sum(seen.values()))


@pytest.mark.parametrize(
    ("delta", "code"),
    [
        ("1.delta", grpc.StatusCode.FAILED_PRECONDITION),
        ("damaged.delta", grpc.StatusCode.FAILED_PRECONDITION),
        ("half.delta", grpc.StatusCode.FAILED_PRECONDITION),
        ("foreign.delta", grpc.StatusCode.FAILED_PRECONDITION),
        ("missing.delta", grpc.StatusCode.NOT_FOUND),
        ("../deltas/0.delta", grpc.StatusCode.INVALID_ARGUMENT),
        ("/etc/passwd", grpc.StatusCode.INVALID_ARGUMENT),
        ("..", grpc.StatusCode.INVALID_ARGUMENT),
        ("", grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_wrong_delta_is_refused_and_nothing_changes(
    untouched: ServerUnderTest, chain: Chain, delta: str, code: grpc.StatusCode
) -> None:
    got, text = status_of(lambda: change(untouched, delta))
    assert (got, bool(text)) == (code, True), text
    assert "/tmp" not in text
    assert_has(untouched, chain, 0)


def test_a_delta_twice_is_refused(served: ServerUnderTest, chain: Chain) -> None:
    change(served, "0.delta")
    assert status_of(lambda: change(served, "0.delta"))[0] is grpc.StatusCode.FAILED_PRECONDITION
    assert_has(served, chain, 1)
    assert served.total("recsys_deltas_failed_total", model="m") == 1


def test_a_version_that_is_loaded_again_has_the_artifacts_rows_and_takes_the_chain_again(
    served: ServerUnderTest, chain: Chain
) -> None:
    change(served, "0.delta")
    served.admin().UnloadModel(admin_pb2.UnloadModelRequest(model="m"))
    served.admin().LoadModel(admin_pb2.LoadModelRequest(model="m"))
    assert_has(served, chain, 0)
    for at in range(2):
        change(served, f"{at}.delta")
    assert_has(served, chain, 2)


def test_a_rollback_finds_the_rows_as_the_deltas_left_them(
    served: ServerUnderTest, chain: Chain, repository: Path, other: Exported
) -> None:
    change(served, "0.delta")
    put_version(repository, "m", "2", other.path)
    served.admin().LoadModel(admin_pb2.LoadModelRequest(model="m", version="2"))
    sample = chain.sample
    found = served.client().predict(sample.dense, sample.sparse, sample.weights)
    assert_answers(found, other.answer(sample))
    assert served.admin().Rollback(admin_pb2.RollbackRequest(model="m")).serving == "1"
    assert_has(served, chain, 1)
