"""Warm-up batches run through the real collation and the real model, in every way that requests will."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys.artifact.load import LoadedArtifact, load_artifact
from recsys.inputs.signature import Signature
from serve.client.packing import build_request
from serve.config.models import BatchLimits, ModelSettings
from serve.config.settings import CaptureConfig
from serve.engine.records import Captured
from serve.engine.reference.executor import check_outputs, collate
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.engine.reference.servable import ReferenceServable
from serve.engine.reference.warm_up import captured_batches, warm_up_batches
from serve.observe.capture import Capture
from serve.observe.capture_file import CaptureError, captured_requests
from serve.wire import predict_pb2 as wire
from tests.conformance.support.artifacts import CONTEXT, export_small
from tests.serve.engine.reference.test_ranking_check import split
from tests.support.serve.live import INFO
from tests.support.serve.messages.cases import random_sample
from tests.support.serve.models import SIGNATURE

LIMITS = BatchLimits()


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> LoadedArtifact:
    """A model with a context."""
    path = tmp_path_factory.mktemp("ranker") / "artifact"
    export_small(path)
    return load_artifact(path)


def run(model: LoadedArtifact, batch: list[CheckedRequest]) -> None:
    """As an executor does; raises where the batch does not fit the model."""
    forward = model.forward if batch[0].context is None else model.forward_ranking
    with torch.inference_mode():
        outputs = forward(*collate(batch))
    check_outputs(outputs, model.signature, sum(request.num_rows for request in batch))


def shapes(batches: list[list[CheckedRequest]]) -> list[tuple[int, int]]:
    return [(len(batch), sum(request.num_rows for request in batch)) for batch in batches]


def test_a_model_is_warmed_up_row_by_row_and_for_ranking(ranker: LoadedArtifact) -> None:
    batches = list(warm_up_batches(ranker.signature, LIMITS))
    by_row = [batch for batch in batches if batch[0].context is None]
    ranking = [batch for batch in batches if batch[0].context is not None]
    assert shapes(by_row) == shapes(ranking)
    assert {(1, 1), (1, 64), (32, 32), (128, 128)} <= set(shapes(by_row))
    for batch in batches:
        run(ranker, batch)


def test_a_model_without_a_context_has_no_ranking_batches(model: LoadedArtifact) -> None:
    batches = list(warm_up_batches(model.signature, LIMITS))
    assert all(request.context is None for batch in batches for request in batch)
    for batch in batches:
        run(model, batch)


def test_no_batch_is_larger_than_the_limits_except_that_of_one_row() -> None:
    signature = replace(SIGNATURE, context=CONTEXT)
    by_rows = warm_up_batches(signature, BatchLimits(max_batch_rows=8))
    assert max(rows for _, rows in shapes(list(by_rows))) == 8
    by_ids = list(warm_up_batches(signature, BatchLimits(max_batch_ids=8)))
    assert max(sum(r.num_ids for r in batch) for batch in by_ids) == 8
    smallest = list(warm_up_batches(signature, BatchLimits(max_batch_ids=1)))
    assert shapes(smallest) == [(1, 1)] * 4


@pytest.mark.parametrize("context", [(), CONTEXT, tuple(s.name for s in SIGNATURE.sparse)])
def test_warm_up_requests_pass_every_check_on_ids(context: tuple[str, ...]) -> None:
    signature = replace(SIGNATURE, context=context)
    for batch in warm_up_batches(signature, LIMITS):
        for request in batch:
            assert_ids(signature, request)


def assert_ids(signature: Signature, request: CheckedRequest) -> None:
    shared = () if request.context is None else signature.context
    parts = [(request.sparse, [s for s in signature.sparse if s.name not in shared], request.num_rows)]
    if request.context is not None:
        parts.append((request.context, list(signature.context_sparse), 1))
    for arrays, uses, num_bags in parts:
        assert len(arrays.lengths) == len(uses) * num_bags
        assert arrays.lengths.sum() == len(arrays.values) == sum(arrays.num_ids)
        assert arrays.weights is not None
        assert len(arrays.weights) == len(arrays.values)
        ends = np.cumsum(arrays.num_ids)
        for use, start, end in zip(uses, ends - arrays.num_ids, ends, strict=True):
            ids = arrays.values[start:end]
            assert ids.min() >= 0
            assert use.id_limit is None or ids.max() < use.id_limit


# Captured requests.


def write_capture(path: Path, requests: list[wire.PredictRequest]) -> Path:
    capture = Capture(CaptureConfig(path=path, share=1.0))
    for request in requests:
        capture.offer(Captured(time_s=0.0, model="small", version="7", message=request.SerializeToString()))
    capture.close()
    return path


def requests_of(signature: Signature, num_requests: int) -> list[wire.PredictRequest]:
    rng = np.random.default_rng(3)
    return [random_sample(signature, int(rng.integers(1, 4)), rng).request() for _ in range(num_requests)]


def ranking_requests(num_requests: int) -> list[wire.PredictRequest]:
    rng = np.random.default_rng(4)
    pairs = [
        (random_sample(SIGNATURE, 3, rng), random_sample(SIGNATURE, 1, rng)) for _ in range(num_requests)
    ]
    return [split(sample, one, set(CONTEXT))[0] for sample, one in pairs]


def test_captured_requests_warm_the_model_up(
    ranker: LoadedArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    signature = ranker.signature
    mixed = [
        request
        for pair in zip(requests_of(signature, 80), ranking_requests(80), strict=True)
        for request in pair
    ]
    path = write_capture(tmp_path / "c", mixed)
    batches = captured_batches(captured_requests(path), RequestChecker(signature, LIMITS), LIMITS)
    assert [len(batch) for batch in batches] == [1, 8, 64, 1, 6] * 2
    assert [batch[0].context is None for batch in batches] == [True] * 5 + [False] * 5
    for batch in batches:
        assert len({request.context is None for request in batch}) == 1
        run(ranker, batch)
    assert "160 captured requests are used, 0 do not fit" in caplog.text


def test_requests_that_no_longer_fit_are_skipped_and_counted(
    model: LoadedArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good = requests_of(model.signature, 3)
    other = build_request({"other": [[1.0]]}, {"feature": [[1]]})
    too_large = random_sample(model.signature, 9, np.random.default_rng(0)).request()
    path = write_capture(tmp_path / "c", [other, *good[:2], too_large, other, good[2]])
    limits = BatchLimits(max_request_rows=8)
    batches = captured_batches(captured_requests(path), RequestChecker(model.signature, limits), limits)
    assert sum(len(batch) for batch in batches) == 3
    assert "3 captured requests are used, 3 do not fit" in caplog.text


def test_captured_batches_keep_within_the_limits(model: LoadedArtifact, tmp_path: Path) -> None:
    path = write_capture(tmp_path / "c", requests_of(model.signature, 60))
    limits = BatchLimits(max_batch_rows=5)
    batches = captured_batches(captured_requests(path), RequestChecker(model.signature, limits), limits)
    assert sum(len(batch) for batch in batches) == 60
    assert all(rows <= 5 for _, rows in shapes(batches))
    tight = BatchLimits(max_batch_ids=1)
    batches = captured_batches(captured_requests(path), RequestChecker(model.signature, tight), tight)
    assert all(len(batch) == 1 or sum(r.num_ids for r in batch) <= 1 for batch in batches)


def test_a_damaged_capture_is_used_up_to_its_damage(
    model: LoadedArtifact, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_capture(tmp_path / "c", requests_of(model.signature, 10))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    batches = captured_batches(captured_requests(path), RequestChecker(model.signature, LIMITS), LIMITS)
    assert sum(len(batch) for batch in batches) == 9
    assert "used up to its damage: record 10" in caplog.text


def test_a_long_capture_is_not_used_whole(model: LoadedArtifact, tmp_path: Path) -> None:
    request = requests_of(model.signature, 1)[0]
    path = tmp_path / "c"
    for part in range(3):
        write_capture(tmp_path / str(part), [request] * 1000)
    head, *rest = ((tmp_path / str(part)).read_bytes() for part in range(3))
    path.write_bytes(head + b"".join(data[24:] for data in rest))
    batches = captured_batches(captured_requests(path), RequestChecker(model.signature, LIMITS), LIMITS)
    assert sum(len(batch) for batch in batches) == 2000


class CountingModel:
    """Notes how many rows each call has."""

    def __init__(self, model: LoadedArtifact) -> None:
        self._model = model
        self.signature = model.signature
        self.calls: list[int] = []

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.append(len(inputs[0]))
        return self._model.forward(*inputs)

    def forward_ranking(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return self._model.forward_ranking(*inputs)


def test_a_servable_is_warmed_up_with_its_captured_requests(model: LoadedArtifact, tmp_path: Path) -> None:
    requests = [random_sample(model.signature, 77, np.random.default_rng(0)).request()]
    path = write_capture(tmp_path / "c", requests)
    counting = CountingModel(model)
    servable = ReferenceServable(counting, INFO, ModelSettings(), lambda _: None)
    servable.open(captured_requests(path))
    assert 77 in counting.calls
    servable.close()
    before = set(threading.enumerate())
    servable = ReferenceServable(counting, INFO, ModelSettings(), lambda _: None)
    with pytest.raises(CaptureError):
        servable.open(captured_requests(tmp_path / "none"))
    assert set(threading.enumerate()) <= before  # nothing of it is left


def test_a_missing_capture_is_an_error(model: LoadedArtifact, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be read"):
        captured_batches(
            captured_requests(tmp_path / "none"), RequestChecker(model.signature, LIMITS), LIMITS
        )
