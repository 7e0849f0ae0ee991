"""IDs that the model computes: one that leaves its table hurts the request that it came of, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.client.errors import InvalidRequestError
from tests.conformance.support.artifacts import NUM_CROSSED_ROWS, Exported, export_crossing
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine
NUM_CLIENTS, NUM_REQUESTS = 32, 60


@pytest.fixture(scope="module")
def crossing(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_crossing(tmp_path_factory.mktemp("crossing") / "artifact")


@pytest.fixture(scope="module", params=["cpu", "cpu,cpu"])
def serving(
    crossing: Exported, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("server")
    with running(
        crossing.path, "--target", request.param, "--max-delay-us", "1000", folder=folder
    ) as started:
        yield started


def _sample(number: int) -> Sample:
    """One to three rows; every ninth request holds an ID of which the model computes one beyond its table."""
    half = NUM_CROSSED_ROWS // 2
    rows = [[(number + i) % half, (3 * number) % half] for i in range(1 + number % 3)]
    if number % 9 == 0:
        rows[-1].append(half + number % half)
    return Sample(len(rows), {}, {"id": rows}, {})


def _refusal(sample: Sample) -> str:
    bad = 2 * sample.sparse["id"][-1][-1]
    return f"computed ID: table 'made.twice' got {bad}, expected 0 <= ID < {NUM_CROSSED_ROWS}"


def test_failures_under_load_are_exactly_those_of_the_requests_to_blame(
    serving: ServerUnderTest, crossing: Exported
) -> None:
    samples = [_sample(number) for number in range(180)]
    answers = [None if number % 9 == 0 else crossing.answer(sample) for number, sample in enumerate(samples)]
    before = {
        name: serving.total("recsys_requests_total", outcome=name) for name in ("ok", "invalid", "failed")
    }
    batches = serving.total("recsys_batch_requests_count")

    def one_client(client_number: int) -> int:
        client, num_refused = serving.client(), 0
        for i in range(NUM_REQUESTS):
            number = (11 * client_number + i) % len(samples)
            sample, expected = samples[number], answers[number]
            if expected is not None:
                assert_answers(client.predict(sample.dense, sample.sparse), expected)
                continue
            with pytest.raises(InvalidRequestError, match=_refusal(sample)):
                client.predict(sample.dense, sample.sparse)
            num_refused += 1
        return num_refused

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        num_refused = sum(pool.map(one_client, range(NUM_CLIENTS)))
    num_requests = NUM_CLIENTS * NUM_REQUESTS
    assert num_refused > num_requests // 10
    ended = {
        name: serving.total("recsys_requests_total", outcome=name) - count for name, count in before.items()
    }
    assert ended == {"ok": num_requests - num_refused, "invalid": num_refused, "failed": 0}
    # Requests did meet in batches.
    assert serving.total("recsys_batch_requests_count") - batches < num_requests


def test_the_client_is_not_asked_for_what_the_model_computes(serving: ServerUnderTest) -> None:
    assert [feature.name for feature in serving.client().metadata().sparse] == ["id"]
