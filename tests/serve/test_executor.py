"""The executor without a server: batches, failures, deadlines, warm-up, close."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from serve.batching import BatchLimits, Pending
from serve.errors import DeadlineExpiredError, DrainingError, ExecutionError
from serve.executor import Answer, Answered, Executor, ExecutorSettings, Work
from serve.metrics import Metrics
from serve.model import ServedModel
from serve.packing import read_response
from serve.request_check import RequestChecker
from serve.wire import predict_pb2 as wire
from tests.serve.cases import Sample, answer, assert_answers, random_sample
from tests.serve.live import INFO
from tests.serve.models import SIGNATURE, FailingModel, GatedModel

CHECKER = RequestChecker(SIGNATURE, BatchLimits())


class Answers:
    """Collects what is delivered; ``wait`` blocks until so many answers are there."""

    def __init__(self) -> None:
        self.by_name: dict[str, Answer] = {}
        self.deliveries: list[int] = []
        self._changed = threading.Condition()

    def deliver(self, answered: Answered) -> None:
        with self._changed:
            self.deliveries.append(len(answered))
            for pending, result in answered:
                pending.payload.answer(result)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.by_name) >= count, timeout=60)

    def taker(self, name: str) -> Callable[[Answer], None]:
        return lambda result: self.by_name.__setitem__(name, result)

    def outputs(self, name: str) -> dict[str, np.ndarray]:
        result = self.by_name[name]
        assert isinstance(result, bytes)
        return read_response(wire.PredictResponse.FromString(result))


def pending(answers: Answers, name: str, sample: Sample, deadline_s: float | None = None) -> Pending[Work]:
    checked = CHECKER.check(sample.request())
    return Pending(
        payload=Work(checked=checked, request_id=name, answer=answers.taker(name)),
        num_rows=checked.num_rows,
        num_ids=len(checked.values),
        deadline_s=deadline_s,
    )


@contextmanager
def running(model: ServedModel, answers: Answers, num_threads: int = 1) -> Iterator[Executor]:
    settings = ExecutorSettings(
        model=model, info=INFO, limits=BatchLimits(), metrics=Metrics(), num_threads=num_threads
    )
    executor = Executor(settings, answers.deliver)
    executor.start()
    executor.wait_until_warm()
    try:
        yield executor
    finally:
        executor.close()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def samples() -> list[Sample]:
    rng = np.random.default_rng(5)
    return [random_sample(SIGNATURE, rows, rng) for rows in (1, 3, 0, 2)]


def test_requests_that_wait_go_together_and_each_gets_its_own_rows(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        gated.close_gate()
        executor.submit(pending(answers, "first", samples[0]))
        assert gated.started.acquire(timeout=60)
        for i, sample in enumerate(samples):
            executor.submit(pending(answers, str(i), sample))
        gated.gate.set()
        answers.wait(5)
    assert gated.batches == [1, 6]
    assert answers.deliveries == [1, 4]
    for i, sample in enumerate(samples):
        assert_answers(answers.outputs(str(i)), answer(model, sample))


def test_a_model_that_fails_fails_its_batch_and_no_other(
    model: ServedModel, answers: Answers, samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    bad = Sample(1, samples[0].dense, {**samples[0].sparse, "item": [[777_000]]}, samples[0].weights)
    with running(FailingModel(model, 777_000), answers) as executor:
        for name, sample in (("before", samples[1]), ("bad", bad), ("after", samples[3])):
            executor.submit(pending(answers, name, sample))
            answers.wait(len(answers.by_name) + 1)
    assert_answers(answers.outputs("before"), answer(model, samples[1]))
    assert_answers(answers.outputs("after"), answer(model, samples[3]))
    error = answers.by_name["bad"]
    assert isinstance(error, ExecutionError)
    assert "secret" not in str(error)
    assert "0x" not in str(error)
    assert "request IDs: 'bad'" in caplog.text
    assert "does not like this ID" in caplog.text


def test_an_expired_request_is_answered_without_being_computed(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        gated.close_gate()
        executor.submit(pending(answers, "running", samples[0]))
        assert gated.started.acquire(timeout=60)
        executor.submit(pending(answers, "late", samples[1], deadline_s=0.0))
        executor.submit(pending(answers, "in time", samples[3]))
        gated.gate.set()
        answers.wait(3)
    assert isinstance(answers.by_name["late"], DeadlineExpiredError)
    assert gated.batches == [1, 2]


def test_a_cancelled_request_is_not_computed(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        gated.close_gate()
        executor.submit(pending(answers, "running", samples[0]))
        assert gated.started.acquire(timeout=60)
        unwanted = pending(answers, "unwanted", samples[1])
        executor.submit(unwanted)
        executor.cancel(unwanted)
        gated.gate.set()
        answers.wait(1)
    assert gated.batches == [1]
    assert set(answers.by_name) == {"running"}


def test_close_answers_what_was_accepted_and_takes_no_more(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        gated.close_gate()
        for i, sample in enumerate(samples):
            executor.submit(pending(answers, str(i), sample))
        closing = threading.Thread(target=executor.close)
        closing.start()
        gated.gate.set()
        closing.join(60)
        assert not closing.is_alive()
        with pytest.raises(DrainingError):
            executor.submit(pending(answers, "too late", samples[0]))
    assert sorted(answers.by_name) == ["0", "1", "2", "3"]


class ThreadNotingModel:
    """Notes which thread calls it."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.signature = model.signature
        self.target_name = model.target_name
        self.threads: list[str] = []

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.threads.append(threading.current_thread().name)
        return self._model.forward(*inputs)


def test_every_executor_thread_is_warmed_up_itself(model: ServedModel, answers: Answers) -> None:
    noting = ThreadNotingModel(model)
    with running(noting, answers, num_threads=2):
        assert set(noting.threads) == {"executor-0", "executor-1"}


def test_warm_up_counts_in_no_metric(model: ServedModel, answers: Answers) -> None:
    metrics = Metrics()
    settings = ExecutorSettings(model=model, info=INFO, limits=BatchLimits(), metrics=metrics)
    executor = Executor(settings, answers.deliver)
    executor.start()
    executor.wait_until_warm()
    executor.close()
    assert metrics.registry.get_sample_value("recsys_stage_seconds_count", {"stage": "execute"}) == 0
    assert metrics.registry.get_sample_value("recsys_batch_rows_count") == 0


def test_a_model_that_cannot_warm_up_is_an_error_at_start(model: ServedModel, answers: Answers) -> None:
    failing = FailingModel(model, bad_id=0)
    settings = ExecutorSettings(model=failing, info=INFO, limits=BatchLimits(), metrics=Metrics())
    executor = Executor(settings, answers.deliver)
    executor.start()
    with pytest.raises(RuntimeError, match="failed to warm up"):
        executor.wait_until_warm()
    executor.close()


class MislabelledModel:
    """Returns other shapes than its signature says."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.signature = model.signature
        self.target_name = model.target_name
        self.is_honest = True

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self._model.forward(*inputs)
        return outputs if self.is_honest else {**outputs, "score": outputs["score"][:-1]}


def test_outputs_that_contradict_the_signature_reach_no_client(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    mislabelled = MislabelledModel(model)
    with running(mislabelled, answers) as executor:
        mislabelled.is_honest = False
        executor.submit(pending(answers, "a", samples[1]))
        answers.wait(1)
    assert isinstance(answers.by_name["a"], ExecutionError)
