"""The threads that take batches from the queue, run the model and hand the answers back.

A request crosses threads twice: into the queue and back with its whole batch. Everything between, from the
collation to the serialized response, happens in the executor's thread, warmed up before the first request.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from serve.batching import BatchLimits, BatchQueue, Pending
from serve.collate import check_outputs, collate
from serve.errors import DeadlineExpiredError, DrainingError, ExecutionError
from serve.model import ModelInfo, ServedModel
from serve.model_metrics import ModelMetrics
from serve.request_check import CheckedRequest
from serve.work import Answered, BatchTimes, Rows, Work

_log = logging.getLogger("serve")
_EXPIRED = "the deadline passed while the request waited for its batch"


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """What an executor works with.

    Attributes:
        model: runs the batches.
        info: stands in the responses.
        limits: of batches and the queue.
        metrics: counts and times.
        num_threads: how many batches may run at the same time; all share the model and its tables.
        cpus: the processors that the threads may use; empty for all.
        clock: the present time in seconds, monotonic; deadlines are on it.
    """

    model: ServedModel
    info: ModelInfo
    limits: BatchLimits
    metrics: ModelMetrics
    num_threads: int = 1
    cpus: tuple[int, ...] = ()
    clock: Callable[[], float] = time.monotonic


class Executor:
    """Runs batches until it is closed. All methods may be called from any thread.

    Args:
        settings: what to work with.
        deliver: takes the answers of a whole batch, in an executor's thread; must not raise.
    """

    def __init__(self, settings: ExecutorSettings, deliver: Callable[[Answered], None]) -> None:
        self._settings = settings
        self._model = settings.model
        self._signature = settings.model.signature
        self._output_bytes = [4 * torch.Size(output.shape).numel() for output in self._signature.outputs]
        self._metrics = settings.metrics
        self._clock = settings.clock
        self._deliver = deliver
        self._queue: BatchQueue[Work] = BatchQueue(settings.limits, settings.clock)
        self._lock = threading.Lock()
        # Of the threads that take batches, and of whoever waits for them to pause.
        self._ready = threading.Condition(self._lock)
        self._paused = threading.Condition(self._lock)
        self._closed = False
        self._pausing = False
        self._num_running = 0
        self._warm = threading.Semaphore(0)
        self._warm_up: Sequence[list[CheckedRequest]] = ()
        self._warm_up_error: Exception | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"executor-{settings.info.name}-{i}", daemon=True)
            for i in range(settings.num_threads)
        ]

    def start(self, warm_up: Sequence[list[CheckedRequest]] = ()) -> None:
        """Start the threads; each runs the warm-up's batches before it takes its first one."""
        self._warm_up = warm_up
        for thread in self._threads:
            thread.start()

    def wait_until_warm(self) -> None:
        """Block until every thread has run the warm-up's batches.

        Raises:
            RuntimeError: the model failed on one of them.
        """
        for _ in self._threads:
            self._warm.acquire()
        self._warm_up = ()
        if self._warm_up_error is not None:
            raise RuntimeError(f"the model failed to warm up: {self._warm_up_error}") from self._warm_up_error

    def submit(self, pending: Pending[Work]) -> None:
        """Let a request join the queue.

        Raises:
            RequestTooLargeError: it has more rows or IDs than one request may have.
            QueueFullError: it does not fit beside what waits.
            DrainingError: the executor was closed.
        """
        with self._lock:
            if self._closed:
                raise DrainingError("the server is stopping; send the request to another one")
            expired = self._queue.put(pending)
            self._show_pending()
            self._ready.notify()
        self._metrics.accepted()
        if expired:
            self._deliver_expired(expired)

    def cancel(self, pending: Pending[Work]) -> None:
        """Drop a request that nobody waits for any more, unless its batch is running already."""
        with self._lock:
            if self._queue.cancel(pending):
                self._show_pending()

    def run_between_batches(self, function: Callable[[], None]) -> None:
        """Run ``function`` while no batch runs: every batch sees all of what it changes, or nothing.

        Requests wait meanwhile; ``function`` should be short. What it raises is raised here.
        """
        with self._lock:
            while self._pausing:
                self._paused.wait()
            self._pausing = True
            while self._num_running:
                self._paused.wait()
        try:
            function()
        finally:
            with self._lock:
                self._pausing = False
                self._paused.notify_all()
                self._ready.notify_all()

    def close(self) -> None:
        """Take no further requests, answer every one that was accepted, and end the threads; idempotent."""
        with self._lock:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            try:
                if self._settings.cpus:
                    os.sched_setaffinity(0, self._settings.cpus)  # of this thread
                for batch in self._warm_up:
                    self._compute(batch, BatchTimes(taken_s=self._clock()))
            except Exception as error:
                self._warm_up_error = error
            self._warm.release()
            while self._step():
                pass

    def _step(self) -> bool:
        """Wait for work and do one batch; False once closed and empty."""
        with self._lock:
            if not self._wait_for_batch():
                return False
            taken = self._queue.take()
            self._show_pending()
            self._num_running += 1
        try:
            if taken.expired:
                self._deliver_expired(taken.expired)
            for batch in _by_kind(taken.batch):
                self._deliver(self._answers(batch))
        finally:
            with self._lock:
                self._num_running -= 1
                if self._pausing:
                    self._paused.notify_all()
        return True

    def _wait_for_batch(self) -> bool:
        """Wait, with the lock held, until a batch may start; False once closed and empty."""
        while True:
            wait_s: float | None = None
            if not self._pausing:
                ready_at_s = self._queue.ready_at_s()
                if ready_at_s is None and self._closed:
                    return False
                if ready_at_s is not None:
                    wait_s = ready_at_s - self._clock()
                    if wait_s <= 0 or self._closed:
                        return True
            self._ready.wait(wait_s)

    def _show_pending(self) -> None:
        queue = self._queue
        self._metrics.set_pending(queue.num_rows, queue.num_ids, queue.num_bytes)

    def _deliver_expired(self, expired: Iterable[Pending[Work]]) -> None:
        self._deliver([(pending, DeadlineExpiredError(_EXPIRED)) for pending in expired])

    def _answers(self, batch: list[Pending[Work]]) -> Answered:
        """Run one batch; an error of the model is an answer too, and ends nothing but this batch."""
        times = BatchTimes(taken_s=self._clock(), num_requests=len(batch))
        times.num_rows = sum(p.num_rows for p in batch)
        for pending in batch:
            pending.payload.times = times
        self._metrics.observe_batch(len(batch), times.num_rows, sum(p.num_ids for p in batch))
        try:
            data = self._compute([p.payload.checked for p in batch], times)
        except Exception:
            self._log_failure(batch, times)
            for pending in batch:
                self._metrics.observe("queue", times.taken_s - pending.enqueued_s)
            failed = ExecutionError("the model failed on the batch that held this request; the log says why")
            return [(pending, failed) for pending in batch]
        answered = self._encoded(batch, data)
        times.responded_s = self._clock()
        self._metrics.observe_stages(
            [times.taken_s - pending.enqueued_s for pending in batch],
            times.collated_s - times.taken_s,
            times.executed_s - times.collated_s,
            times.responded_s - times.executed_s,
        )
        return answered

    def _compute(self, requests: Sequence[CheckedRequest], times: BatchTimes) -> list[bytes]:
        """Each output's bytes for the whole batch."""
        inputs = collate(requests)
        times.collated_s = self._clock()
        model = self._model
        outputs = (model.forward if requests[0].context is None else model.forward_ranking)(*inputs)
        data = check_outputs(outputs, self._signature, sum(request.num_rows for request in requests))
        times.executed_s = self._clock()
        return data

    def _encoded(self, batch: list[Pending[Work]], data: list[bytes]) -> Answered:
        """Cut the batch's outputs into the requests' own rows, and write the answers."""
        info, signature = self._settings.info, self._signature
        answered: Answered = []
        start = 0
        for pending in batch:
            end = start + pending.num_rows
            values = [
                output[start * size : end * size]
                for output, size in zip(data, self._output_bytes, strict=True)
            ]
            start = end
            try:
                answered.append(
                    (pending, pending.payload.encode(Rows(info, signature, pending.num_rows, values)))
                )
            except Exception as error:
                answered.append((pending, error))
        return answered

    def _log_failure(self, batch: list[Pending[Work]], times: BatchTimes) -> None:
        ids = ", ".join(repr(p.payload.request_id) for p in batch[:16] if p.payload.request_id)
        _log.exception(
            "a batch failed: model %s, version %s, %d requests, %d rows, %d IDs; request IDs: %s",
            self._settings.info.name,
            self._settings.info.version,
            len(batch),
            times.num_rows,
            sum(p.num_ids for p in batch),
            ids or "none given",
        )


def _by_kind(batch: list[Pending[Work]]) -> list[list[Pending[Work]]]:
    """Requests with and without a context run in graphs of their own."""
    ranking = [pending for pending in batch if pending.payload.checked.context is not None]
    if not ranking or len(ranking) == len(batch):
        return [batch] if batch else []
    return [[pending for pending in batch if pending.payload.checked.context is None], ranking]
