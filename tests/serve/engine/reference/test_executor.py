"""The executor without a server: batches, failures, deadlines, warm-up, close."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.errors import ComputedIdError
from serve.client.packing import read_response
from serve.config.models import BatchLimits, ModelSettings
from serve.engine.reference.executor import Answer, AnsweredBatch, Executor, ServedModel
from serve.engine.reference.gateway import Request
from serve.engine.reference.protocols.recsys_v1 import encode_response
from serve.engine.reference.request_check import CheckedRequest, RequestChecker
from serve.engine.reference.warm_up import warm_up_batches
from serve.errors import DeadlineExpiredError, DrainingError, ExecutionError, RequestError
from serve.metrics.counters import ModelCounters
from serve.wire import predict_pb2 as wire
from tests.support.serve.live import INFO
from tests.support.serve.messages.cases import Sample, answer, assert_answers, random_sample
from tests.support.serve.models import SIGNATURE, FailingModel, GatedModel

CHECKER = RequestChecker(SIGNATURE, BatchLimits())


class Answers:
    """Collects what is delivered; ``wait`` blocks until so many answers are there."""

    def __init__(self) -> None:
        self.by_name: dict[str, Answer] = {}
        self.deliveries: list[int] = []
        self._changed = threading.Condition()

    def deliver(self, answered: AnsweredBatch) -> None:
        with self._changed:
            self.deliveries.append(len(answered))
            for request, result in answered:
                assert isinstance(request, NamedRequest)
                self.by_name[request.request_id] = result
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.by_name) >= count, timeout=60)

    def outputs(self, name: str) -> dict[str, np.ndarray]:
        result = self.by_name[name]
        assert isinstance(result, bytes)
        return read_response(wire.PredictResponse.FromString(result))


@dataclass(eq=False, slots=True, kw_only=True)
class NamedRequest(Request):
    """A request whose answer is collected by its ID."""

    num_missing_bytes: int = 0

    def encode(self, values: Sequence[bytes]) -> bytes:
        if self.num_missing_bytes:
            return bytes(-self.num_missing_bytes)
        return encode_response(INFO, SIGNATURE, self.num_rows, values)


def pending(name: str, sample: Sample, deadline_s: float | None = None) -> NamedRequest:
    checked = CHECKER.check(sample.request())
    return NamedRequest(
        request_id=name,
        checked=checked,
        num_rows=checked.num_rows,
        num_ids=checked.num_ids,
        deadline_s=deadline_s,
    )


WARM_UP = list(warm_up_batches(SIGNATURE, BatchLimits()))


def executor_of(
    model: ServedModel,
    answers: Answers,
    counters: ModelCounters | None = None,
    clock: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Executor:
    made = ModelSettings(**{"num_executors": 1, **settings})
    counters = counters or ModelCounters(INFO.name, INFO.version)
    return Executor(model, INFO, made, counters, answers.deliver, clock)


@contextmanager
def running(model: ServedModel, answers: Answers, num_threads: int = 1) -> Iterator[Executor]:
    executor = executor_of(model, answers, num_executors=num_threads)
    executor.start(WARM_UP)
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


def keep_busy(executor: Executor, gated: GatedModel, request: NamedRequest) -> None:
    """Close the gate, and let a request run up to it."""
    gated.close_gate()
    executor.submit(request)
    assert gated.started.acquire(timeout=60)


def test_requests_that_wait_go_together_and_each_gets_its_own_rows(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        keep_busy(executor, gated, pending("first", samples[0]))
        for i, sample in enumerate(samples):
            executor.submit(pending(str(i), sample))
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
            executor.submit(pending(name, sample))
            answers.wait(len(answers.by_name) + 1)
    assert_answers(answers.outputs("before"), answer(model, samples[1]))
    assert_answers(answers.outputs("after"), answer(model, samples[3]))
    error = answers.by_name["bad"]
    assert isinstance(error, ExecutionError)
    assert "secret" not in str(error)
    assert "0x" not in str(error)
    assert "request IDs: 'bad'" in caplog.text
    assert "does not like this ID" in caplog.text


@pytest.mark.parametrize("guilty", [[0], [5], [2, 3], [0, 7, 12], list(range(13))], ids=str)
@pytest.mark.parametrize(
    "error",
    [
        ComputedIdError("computed ID: table 'c' got 52, expected 0 <= ID < 50"),
        RuntimeError("secret at 0x7f: does not like this ID"),
    ],
    ids=["computed ID", "any"],
)
def test_what_a_model_fails_on_fails_its_own_request_only(
    model: ServedModel,
    answers: Answers,
    samples: list[Sample],
    guilty: list[int],
    error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered = RequestError if isinstance(error, ComputedIdError) else ExecutionError
    counters = ModelCounters(INFO.name, INFO.version)
    failing = FailingModel(model, 777_000, error)
    gated = GatedModel(failing)
    executor = executor_of(gated, answers, counters=counters)
    executor.start(WARM_UP)
    executor.wait_until_warm()
    keep_busy(executor, gated, pending("running", samples[0]))
    for i in range(13):
        sample = samples[1]
        if i in guilty:
            sample = Sample(3, sample.dense, {**sample.sparse, "item": [[777_000], [], [1]]}, sample.weights)
        executor.submit(pending(str(i), sample))
    num_calls = failing.num_calls
    gated.gate.set()
    answers.wait(14)
    executor.close()
    assert failing.num_calls - num_calls <= 1 + 2 * 13 - 1
    for i in range(13):
        if i in guilty:
            refused = answers.by_name[str(i)]
            assert isinstance(refused, answered)
            told = "the model failed on this request; the log says why"
            assert str(refused) == (str(error) if answered is RequestError else told)
        else:
            assert_answers(answers.outputs(str(i)), answer(model, samples[1]))
    assert counters.totals().batch_requests.sum == 14
    logged = [record.getMessage() for record in caplog.records if "a batch failed" in record.getMessage()]
    assert len(logged) == (answered is ExecutionError)
    for line in logged:
        assert line.endswith(f"request IDs: {', '.join(repr(str(i)) for i in guilty)}")


def test_no_request_runs_again_behind_its_deadline(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    now_s = [100.0]

    class Slow(FailingModel):
        def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
            try:
                return super().forward(*inputs)
            except RuntimeError:
                now_s[0] += 10
                raise

    gated = GatedModel(Slow(model, 777_000, RuntimeError("does not like this ID")))
    executor = executor_of(gated, answers, clock=lambda: now_s[0])
    executor.start()
    executor.wait_until_warm()
    keep_busy(executor, gated, pending("running", samples[0]))
    bad = Sample(3, samples[1].dense, {**samples[1].sparse, "item": [[777_000], [], [1]]}, samples[1].weights)
    executor.submit(pending("bad", bad))
    executor.submit(pending("hurried", samples[1], deadline_s=now_s[0] + 5))
    executor.submit(pending("patient", samples[1]))
    gated.gate.set()
    answers.wait(4)
    executor.close()
    assert isinstance(answers.by_name["hurried"], DeadlineExpiredError)
    assert isinstance(answers.by_name["bad"], ExecutionError)
    assert_answers(answers.outputs("patient"), answer(model, samples[1]))


def test_made_ids_from_which_the_model_computes_bad_ones_do_not_end_the_warm_up(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    failing = FailingModel(model, 0, ComputedIdError("computed ID: table 'c' got 52, expected 0 <= ID < 50"))
    with running(failing, answers) as executor:
        assert failing.num_calls == len(WARM_UP)
        executor.submit(pending("a", samples[2]))
        answers.wait(1)


def test_an_expired_request_is_answered_without_being_computed(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        keep_busy(executor, gated, pending("running", samples[0]))
        executor.submit(pending("late", samples[1], deadline_s=0.0))
        executor.submit(pending("in time", samples[3]))
        gated.gate.set()
        answers.wait(3)
    assert isinstance(answers.by_name["late"], DeadlineExpiredError)
    assert gated.batches == [1, 2]


def test_a_cancelled_request_is_not_computed(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        keep_busy(executor, gated, pending("running", samples[0]))
        unwanted = pending("unwanted", samples[1])
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
            executor.submit(pending(str(i), sample))
        closing = threading.Thread(target=executor.close)
        closing.start()
        gated.gate.set()
        closing.join(60)
        assert not closing.is_alive()
        with pytest.raises(DrainingError):
            executor.submit(pending("too late", samples[0]))
    assert sorted(answers.by_name) == ["0", "1", "2", "3"]


class ThreadNotingModel:
    """Notes which thread calls it."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.signature = model.signature
        self.threads: list[str] = []

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        self.threads.append(threading.current_thread().name)
        return self._model.forward(*inputs)


