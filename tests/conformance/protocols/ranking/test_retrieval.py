"""A model that answers a user's features with the K best items: ``[B, K]`` in every protocol."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from export.config import ExportConfig
from export.pipeline import export_model
from recsys.models.retrieval import retrieval_model
from tests.conformance.support.artifacts import Exported
from tests.conformance.support.harness import ServerUnderTest, running
from tests.conformance.support.http_calls import ask, plain_body, plain_outputs, tensor_body, tensor_outputs
from tests.conformance.support.open_inference import model_infer, outputs_of
from tests.support.models.two_towers import all_scores, check_best, two_towers, users_of, vectors_of
from tests.support.serve.messages.cases import assert_answers
from tests.support.serve.messages.foreign import kserve_message, tensors

pytestmark = pytest.mark.engine

K = 10


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Two towers of raw IDs."""
    path = tmp_path_factory.mktemp("best") / "best"
    model = two_towers("zero_collision")
    made = retrieval_model(model, vectors_of(model, "zero_collision"), K)
    export_model(made, path, ExportConfig(name="best"))
    return Exported(path)


@pytest.fixture(scope="module")
def server(best: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    with running(best.path, "--http-port", "0", folder=tmp_path_factory.mktemp("server")) as started:
        yield started


def test_the_best_items_of_all_pairs(server: ServerUnderTest) -> None:
    dense, bags = users_of("zero_collision", 20)
    found = server.client().predict({"dense_features": dense.tolist()}, bags)
    assert {name: values.shape for name, values in found.items()} == {"scores": (20, K), "items": (20, K)}
    scores = all_scores(two_towers("zero_collision"), "zero_collision", (dense, bags))
    check_best(dict(found), scores, error=0.02 * float(scores.std()))


@pytest.mark.parametrize("num_rows", [0, 1, 33], ids=lambda n: f"{n}-rows")
def test_every_protocol_gives_the_same(server: ServerUnderTest, best: Exported, num_rows: int) -> None:
    sample = best.sample(num_rows, seed=num_rows)
    expected = best.answer(sample)
    assert [values.shape for values in expected.values()] == [(num_rows, K)] * 2
    assert_answers(server.client().predict(sample.dense, sample.sparse), expected)
    message = kserve_message(tensors(best.signature, sample))
    assert_answers(outputs_of(model_infer(server, message)), expected)
    url = f"http://{server.http_address}"
    body = tensor_body(best.signature, sample)
    assert_answers(tensor_outputs(ask(f"{url}/v2/models/best/infer", body).json()), expected)
    reply = ask(f"{url}/v1/models/best:predict", plain_body(sample)).json()
    assert_answers(plain_outputs(reply, expected), expected)


def test_users_of_one_batch_get_their_own_items(server: ServerUnderTest, best: Exported) -> None:
    samples = [best.sample(1 + i % 3, seed=100 + i) for i in range(64)]
    answers = [best.answer(sample) for sample in samples]
    assert len({answer["items"].tobytes() for answer in answers}) > 32
    client = server.client()
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda sample: client.predict(sample.dense, sample.sparse), samples))
    for got, expected in zip(found, answers, strict=True):
        np.testing.assert_array_equal(got["items"], expected["items"])
        np.testing.assert_allclose(got["scores"], expected["scores"], rtol=1e-4, atol=1e-5)
