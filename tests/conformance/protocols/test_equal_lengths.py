"""Inputs whose bags must have equal lengths: a request where they have not is refused, by itself and in words."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from serve.client.errors import InvalidRequestError
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import Exported, export_side_by_side
from tests.conformance.support.harness import ServerUnderTest, running
from tests.support.serve.messages.cases import Sample, assert_answers

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export_side_by_side(tmp_path_factory.mktemp("equal") / "artifact")


@pytest.fixture(scope="module")
def serving(side_by_side: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    folder = tmp_path_factory.mktemp("server")
    with running(side_by_side.path, "--max-delay-us", "20000", folder=folder) as started:
        yield started


def _sample(number: int) -> Sample:
    bags = [[number % 30, 2, 3][: number % 4], [5, number % 30]]
    times = [[7 * id_ for id_ in bag] for bag in bags]
    return Sample(2, {}, {"item": bags, "shop": bags[:], "time": times, "user": [[1], [number % 30]]}, {})


def test_only_unequal_requests_of_a_batch_are_refused(
    serving: ServerUnderTest, side_by_side: Exported
) -> None:
    good = [_sample(number) for number in range(40)]
    expected = [side_by_side.answer(sample) for sample in good]

    def ask(number: int) -> None:
        client = serving.client()
        for i in range(10):
            sample = good[(number + i) % len(good)]
            if (number + i) % 3 == 0:
                feature = ("shop", "time")[i % 2]
                wrong = {**sample.sparse, feature: [sample.sparse[feature][0], [1] * 9]}
                with pytest.raises(
                    InvalidRequestError,
                    match=rf"sparse\['{feature}'\].lengths: got 9 in row 1, expected 2, as many as 'item' has there",
                ):
                    client.predict(sample.dense, wrong)
            else:
                assert_answers(
                    client.predict(sample.dense, sample.sparse), expected[(number + i) % len(good)]
                )

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(12)))


def test_a_single_row_is_checked_too(serving: ServerUnderTest) -> None:
    sparse = {"item": [[1, 2, 3]], "shop": [[1, 2, 3]], "time": [[4]], "user": [[1]]}
    with pytest.raises(InvalidRequestError, match=r"'time'\].lengths: got 1 in row 0, expected 3"):
        serving.client().predict({}, sparse)


def test_the_metadata_names_the_input_whose_lengths_another_has(serving: ServerUnderTest) -> None:
    metadata = serving.client().metadata()
    assert {sparse.name: sparse.same_lengths_as for sparse in metadata.sparse} == {
        "item": "",
        "shop": "item",
        "user": "",
        "time": "item",
    }


@pytest.mark.parametrize("once", [["shop"], ["item"], ["item", "time"]], ids=str)
def test_inputs_that_are_given_once_are_compared_with_those_of_each_row(
    serving: ServerUnderTest, once: list[str]
) -> None:
    def ids(bags: list[list[int]]) -> dict[str, bytes]:
        return {
            "lengths": np.array([len(bag) for bag in bags], "<i4").tobytes(),
            "values": np.array([id_ for bag in bags for id_ in bag], "<i8").tobytes(),
        }

    def request(rows: list[list[int]]) -> wire.PredictRequest:
        message = wire.PredictRequest(num_rows=2)
        for name in ("item", "shop", "time", "user"):
            if name in once:
                message.context_sparse.add(name=name, **ids([[3, 4]]))
            else:
                message.sparse.add(name=name, **ids([[1], [2]] if name == "user" else rows))
        return message

    call = serving.predict_bytes()
    call(request([[3, 4], [3, 4]]).SerializeToString(), timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        call(request([[3, 4], [3, 4, 5]]).SerializeToString(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "in row 1, expected" in caught.value.details()
    assert "has there" in caught.value.details()
