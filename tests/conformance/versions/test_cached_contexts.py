"""The context cache under deltas, canaries, shadows and rollbacks: nothing stale, and nothing of another version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.load import load_artifact
from serve.client.packing import read_response
from serve.wire import admin_pb2
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.chains import Chain, make_chain
from tests.conformance.support.harness import ServerUnderTest, put_version, running, with_admin
from tests.conformance.support.open_inference import assert_same_bits
from tests.conformance.support.ranking import ranked, ranking_request
from tests.support.kernels import needs_kernels
from tests.support.serve.messages.cases import answer

pytestmark = [pytest.mark.engine, needs_kernels]

NUM_USERS = 4
NUM_DELTAS = 12
NUM_CLIENTS = 8

Answers = dict[str, np.ndarray]


@contextmanager
def serving(repository: Path, folder: Path) -> Iterator[ServerUnderTest]:
    options = ("--repository", repository, "--context-cache-bytes", "64MiB", *with_admin(folder))
    with running(*options, folder=folder) as server:
        yield server


def asked(server: ServerUnderTest, small: Exported, user: int, version: str = "") -> wire.PredictResponse:
    request = ranking_request(small, 3, seed=user, user=user)
    request.version = version
    return wire.PredictResponse.FromString(server.predict_bytes()(request.SerializeToString(), timeout=60))


def hits(server: ServerUnderTest, version: str) -> int:
    return int(server.total("recsys_context_cache_hits_total", version=version))


def uncached(artifact: Exported, small: Exported, folder: Path) -> list[Answers]:
    """What an artifact answers each user without a cache."""
    folder.mkdir()
    with running(artifact.path, folder=folder) as server:
        return [read_response(asked(server, small, user)) for user in range(NUM_USERS)]


@pytest.fixture(scope="module")
def long_chain(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Chain:
    return make_chain(small, tmp_path_factory.mktemp("long"), num_deltas=NUM_DELTAS)


def test_under_load_no_request_after_a_delta_gets_values_from_before(
    repository: Path, long_chain: Chain, small: Exported, tmp_path: Path
) -> None:
    """Users are in the cache when each delta comes; what is asked after it was applied has its rows and weights."""
    put_version(repository, "m", "1", small.path)
    deltas = repository / "m" / "deltas"
    deltas.mkdir()
    oracle = load_artifact(small.path)
    samples = [ranked(small, 3, seed=user, user=user)[2] for user in range(NUM_USERS)]
    states = [[answer(oracle, sample) for sample in samples]]
    for at in range(NUM_DELTAS):
        (deltas / f"{at}.delta").write_bytes((long_chain.folder / f"{at}.delta").read_bytes())
        apply(prepare(oracle.rows, long_chain.folder / f"{at}.delta"))
        states.append([answer(oracle, sample) for sample in samples])

    requests = [
        ranking_request(small, 3, seed=user, user=user).SerializeToString() for user in range(NUM_USERS)
    ]
    done, answered = threading.Event(), threading.Semaphore(0)
    begun, applied = 0, 0

    def state_of(user: int, outputs: Answers) -> int:
        fits = [
            state
            for state, expected in enumerate(states)
            if all(
                np.allclose(outputs[name], numbers, rtol=1e-4, atol=1e-5)
                for name, numbers in expected[user].items()
            )
        ]
        assert len(fits) == 1, "an answer of two states"
        return fits[0]

    def client(number: int) -> int:
        call, num_answers = server.predict_bytes(), 0
        while not done.is_set():
            user, least = (number + num_answers) % NUM_USERS, applied
            outputs = read_response(wire.PredictResponse.FromString(call(requests[user], timeout=120)))
            assert least <= state_of(user, outputs) <= begun
            num_answers += 1
            answered.release()
        return num_answers

    with serving(repository, tmp_path) as server, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(NUM_CLIENTS)]
        try:
            for at in range(NUM_DELTAS):
                for _ in range(40):
                    assert answered.acquire(timeout=60)
                begun = at + 1
                server.admin().ApplyDelta(
                    admin_pb2.ApplyDeltaRequest(model="m", version="1", delta=f"{at}.delta")
                )
                applied = at + 1
            for _ in range(100):
                assert answered.acquire(timeout=60)
        finally:
            done.set()
        assert sum(one.result(120) for one in clients) > 40 * NUM_DELTAS
        assert hits(server, "1") > 0
        assert server.total("recsys_context_cache_misses_total") >= NUM_USERS
        assert server.total("recsys_context_cache_evictions_total") == 0


def test_a_delta_empties_the_cache(repository: Path, chain: Chain, small: Exported, tmp_path: Path) -> None:
    put_version(repository, "m", "1", small.path)
    deltas = repository / "m" / "deltas"
    deltas.mkdir()
    (deltas / "0.delta").write_bytes((chain.folder / "0.delta").read_bytes())
    with serving(repository, tmp_path) as server:
        asked(server, small, 0)
        assert server.total("recsys_context_cache_bytes") > 0
        server.admin().ApplyDelta(admin_pb2.ApplyDeltaRequest(model="m", version="1", delta="0.delta"))
        assert server.total("recsys_context_cache_bytes") == 0
        asked(server, small, 0)
        assert (hits(server, "1"), server.total("recsys_context_cache_misses_total")) == (0, 2)


@pytest.fixture
def two(repository: Path, small: Exported, other: Exported) -> Path:
    """Version 1 is the small model, version 2 the other one."""
    put_version(repository, "m", "1", small.path)
    put_version(repository, "m", "2", other.path)
    return repository


@pytest.fixture
def expected(small: Exported, other: Exported, tmp_path: Path) -> dict[str, list[Answers]]:
    """The answers of each version without a cache."""
    return {
        version: uncached(artifact, small, tmp_path / f"version-{version}")
        for version, artifact in (("1", small), ("2", other))
    }


def route(server: ServerUnderTest, **routing: object) -> None:
    server.admin().SetRouting(admin_pb2.SetRoutingRequest(model="m", routing=admin_pb2.Routing(**routing)))


def test_a_canary_has_a_cache_of_its_own(
    two: Path, small: Exported, expected: dict[str, list[Answers]], tmp_path: Path
) -> None:
    with serving(two, tmp_path) as server:
        route(server, serve="1", canary="2", canary_percent=50.0)
        for at in range(120):
            user = at % NUM_USERS
            response = asked(server, small, user)
            assert_same_bits(read_response(response), expected[response.version][user])
        assert hits(server, "1") > 0
        assert hits(server, "2") > 0


def test_a_shadow_with_a_cache_compares_what_it_computes_without_one(
    two: Path, small: Exported, expected: dict[str, list[Answers]], tmp_path: Path
) -> None:
    put_version(two, "m", "3", small.path)
    with serving(two, tmp_path) as server:
        for shadow, result in (("3", "same"), ("2", "different")):
            route(server, serve="1", shadow=shadow, shadow_percent=100.0)
            for at in range(60):
                user = at % NUM_USERS
                assert_same_bits(read_response(asked(server, small, user)), expected["1"][user])
            for _ in range(10_000):
                if server.total("recsys_shadow_total", version=shadow, result=result) == 60:
                    break
            assert server.total("recsys_shadow_total", version=shadow, result=result) == 60
            assert hits(server, shadow) > 0


def test_a_pinned_version_and_a_rollback_answer_from_their_own_cache(
    two: Path, small: Exported, expected: dict[str, list[Answers]], tmp_path: Path
) -> None:
    with serving(two, tmp_path) as server:
        for version in ("1", "2", "1", "2"):
            route(server, serve=version)
            for user in range(NUM_USERS):
                assert_same_bits(read_response(asked(server, small, user)), expected[version][user])
        assert (hits(server, "1"), hits(server, "2")) == (NUM_USERS, NUM_USERS)
