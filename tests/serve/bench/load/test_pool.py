"""The requests of users who come back."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from serve.bench.load.pool import prepare, request_generator
from serve.bench.load.requests import Shape, parse_mix
from serve.config.models import BatchLimits
from serve.engine.reference.request_check import RequestChecker
from serve.wire import predict_pb2 as wire
from tests.support.serve.bench_metadata import small_metadata
from tests.support.serve.models import SIGNATURE

METADATA = small_metadata("context", "user")


def _made(shape: Shape, seed: int = 1, index: int = 0) -> list[wire.PredictRequest]:
    made = prepare(
        METADATA, shape, lambda request: request.SerializeToString(), request_generator(seed, index), seed
    )
    return [wire.PredictRequest.FromString(one.data) for one in made]


def _contexts(requests: list[wire.PredictRequest]) -> Counter[bytes]:
    return Counter(
        request.context_dense[0].SerializeToString() + request.context_sparse[0].SerializeToString()
        for request in requests
    )


def _ranking(num_users: int, zipf: float = 0.0) -> Shape:
    return Shape(
        ranking=True,
        rows=parse_mix("2"),
        ids_per_bag=parse_mix("1-4"),
        users=num_users,
        zipf=zipf,
        num_distinct=2000,
    )


@pytest.mark.parametrize("zipf", [0.0, 1.1])
def test_contexts_are_those_of_the_users(zipf: float) -> None:
    requests = _made(_ranking(300, zipf))
    checker = RequestChecker(SIGNATURE, BatchLimits())
    assert {checker.check(request).num_rows for request in requests} == {2}
    contexts = _contexts(requests)
    assert 200 < len(contexts) <= 300
    items = {request.sparse[-1].values for request in requests}
    assert len(items) > 50
    share_of_first = contexts.most_common(1)[0][1] / 2000
    assert share_of_first == pytest.approx(0.21 if zipf else 1 / 300, abs=0.03)


def test_processes_have_the_same_users() -> None:
    shape = _ranking(300)
    here, there = _made(shape, index=0), _made(shape, index=1)
    assert [one.sparse for one in here] != [one.sparse for one in there]
    assert len(_contexts(here).keys() | _contexts(there).keys()) <= 300


def test_another_seed_has_others() -> None:
    shape = _ranking(5)
    assert not _contexts(_made(shape, seed=1)).keys() & _contexts(_made(shape, seed=2)).keys()


def test_rows_have_as_many_ids_as_their_user() -> None:
    metadata = wire.ModelMetadata.FromString(METADATA.SerializeToString())
    next(sparse for sparse in metadata.sparse if sparse.name == "item").same_lengths_as = "user"
    made = prepare(
        metadata, _ranking(20), lambda request: request.SerializeToString(), request_generator(1), 1
    )
    seen = set()
    for one in made:
        request = wire.PredictRequest.FromString(one.data)
        (of_user,) = np.frombuffer(request.context_sparse[0].lengths, "<i4").tolist()
        (item,) = (sparse for sparse in request.sparse if sparse.name == "item")
        assert np.frombuffer(item.lengths, "<i4").tolist() == [of_user] * 2
        seen.add(of_user)
    assert seen == {1, 2, 3, 4}
