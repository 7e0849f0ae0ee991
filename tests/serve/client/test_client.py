"""Both clients against a live server that holds two versions of a model."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from recsys.artifact.load import LoadedArtifact, load_artifact
from serve.client import Answer, AsyncClient, Client, Settings
from serve.client.errors import UnknownModelError
from serve.client.packing import read_response
from serve.config.models import ModelSettings, Routing
from serve.config.settings import ServerConfig
from serve.wire import predict_pb2 as wire
from tests.support.serve.live import LiveServer
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE
from tests.support.serve.repositories import add_version


@pytest.fixture(scope="module")
def models(artifacts: dict[str, Path]) -> dict[str, LoadedArtifact]:
    """Two versions, each with weights of its own."""
    return {version: load_artifact(artifacts[version]) for version in ("1", "2")}


@pytest.fixture(scope="module")
def two(artifacts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Requests that name no version go to either version."""
    root = tmp_path_factory.mktemp("two")
    for version in ("1", "2"):
        add_version(root, "ranker", version, artifacts[version])
    routing = Routing(serve="1", canary="2", canary_percent=50.0)
    config = ServerConfig(port=0, metrics_port=None, defaults=ModelSettings(routing=routing))
    with LiveServer(root, config) as made:
        yield made


def sample_of(rows: int) -> Sample:
    return random_sample(SIGNATURE, rows, np.random.default_rng(rows))


def requests(num: int, versions: tuple[str, ...]) -> list[wire.PredictRequest]:
    """Requests for these versions in turn, named by their number and version."""
    made = []
    for i in range(num):
        request = sample_of(2).request()
        request.version = versions[i % len(versions)]
        request.request_id = f"{i} {request.version}"
        made.append(request)
    return made


def check(got: object, models: dict[str, LoadedArtifact], expected: str = "") -> str:
    """The outputs are those of the version that the answer names; return it."""
    assert isinstance(got, Answer)
    assert got.model == "ranker"
    assert got.version in ("1", "2")
    assert expected in ("", got.version)
    assert_answers(got, answer(models[got.version], sample_of(2)))
    return got.version


@pytest.mark.parametrize("version", ["1", "2"])
def test_predict_says_which_version_answered(
    two: LiveServer, models: dict[str, LoadedArtifact], version: str
) -> None:
    sample = sample_of(2)
    arguments = (sample.dense, sample.sparse, sample.weights)
    settings = Settings(timeout_s=60, version=version)

    async def ask() -> Answer:
        async with AsyncClient(two.address, settings=settings) as client:
            return await client.predict(*arguments)

    with Client(two.address, settings=settings) as client:
        check(client.predict(*arguments), models, version)
    check(asyncio.run(ask()), models, version)


def test_the_routing_chooses_and_the_answer_says_what(
    two: LiveServer, models: dict[str, LoadedArtifact]
) -> None:
    sample = sample_of(2)
    with Client(two.address, timeout_s=60) as client:
        seen = Counter(
            check(client.predict(sample.dense, sample.sparse, sample.weights), models) for _ in range(64)
        )
    # One of the two is never drawn in 64 with a probability of 2 ** -63.
    assert set(seen) == {"1", "2"}


def test_each_answer_of_a_stream_says_which_version(
    two: LiveServer, models: dict[str, LoadedArtifact]
) -> None:
    sent = requests(12, ("1", "2", "3"))
    with Client(two.address) as client:
        answers = dict(client.stream(sent, timeout_s=60))
    check_stream(answers, models)


def test_each_answer_of_an_async_stream_says_which_version(
    two: LiveServer, models: dict[str, LoadedArtifact]
) -> None:
    async def send() -> AsyncIterator[wire.PredictRequest]:
        for request in requests(12, ("1", "2", "3")):
            yield request

    async def ask() -> dict[str, object]:
        async with AsyncClient(two.address) as client:
            return {name: got async for name, got in client.stream(send(), timeout_s=60)}

    check_stream(asyncio.run(ask()), models)


def check_stream(answers: dict[str, object], models: dict[str, LoadedArtifact]) -> None:
    assert len(answers) == 12
    for name, got in answers.items():
        version = name.split()[1]
        if version == "3":
            assert isinstance(got, UnknownModelError)
        else:
            check(got, models, version)


def test_an_answer_is_a_dict_and_keeps_its_version_when_it_is_copied() -> None:
    response = wire.PredictResponse(model="m", version="4")
    response.outputs.add(name="score", dims=[2], values=np.array([1, 2], "<f4").tobytes())
    got = read_response(response)
    assert list(got) == ["score"]
    assert dict(got) == got
    for made in (copy.copy(got), copy.deepcopy(got), pickle.loads(pickle.dumps(got))):
        assert (made.model, made.version) == ("m", "4")
        np.testing.assert_array_equal(made["score"], [1, 2])
