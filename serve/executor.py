"""The threads that take batches from the queue, run the model and hand the answers back.

A request crosses threads twice: into the queue and back with its whole batch. Everything between, from the
collation to the serialized response, happens in the executor's thread, warmed up before the first request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from serve.batching import BatchLimits, BatchQueue, Pending
from serve.collate import check_outputs, collate
from serve.errors import DeadlineExpiredError, DrainingError, ExecutionError
from serve.metrics import Metrics
from serve.model import ModelInfo, ServedModel
from serve.request_check import CheckedRequest
from serve.warm_up import warm_up_batches
from serve.wire import predict_pb2 as wire

_log = logging.getLogger("serve")


@dataclass(eq=False, slots=True, kw_only=True)
class Work:
    """A checked request, and whom to answer.

    Attributes:
        checked: the request.
        request_id: the client's own name for it; stands in the log where the batch fails.
        answer: takes a serialized ``PredictResponse`` or an error; whoever takes the delivery calls it.
    """

    checked: CheckedRequest
    request_id: str
    answer: Callable[[Answer], None]


Answer = bytes | Exception
Answered = list[tuple[Pending[Work], Answer]]


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What an executor works with.

    Attributes:
        model: runs the batches.
        info: stands in the responses.
        limits: of batches and the queue.
        metrics: counts and times.
        num_threads: how many batches may run at the same time.
        clock: the present time in seconds, monotonic; deadlines are on it.
    """

    model: ServedModel
    info: ModelInfo
    limits: BatchLimits
    metrics: Metrics
    num_threads: int = 1
    clock: Callable[[], float] = time.monotonic


class Executor:
    """Runs batches until it is closed. ``submit``, ``cancel`` and ``close`` may be called from any thread.

    Args:
        settings: what to work with.
        deliver: takes the answers of a whole batch, in an executor's thread; must not raise.
    """

    def __init__(self, settings: ExecutorSettings, deliver: Callable[[Answered], None]) -> None:
        self._settings = settings
        self._model = settings.model
        self._signature = settings.model.signature
        self._metrics = settings.metrics
        self._clock = settings.clock
        self._deliver = deliver
        self._queue: BatchQueue[Work] = BatchQueue(settings.limits, settings.clock)
        self._ready = threading.Condition()
        self._closed = False
        self._warm = threading.Semaphore(0)
        self._warm_up_error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"executor-{i}", daemon=True)
            for i in range(settings.num_threads)
        ]

    def start(self) -> None:
        """Start the threads; each warms itself up before it takes its first batch."""
        for thread in self._threads:
            thread.start()

    def wait_until_warm(self) -> None:
        """Block until every thread has run its warm-up batches.

        Raises:
            RuntimeError: the model failed on one of them.
        """
        for _ in self._threads:
            self._warm.acquire()
        if self._warm_up_error is not None:
            raise RuntimeError(f"the model failed to warm up: {self._warm_up_error}") from self._warm_up_error

    def submit(self, pending: Pending[Work]) -> None:
        """Let a request join the queue.

        Raises:
            RequestTooLargeError: it has more rows or IDs than one request may have.
            QueueFullError: it does not fit beside what waits.
            DrainingError: the executor was closed.
        """
        with self._ready:
            if self._closed:
                raise DrainingError("the server is stopping; send the request to another one")
            self._queue.put(pending)
            self._ready.notify()
        self._metrics.accepted.inc()

    def cancel(self, pending: Pending[Work]) -> None:
        """Drop a request that nobody waits for any more, unless its batch is running already."""
        with self._ready:
            self._queue.cancel(pending)

    def close(self) -> None:
        """Take no further requests, answer every one that was accepted, and end the threads; idempotent."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        try:
            for batch in warm_up_batches(self._signature, self._settings.limits):
                self._execute(batch, _ignore)
        except Exception as error:
            self._warm_up_error = error
        self._warm.release()
        while self._step():
            pass

    def _step(self) -> bool:
        """Wait for work and do one batch; False once closed and empty."""
        with self._ready:
            while not self._queue.num_requests and not self._closed:
                self._ready.wait()
            if not self._queue.num_requests:
                return False
            taken = self._queue.take()
            self._metrics.pending_rows.set(self._queue.num_rows)
            self._metrics.pending_ids.set(self._queue.num_ids)
        if taken.expired:
            expired = DeadlineExpiredError("the deadline passed while the request waited for its batch")
            self._deliver([(pending, expired) for pending in taken.expired])
        if taken.batch:
            self._deliver(self._answers(taken.batch))
        return True

    def _answers(self, batch: list[Pending[Work]]) -> Answered:
        """Run one batch; an error of the model is an answer too, and ends nothing but this batch."""
        now_s = self._clock()
        for pending in batch:
            self._metrics.observe("queue", now_s - pending.enqueued_s)
        num_rows, num_ids = sum(p.num_rows for p in batch), sum(p.num_ids for p in batch)
        self._metrics.observe_batch(len(batch), num_rows, num_ids)
        try:
            responses = self._execute([p.payload.checked for p in batch], self._metrics.observe)
        except Exception:
            ids = ", ".join(repr(p.payload.request_id) for p in batch[:16] if p.payload.request_id)
            _log.exception(
                "a batch failed: %d requests, %d rows, %d IDs; request IDs: %s",
                len(batch),
                num_rows,
                num_ids,
                ids or "none given",
            )
            failed = ExecutionError("the model failed on the batch that held this request; the log says why")
            return [(pending, failed) for pending in batch]
        return list(zip(batch, responses, strict=True))

    def _execute(
        self, requests: Sequence[CheckedRequest], observe: Callable[[str, float], None]
    ) -> list[bytes]:
        """One serialized response for each request; ``observe`` gets each stage's time."""
        clock = self._clock
        start_s = clock()
        inputs = collate(requests)
        collated_s = clock()
        observe("collate", collated_s - start_s)
        with torch.inference_mode():
            outputs = self._model.forward(*inputs)
        num_rows = sum(request.num_rows for request in requests)
        data = check_outputs(outputs, self._signature, num_rows)
        executed_s = clock()
        observe("execute", executed_s - collated_s)
        responses = self._split(data, requests)
        observe("respond", clock() - executed_s)
        return responses

    def _split(self, data: Sequence[bytes], requests: Sequence[CheckedRequest]) -> list[bytes]:
        """Cut the batch's outputs into the requests' own rows."""
        info = self._settings.info
        outputs = self._signature.outputs
        sizes = [4 * torch.Size(output.shape).numel() for output in outputs]
        responses = []
        start = 0
        for request in requests:
            end = start + request.num_rows
            response = wire.PredictResponse(model=info.name, version=info.version)
            for output, values, row_bytes in zip(outputs, data, sizes, strict=True):
                response.outputs.add(
                    name=output.name,
                    dims=(request.num_rows, *output.shape),
                    values=values[start * row_bytes : end * row_bytes],
                )
            responses.append(response.SerializeToString())
            start = end
        return responses


def _ignore(_stage: str, _seconds: float) -> None:
    """Warm-up batches are in no metric."""
