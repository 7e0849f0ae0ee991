"""Requests on which the model fails: they fail alone, and those beside them in a batch are answered."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from serve.client.errors import ServerError
from tests.conformance.support.artifacts import Exported, export_brittle
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine
NUM_CLIENTS, NUM_REQUESTS = 16, 40


@pytest.fixture(scope="module")
def brittle(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_brittle(tmp_path_factory.mktemp("brittle") / "artifact")


@pytest.fixture
def serving(brittle: Exported, tmp_path: Path) -> Iterator[ServerUnderTest]:
    # A delay, so that requests wait for each other.
    with running(brittle.path, "--max-delay-us", "20000", folder=tmp_path) as started:
        yield started


def _sample(number: int, *, is_bad: bool) -> Sample:
    price = np.full((2, 1), 1.0 + number % 7, np.float32)
    if is_bad:
        price[number % 2] = 1000
    return Sample(2, {"price": price}, {"id": [[number % 30], [1, 2, number % 30]]}, {})


@pytest.mark.parametrize("share", [10, 2], ids=["few", "half"])
def test_only_the_requests_that_a_model_fails_on_fail(
    serving: ServerUnderTest, brittle: Exported, share: int
) -> None:
    good = [_sample(number, is_bad=False) for number in range(30)]
    expected = [brittle.answer(sample) for sample in good]

    def one_client(client_number: int) -> int:
        client, num_failed = serving.client(), 0
        for i in range(NUM_REQUESTS):
            number = client_number * NUM_REQUESTS + i
            if number % share:
                sample = good[number % 30]
                assert_answers(client.predict(sample.dense, sample.sparse), expected[number % 30])
                continue
            sample = _sample(number, is_bad=True)
            with pytest.raises(ServerError, match="INTERNAL: the model failed on this request") as caught:
                client.predict(sample.dense, sample.sparse)
            assert "secret" not in str(caught.value)
            num_failed += 1
        return num_failed

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        num_failed = sum(pool.map(one_client, range(NUM_CLIENTS)))
    num_requests = NUM_CLIENTS * NUM_REQUESTS
    assert serving.total("recsys_requests_total", outcome="failed") == num_failed
    assert serving.total("recsys_requests_total", outcome="ok") == num_requests - num_failed
    # Each request is of one batch, however often it ran.
    assert serving.total("recsys_batch_requests_sum") == num_requests
    num_batches = serving.total("recsys_batch_requests_count")
    assert num_batches < num_requests
    num_logged = serving.log.read_text().count("a batch failed")
    assert 0 < num_logged <= min(num_batches, num_failed)
