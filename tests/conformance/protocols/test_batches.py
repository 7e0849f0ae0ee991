"""Requests that are never put together with others: a model whose rows depend on their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.support.artifacts import Exported, export_list
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import assert_answers

pytestmark = pytest.mark.engine
NUM_CLIENTS, NUM_REQUESTS = 32, 60


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_list(tmp_path_factory.mktemp("lists") / "artifact")


@pytest.fixture(scope="module", params=[(), ("--max-delay-us", "2000"), ("--executors", "1")], ids=str)
def serving(
    lists: Exported, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("server")
    with running(lists.path, *request.param, folder=folder) as started:
        yield started


def test_requests_are_answered_as_if_they_were_alone(serving: ServerUnderTest, lists: Exported) -> None:
    before = serving.total("recsys_batch_requests_sum"), serving.total("recsys_batch_requests_count")
    samples = [lists.sample(1 + i % 9, seed=i) for i in range(64)]
    answers = [lists.answer(sample) for sample in samples]

    def one_client(number: int) -> None:
        client = serving.client()
        for i in range(NUM_REQUESTS):
            at = (7 * number + i) % len(samples)
            assert_answers(client.predict(samples[at].dense, samples[at].sparse), answers[at])

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        list(pool.map(one_client, range(NUM_CLIENTS)))
    num_requests = serving.total("recsys_batch_requests_sum") - before[0]
    assert num_requests == NUM_CLIENTS * NUM_REQUESTS
    assert serving.total("recsys_batch_requests_count") - before[1] == num_requests


@pytest.mark.parametrize("num_rows", [0, 1, 600], ids=lambda n: f"{n}-rows")
def test_a_request_is_not_split(serving: ServerUnderTest, lists: Exported, num_rows: int) -> None:
    sample = lists.sample(num_rows)
    assert_answers(serving.client().predict(sample.dense, sample.sparse), lists.answer(sample))
