"""Ranking requests: a context given once stands for all candidates."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from serve.client.errors import InvalidRequestError
from tests.conformance.support.artifacts import CONTEXT, Exported
from tests.conformance.support.harness import ServerUnderTest, status_of
from tests.conformance.support.ranking import ranked
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine

NAMES = ("context", "price", "user", "genres", "item", "tags")


@pytest.mark.parametrize(
    "shared",
    [CONTEXT, (*CONTEXT, "item"), ("user",), ("context",), ("price", "genres"), NAMES[1:]],
    ids=["the-graphs-context", "more", "less", "dense-only", "others", "all-but-one"],
)
@pytest.mark.parametrize("num_rows", [1, 2, 200], ids=lambda n: f"{n}-candidates")
def test_a_ranking_request_scores_as_the_request_that_repeats_its_context(
    server: ServerUnderTest, small: Exported, shared: tuple[str, ...], num_rows: int
) -> None:
    given, context, expanded = ranked(small, num_rows, shared)
    found = server.client().predict(**given, context=context)
    expected = server.client().predict(expanded.dense, expanded.sparse, expanded.weights)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=0, atol=1e-6)
    assert_answers(found, small.answer(expanded))


def test_candidates_of_many_users_in_one_batch_keep_to_their_own_user(
    server: ServerUnderTest, small: Exported
) -> None:
    client = server.client()

    def one(seed: int) -> None:
        given, context, expanded = ranked(small, 1 + seed % 7, CONTEXT, seed)
        assert_answers(client.predict(**given, context=context), small.answer(expanded))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(400)))


def test_ranking_and_plain_requests_share_the_queue_and_get_their_own_answers(
    server: ServerUnderTest, small: Exported
) -> None:
    client = server.client()

    def one(seed: int) -> None:
        given, context, expanded = ranked(small, 3, CONTEXT, seed)
        if seed % 2:
            assert_answers(client.predict(**given, context=context), small.answer(expanded))
        else:
            found = client.predict(expanded.dense, expanded.sparse, expanded.weights)
            assert_answers(found, small.answer(expanded))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(400)))


def test_the_metadata_says_what_is_given_once_at_no_further_cost(server: ServerUnderTest) -> None:
    assert list(server.client().metadata().context) == list(CONTEXT)


def test_no_candidates_get_empty_answers(server: ServerUnderTest, small: Exported) -> None:
    given, context, _ = ranked(small, 0, CONTEXT)
    found = server.client().predict(**given, context=context)
    assert {name: values.shape for name, values in found.items()} == {"score": (0,), "vectors": (0, 2, 3)}


def test_an_input_given_twice_is_refused(server: ServerUnderTest, small: Exported) -> None:
    given, context, expanded = ranked(small, 2, CONTEXT)
    given["sparse"]["user"] = expanded.sparse["user"]
    with pytest.raises(InvalidRequestError, match="sparse: got 'user' more than once"):
        server.client().predict(**given, context=context)


def test_a_context_of_two_rows_is_refused(server: ServerUnderTest, small: Exported) -> None:
    _, _, expanded = ranked(small, 2, CONTEXT)
    request = expanded.request()
    shared = [message for message in request.sparse if message.name == "user"]
    for message in shared:
        request.sparse.remove(message)
        request.context_sparse.append(message)
    code, text = status_of(lambda: server.predict_bytes()(request.SerializeToString()))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "context_sparse['user'].lengths: got 8 bytes, expected 4" in text


def test_a_context_whose_repetition_is_too_large_is_refused_before_it_is_repeated(
    server: ServerUnderTest, small: Exported
) -> None:
    given, context, _ = ranked(small, 4096, ("item",))
    context.sparse["item"] = [[1] * 100_000]
    with pytest.raises(InvalidRequestError, match=r"sparse: got \d+ IDs, expected at most 262144"):
        server.client().predict(**given, context=context)
