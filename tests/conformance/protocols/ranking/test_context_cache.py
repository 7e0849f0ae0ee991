"""The context cache: the same bits as without it, within its bound, counted; off where there is nothing for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serve.client.packing import read_response
from serve.wire import open_inference_pb2
from serve.wire import predict_pb2 as wire
from serve.wire import predictor_pb2 as torchrec
from tests.conformance.support.artifacts import CONTEXT, Exported, export_small
from tests.conformance.support.harness import ServerUnderTest, running
from tests.conformance.support.http_calls import ask
from tests.conformance.support.open_inference import assert_same_bits, model_infer, outputs_of
from tests.conformance.support.ranking import ranked, ranking_request
from tests.recsys.artifact.damage import Json, lie
from tests.support.kernels import needs_kernels
from tests.support.serve.messages.cases import Sample
from tests.support.serve.messages.foreign import kserve_message, tensors, torchrec_message

pytestmark = [pytest.mark.engine, needs_kernels]

NUM_USERS = 7
# Each user asks this often, about other candidates each time.
NUM_TIMES = 4


@pytest.fixture(scope="module")
def cached(small: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """The small model with a cache that holds all users of a case."""
    folder = tmp_path_factory.mktemp("cached")
    options = ("--context-cache-bytes", "64MiB", "--http-port", "0")
    with running(small.path, *options, folder=folder) as started:
        yield started


def counted(server: ServerUnderTest, name: str) -> int:
    """A number of the metrics page; ``bytes`` is a gauge, the others are counters."""
    return int(server.total(f"recsys_context_cache_{name}{'' if name == 'bytes' else '_total'}"))


def visits() -> list[tuple[int, int]]:
    """Who asks, and the seed of the candidates."""
    return [(at % NUM_USERS, at) for at in range(NUM_USERS * NUM_TIMES)]


def predicted(server: ServerUnderTest, request: wire.PredictRequest) -> wire.PredictResponse:
    return wire.PredictResponse.FromString(server.predict_bytes()(request.SerializeToString(), timeout=60))


def assert_moved(server: ServerUnderTest, before: tuple[int, int]) -> None:
    """Each visit looked for its user; those who came again were found."""
    hits, misses = counted(server, "hits") - before[0], counted(server, "misses") - before[1]
    assert hits + misses == NUM_USERS * NUM_TIMES
    assert hits >= NUM_USERS * (NUM_TIMES - 1)


def counts(server: ServerUnderTest) -> tuple[int, int]:
    return counted(server, "hits"), counted(server, "misses")


def test_requests_alone_are_counted_on_the_metrics_page_and_the_first_page(
    small: Exported, tmp_path: Path
) -> None:
    options = ("--context-cache-bytes", "1MiB", "--http-port", "0")
    with running(small.path, *options, folder=tmp_path) as server:
        assert (*counts(server), counted(server, "evictions")) == (0, 0, 0)
        predicted(server, ranking_request(small, 3, seed=0, user=0))
        assert counts(server) == (0, 1)
        assert 0 < counted(server, "bytes") <= 1 << 20
        predicted(server, ranking_request(small, 2, seed=1, user=0))
        assert counts(server) == (1, 1)
        page = ask(f"http://{server.http_address}/").data.decode()
        # What the warm-up put there stays.
        assert re.search(r"cache of version 1 holds \d+ contexts in [\d.]+ KB; it had 50% of those", page)


def test_recsys_v1_gets_the_same_bits(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    before = counts(cached)
    for user, seed in visits():
        request = ranking_request(small, 1 + seed % 5, seed=seed, user=user)
        assert_same_bits(read_response(predicted(cached, request)), read_response(predicted(server, request)))
    assert_moved(cached, before)


def test_a_stream_gets_the_same_bits(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    requests = []
    for user, seed in visits():
        requests.append(ranking_request(small, 3, seed=seed, user=100 + user))
        requests[-1].request_id = str(seed)
    hits = counted(cached, "hits")
    # Equal users of one batch are looked for once, and a busy machine may put all of a stream into one.
    first, second, expected = (dict(one.client().stream(iter(requests))) for one in (cached, cached, server))
    for found in (first, second):
        assert set(found) == {request.request_id for request in requests}
        for request_id, outputs in expected.items():
            assert_same_bits(found[request_id], outputs)
    assert counted(cached, "hits") > hits


def open_inference_request(small: Exported, user: int, seed: int) -> open_inference_pb2.ModelInferRequest:
    """A ranking request as Open Inference has it."""
    _, _, whole = ranked(small, 4, seed=seed, user=user)
    one = Sample(
        1,
        *(
            {name: rows[:1] for name, rows in part.items()}
            for part in (whole.dense, whole.sparse, whole.weights)
        ),
    )
    signature = small.signature
    made = [tensor for tensor in tensors(signature, one) if tensor.name.split(".")[0] in CONTEXT]
    made += [tensor for tensor in tensors(signature, whole) if tensor.name.split(".")[0] not in CONTEXT]
    message = kserve_message(made, model_name="small")
    message.parameters["context"].string_param = ",".join(CONTEXT)
    return message


def test_open_inference_gets_the_same_bits(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    before = counts(cached)
    for user, seed in visits():
        message = open_inference_request(small, 200 + user, seed)
        assert_same_bits(outputs_of(model_infer(cached, message)), outputs_of(model_infer(server, message)))
    assert_moved(cached, before)


def test_json_gets_the_same_numbers(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    before = counts(cached)
    for user, seed in visits():
        given, context, _ = ranked(small, 3, seed=seed, user=300 + user)
        body = {
            **given,
            "context": {"dense": context.dense, "sparse": context.sparse, "weights": context.weights},
        }
        found, expected = (
            ask(f"http://{one.http_address}/v1/models/small:predict", body).json()["outputs"]
            for one in (cached, server)
        )
        assert found == expected
    assert_moved(cached, before)


def test_torchrecs_wire_which_has_no_contexts_gets_the_same_bits_and_asks_no_cache(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    before = counts(cached)
    for seed in range(NUM_TIMES):
        message = torchrec_message(small.signature, small.sample(5, seed), "<i8").SerializeToString()
        found, expected = (
            torchrec.PredictionResponse.FromString(
                one.channel().unary_unary("/predictor.Predictor/Predict")(message, timeout=60)
            )
            for one in (cached, server)
        )
        assert found == expected
    assert counts(cached) == before


def test_users_in_one_batch_get_their_own_bits(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    """Hits, misses and equal users meet in a batch."""

    def one(seed: int) -> None:
        request = ranking_request(small, 1 + seed % 7, seed=seed, user=400 + seed % 40)
        assert_same_bits(read_response(predicted(cached, request)), expected[seed])

    expected = {
        seed: read_response(
            predicted(server, ranking_request(small, 1 + seed % 7, seed=seed, user=400 + seed % 40))
        )
        for seed in range(400)
    }
    hits = counted(cached, "hits")
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(400)))
    assert counted(cached, "hits") > hits


def test_a_large_request_looks_for_its_user_once(
    server: ServerUnderTest, cached: ServerUnderTest, small: Exported
) -> None:
    """Also where executors share its rows; these get the bits that they get among few."""
    for seed in range(3):
        given, context, _ = ranked(small, 4000, seed=seed, user=500 + seed)
        few = {part: {name: rows[-20:] for name, rows in inputs.items()} for part, inputs in given.items()}
        hits, misses = counts(cached)
        found = cached.client().predict(**given, context=context)
        assert counts(cached) == (hits, misses + 1)
        expected = server.client().predict(**few, context=context)
        assert_same_bits({name: rows[-20:] for name, rows in found.items()}, expected)
        if cached.total("recsys_cut_requests_total") > 0:
            break


def test_a_storm_of_new_users_stays_within_the_bound(small: Exported, tmp_path: Path) -> None:
    """Only as many users are held as there is room for, and no more memory is taken."""
    bound = 16 << 10
    requests = [ranking_request(small, 1, seed=user, user=user).SerializeToString() for user in range(2000)]
    with (
        running(small.path, "--context-cache-bytes", str(bound), folder=tmp_path) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        call = server.predict_bytes()
        held = []
        for at in range(0, len(requests), 250):
            list(pool.map(lambda data: call(data, timeout=60), requests[at : at + 250]))
            held.append(counted(server, "bytes"))
        assert all(0 < num_bytes <= bound for num_bytes in held)
        assert counted(server, "evictions") > len(requests) // 2
        assert counted(server, "misses") > len(requests) // 2


def test_a_cache_too_small_for_one_user_answers_all_the_same(
    server: ServerUnderTest, small: Exported, tmp_path: Path
) -> None:
    with running(small.path, "--context-cache-bytes", "1", folder=tmp_path) as tiny:
        for _ in range(3):
            request = ranking_request(small, 3, seed=1, user=1)
            assert_same_bits(
                read_response(predicted(tiny, request)), read_response(predicted(server, request))
            )
        assert (counted(tiny, "hits"), counted(tiny, "bytes")) == (0, 0)


def without_programs(data: Json) -> None:
    """As the exports of models that are not lowered are: TorchScript alone."""
    for target in data["targets"]:
        for graph in (target, target["ranking"]):
            del graph["program"]


@pytest.mark.parametrize("lacks", ["context", "program"])
def test_without_a_context_or_a_program_the_log_says_why_there_is_no_cache(
    lacks: str, tmp_path: Path
) -> None:
    exported = export_small(tmp_path / "artifact", context=() if lacks == "context" else CONTEXT)
    if lacks == "program":
        lie(exported.path, without_programs)
    with running(exported.path, "--context-cache-bytes", "1MiB", folder=tmp_path) as server:
        for _ in range(2):
            predicted(server, ranking_request(exported, 3, seed=0, user=0))
        assert [counted(server, name) for name in ("hits", "misses", "evictions", "bytes")] == [0, 0, 0, 0]
        assert server.stop()[0] == 0
    why = {
        "context": "the model has no context",
        "program": "torch's operators run it, not a program",
    }[lacks]
    lines = [line for line in server.log.read_text().splitlines() if "context_cache_bytes" in line]
    assert len(lines) == 1, lines
    assert f"context_cache_bytes is not used: {why}" in lines[0]