def test_the_first_executor_thread_is_warmed_up_and_others_start_when_needed(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    noting = ThreadNotingModel(model)
    gated = GatedModel(noting)
    with running(gated, answers, num_threads=2) as executor:
        assert set(noting.threads) == {"executor-small-0"}
        keep_busy(executor, gated, pending("first", samples[0]))
        executor.submit(pending("second", samples[1]))
        assert gated.started.acquire(timeout=60)
        gated.gate.set()
        answers.wait(2)
        assert set(noting.threads) == {"executor-small-0", "executor-small-1"}


def test_warm_up_counts_in_no_metric(model: ServedModel, answers: Answers) -> None:
    counters = ModelCounters(INFO.name, INFO.version)
    executor = executor_of(model, answers, counters=counters)
    executor.start(WARM_UP)
    executor.wait_until_warm()
    executor.close()
    totals = counters.totals()
    assert totals.stages["execute"].count == totals.batch_rows.count == 0


def test_a_model_that_cannot_warm_up_is_an_error_at_start(model: ServedModel, answers: Answers) -> None:
    executor = executor_of(FailingModel(model, bad_id=0), answers)
    executor.start(WARM_UP)
    with pytest.raises(RuntimeError, match="failed to warm up"):
        executor.wait_until_warm()
    executor.close()


def test_an_answer_that_cannot_be_written_fails_its_own_request_only(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers) as executor:
        keep_busy(executor, gated, pending("running", samples[0]))
        unwritable = pending("unwritable", samples[1])
        unwritable.num_missing_bytes = 100
        executor.submit(unwritable)
        executor.submit(pending("neighbour", samples[3]))
        gated.gate.set()
        answers.wait(3)
    assert isinstance(answers.by_name["unwritable"], ValueError)
    assert_answers(answers.outputs("neighbour"), answer(model, samples[3]))


def test_work_between_batches_waits_for_the_running_one_and_holds_up_the_next(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    gated = GatedModel(model)
    with running(gated, answers, num_threads=2) as executor:
        keep_busy(executor, gated, pending("running", samples[0]))
        seen: list[list[int]] = []
        inside, leave = threading.Event(), threading.Event()

        def change() -> None:
            seen.append(list(gated.batches))
            inside.set()
            assert leave.wait(60)
            seen.append(list(gated.batches))

        changing = threading.Thread(target=executor.run_between_batches, args=(change,))
        changing.start()
        gated.gate.set()
        assert inside.wait(60)
        executor.submit(pending("next", samples[1]))
        leave.set()
        changing.join(60)
        answers.wait(2)
    assert seen == [[1], [1]]
    assert gated.batches == [1, 3]


def test_what_work_between_batches_raises_reaches_its_caller_and_batches_go_on(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    def fail() -> None:
        raise LookupError("no such delta")

    with running(model, answers) as executor:
        with pytest.raises(LookupError, match="no such delta"):
            executor.run_between_batches(fail)
        executor.submit(pending("after", samples[1]))
        answers.wait(1)
    assert_answers(answers.outputs("after"), answer(model, samples[1]))


def test_a_processor_that_is_not_there_is_an_error_at_start(model: ServedModel, answers: Answers) -> None:
    executor = executor_of(model, answers, cpus=(65_000,))
    executor.start(WARM_UP)
    with pytest.raises(RuntimeError, match="failed to warm up"):
        executor.wait_until_warm()
    executor.close()


def test_warm_up_requests_are_not_kept(model: ServedModel, answers: Answers) -> None:
    class Batch(list[CheckedRequest]):
        """A list that can be watched."""

    batch = Batch(WARM_UP[0])
    kept = weakref.ref(batch)
    executor = executor_of(model, answers, num_executors=2)
    executor.start([batch])
    del batch
    executor.wait_until_warm()
    executor.close()
    assert kept() is None


def test_a_batch_may_wait_to_be_filled_where_it_is_asked_for(
    model: ServedModel, answers: Answers, samples: list[Sample]
) -> None:
    limits = BatchLimits(max_delay_us=60_000_000, max_batch_rows=6)
    gated = GatedModel(model)
    executor = executor_of(gated, answers, limits=limits)
    executor.start()
    try:
        executor.submit(pending("three rows", samples[1]))
        executor.submit(pending("two rows", samples[3]))
        assert not gated.batches
        executor.submit(pending("one row more fills it", samples[0]))
        answers.wait(3)
        assert gated.batches == [6]
        executor.submit(pending("closing ends the wait", samples[0]))
    finally:
        executor.close()
    assert gated.batches == [6, 1]


def test_executors_stay_on_their_processors(model: ServedModel, answers: Answers) -> None:
    allowed = sorted(os.sched_getaffinity(0))[:1]
    seen: list[set[int]] = []

    class Noting(ThreadNotingModel):
        def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append(os.sched_getaffinity(0))
            return super().forward(*inputs)

    executor = executor_of(Noting(model), answers, cpus=tuple(allowed))
    executor.start(WARM_UP)
    executor.wait_until_warm()
    executor.close()
    assert seen
    assert all(cpus == set(allowed) for cpus in seen)


class MislabelledModel:
    """Returns other shapes than its signature says."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.signature = model.signature
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
        executor.submit(pending("a", samples[1]))
        answers.wait(1)
    assert isinstance(answers.by_name["a"], ExecutionError)
