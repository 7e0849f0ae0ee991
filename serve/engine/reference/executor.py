"""Threads that take batches from the queue, run the model and deliver the answers.

A request crosses threads twice: into the queue, and back with its whole batch. Everything in between, from
the collation to the serialized response, runs in the executor's thread, which is warmed up before the first
request.

FBGEMM's ops put a batch together: a Python loop over features and requests takes 20 to 60 times as long. These
ops validate nothing (with wrong lengths they write out of bounds, with a batch without rows they divide by
zero), so only requests checked by ``serve.engine.reference.request_check`` may come here.

Shape letters: B rows of a batch, F sparse inputs, N number of IDs of a batch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys.errors import ChecksumError, ComputedIdError
from recsys.inputs.signature import Output, Signature
from recsys.ops import fbgemm
from serve.config.models import ModelSettings
from serve.engine.interface import ModelInfo
from serve.engine.records import BatchTimes
from serve.engine.reference.batching import BatchQueue
from serve.engine.reference.request_check import CheckedRequest
from serve.engine.reference.sparse_arrays import SparseArrays
from serve.errors import DeadlineExpiredError, DrainingError, ExecutionError, QueueFullError, RequestError
from serve.metrics.counters import ModelCounters

if TYPE_CHECKING:
    from serve.engine.reference.gateway import Request

_log = logging.getLogger("serve")
_EXPIRED = "the deadline passed while the request waited for its batch"

Answer = bytes | Exception
AnsweredBatch: TypeAlias = "list[tuple[Request, Answer]]"


class ServedModel(Protocol):
    """A model to serve, such as a loaded artifact.

    ``forward`` and ``forward_ranking`` are called from the executors' threads, concurrently if there are
    several executors. They take and return CPU tensors, on whatever device they compute.
    """

    @property
    def signature(self) -> Signature:
        """The signature of ``forward``."""
        ...

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Score one batch; ``recsys.inputs.signature`` has the arguments."""
        ...

    def forward_ranking(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Score one batch of ranking requests; called only if the signature has a context."""
        ...


class Executor:
    """Runs batches until it is closed. All methods may be called from any thread.

    Args:
        model: runs the batches; all threads share it and its tables.
        info: its identity.
        settings: limits of batches and the queue, the largest number of threads, and their processors.
        counters: receives counts and times.
        deliver: takes the answers of a whole batch, in an executor's thread; must not raise.
        clock: returns the present time in seconds, monotonic; deadlines are on this clock.
    """

    def __init__(
        self,
        model: ServedModel,
        info: ModelInfo,
        settings: ModelSettings,
        counters: ModelCounters,
        deliver: Callable[[AnsweredBatch], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info, self._cpus = info, settings.cpus
        # None once closed, so that its memory is freed even if this object is still referenced.
        self._model: ServedModel | None = model
        self._signature = model.signature
        self._output_bytes = [output.num_bytes(1) for output in self._signature.outputs]
        self._counters = counters
        self._clock = clock
        self._deliver = deliver
        by_request = self._signature.by_request
        self._queue: BatchQueue[Request] = BatchQueue(settings.limits, clock, by_request=by_request)
        self._lock = threading.Lock()
        # Notified for the threads that take batches, and for callers that wait until no batch runs.
        self._ready = threading.Condition(self._lock)
        self._paused = threading.Condition(self._lock)
        self._closed = False
        self._pausing = False
        self._num_running = 0
        self._num_waiting = 0
        self._warm = threading.Semaphore(0)
        self._warm_up: Sequence[list[CheckedRequest]] = ()
        self._warm_up_error: Exception | None = None
        self._max_threads = settings.max_executors
        self._threads: list[threading.Thread] = []

    def start(self, warm_up: Sequence[list[CheckedRequest]] = ()) -> None:
        """Start the first thread, which runs the warm-up batches before it takes its first one."""
        self._warm_up = warm_up
        with self._lock:
            self._start_thread(is_first=True)

    def _start_thread(self, *, is_first: bool = False) -> None:
        name = f"executor-{self._info.name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, args=(is_first,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_until_warm(self) -> None:
        """Block until the first thread has run the warm-up batches.

        Raises:
            RuntimeError: the model failed on a warm-up batch.
        """
        self._warm.acquire()
        self._warm_up = ()
        if self._warm_up_error is not None:
            raise RuntimeError(f"the model failed to warm up: {self._warm_up_error}") from self._warm_up_error

    def submit(self, pending: Request) -> None:
        """Add a request to the queue.

        Raises:
            QueueFullError: the queue has no room for it.
            DrainingError: the executor was closed.
        """
        with self._lock:
            if self._closed:
                raise DrainingError("the server is stopping; send the request to another one")
            expired = self._queue.put(pending)
            pushed_out = self._queue.pushed_out()
            self._show_pending()
            self._wake()
        self._counters.accepted()
        if expired:
            self._deliver_expired(expired)
        if pushed_out is not None:
            text, retry_after_ms = pushed_out.text, pushed_out.retry_after_ms
            self._deliver(
                [(request, QueueFullError(text, retry_after_ms)) for request in pushed_out.requests]
            )

    def cancel(self, pending: Request) -> None:
        """Remove a cancelled request, unless its batch is running already."""
        with self._lock:
            if self._queue.cancel(pending):
                self._show_pending()

    def run_between_batches(self, function: Callable[[], None]) -> None:
        """Run ``function`` while no batch runs: a batch sees all of its changes or none.

        Requests wait while it runs, so ``function`` should be short. Its exceptions propagate.
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
        """Refuse requests, answer every accepted one, end the threads, release the model; idempotent."""
        with self._lock:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()
        self._model = None

    def _wake(self) -> None:
        """Let a waiting thread look at the queue, or start one. The caller holds the lock."""
        if self._num_waiting:
            self._ready.notify()
        elif len(self._threads) < self._max_threads and not self._closed:
            self._start_thread()

    def _run(self, is_first: bool) -> None:
        with torch.inference_mode():
            try:
                # A thread adopts the number of intra-op threads when it first reads it.
                torch.get_num_threads()
                if self._cpus:
                    os.sched_setaffinity(0, self._cpus)  # 0 means this thread
                if is_first:
                    self._run_warm_up()
            except Exception as error:
                self._warm_up_error = error
            if is_first:
                self._warm.release()
            while self._step():
                pass

    def _run_warm_up(self) -> None:
        for batch in self._warm_up:
            # The model may compute other IDs from made ones than from real ones.
            with contextlib.suppress(ComputedIdError):
                self._compute(batch, BatchTimes(taken_s=self._clock()))

    def _step(self) -> bool:
        """Wait for a batch and run it; return False once closed and empty."""
        with self._lock:
            if not self._wait_for_batch():
                return False
            taken = self._queue.take()
            self._num_running += 1
            self._show_pending()
            if self._queue.num_requests:
                self._wake()
        try:
            if taken.expired:
                self._deliver_expired(taken.expired)
            for batch in _by_kind(taken.batch):
                self._deliver(self._answers(batch))
        finally:
            with self._lock:
                self._num_running -= 1
                self._paused.notify_all()
        return True

    def _wait_for_batch(self) -> bool:
        """Wait, with the lock held, until a batch may start; return False once closed and empty."""
        while True:
            ready_at_s = None if self._pausing else self._queue.ready_at_s()
            wait_s = None if ready_at_s is None else ready_at_s - self._clock()
            if wait_s is not None and (wait_s <= 0 or self._closed):
                return True
            if self._closed and not self._pausing:
                return False
            self._num_waiting += 1
            self._ready.wait(wait_s)
            self._num_waiting -= 1

    def _show_pending(self) -> None:
        queue = self._queue
        self._counters.set_pending(queue.num_rows, queue.num_ids, queue.num_bytes)

    def _deliver_expired(self, expired: Iterable[Request]) -> None:
        self._deliver([(pending, DeadlineExpiredError(_EXPIRED)) for pending in expired])

    def _answers(self, batch: list[Request]) -> AnsweredBatch:
        """Run one batch, which is counted once. An error of the model affects only the requests that are to blame."""
        self._counters.observe_batch(
            len(batch), sum(p.num_rows for p in batch), sum(p.num_ids for p in batch)
        )
        failed: list[tuple[Request, Exception]] = []
        answered = self._run_part(batch, failed)
        if failed:
            self._log_failures(failed)
        return answered

    def _run_part(self, batch: list[Request], failed: list[tuple[Request, Exception]]) -> AnsweredBatch:
        """Run a batch, or a part of one that failed.

        If the model fails, the part runs again in halves, until what it fails on is one request. So a batch of N
        requests takes at most 2 N - 1 runs, and each request is in at most 1 + log2(N) of them, rounded up. None runs
        again behind its deadline.

        Args:
            batch: The requests.
            failed: Gets the requests on which the model failed, and why, for the log.
        """
        times = BatchTimes(taken_s=self._clock(), num_requests=len(batch))
        times.num_rows = sum(p.num_rows for p in batch)
        for pending in batch:
            pending.times = times
        try:
            data = self._compute([_checked(p) for p in batch], times)
        except Exception as error:
            # Rows that were changed on the disk are no request's fault.
            if len(batch) > 1 and not isinstance(error, ChecksumError):
                return self._halves(batch, failed)
            if isinstance(error, ComputedIdError):
                return [(batch[0], RequestError(str(error)))]
            failed += [(pending, error) for pending in batch]
            for pending in batch:
                self._counters.observe("queue", times.taken_s - pending.enqueued_s)
            answer = ExecutionError("the model failed on this request; the log says why")
            return [(pending, answer) for pending in batch]
        answered = self._encoded(batch, data)
        times.responded_s = self._clock()
        self._counters.observe_stages(
            [times.taken_s - pending.enqueued_s for pending in batch],
            times.collated_s - times.taken_s,
            times.executed_s - times.collated_s,
            times.responded_s - times.executed_s,
        )
        return answered

    def _halves(self, batch: list[Request], failed: list[tuple[Request, Exception]]) -> AnsweredBatch:
        """Run a part again in halves, without the requests that have no use for an answer any more."""
        half = len(batch) // 2
        answered: AnsweredBatch = []
        for part in (batch[:half], batch[half:]):
            now_s = self._clock()
            left = [p for p in part if p.deadline_s is None or p.deadline_s > now_s]
            answered += [(p, DeadlineExpiredError(_EXPIRED)) for p in part if p not in left]
            answered += self._run_part(left, failed) if left else []
        return answered

    def _compute(self, requests: Sequence[CheckedRequest], times: BatchTimes) -> list[bytes]:
        """Return each output's bytes for the whole batch."""
        inputs = collate(requests)
        times.collated_s = self._clock()
        model = self._model
        assert model is not None
        outputs = (model.forward if requests[0].context is None else model.forward_ranking)(*inputs)
        data = check_outputs(outputs, self._signature, sum(request.num_rows for request in requests))
        times.executed_s = self._clock()
        return data

    def _encoded(self, batch: list[Request], data: list[bytes]) -> AnsweredBatch:
        """Split the batch's outputs by request and encode the answers."""
        answered: AnsweredBatch = []
        start = 0
        for request in batch:
            end = start + request.num_rows
            # Slices of bytes are copies, so a pending answer keeps no batch in memory.
            values = (
                data  # its only request's, of any shapes
                if self._signature.by_request
                else [
                    output[start * size : end * size]
                    for output, size in zip(data, self._output_bytes, strict=True)
                ]
            )
            start = end
            try:
                answered.append((request, request.encode(values)))
                if request.keeps_answer:
                    request.outputs = values
            except Exception as error:
                answered.append((request, error))
                continue
            if request.shadow is not None:
                request.shadow.answered(values)
        return answered

    def _log_failures(self, failed: Sequence[tuple[Request, Exception]]) -> None:
        """Log once for a batch on which requests the model failed, and why it failed on the first."""
        requests = [pending for pending, _ in failed]
        ids = ", ".join(repr(p.request_id) for p in requests[:16] if p.request_id)
        _log.error(
            "a batch failed: model %s, version %s, %d requests, %d rows, %d IDs; request IDs: %s",
            self._info.name,
            self._info.version,
            len(requests),
            sum(p.num_rows for p in requests),
            sum(p.num_ids for p in requests),
            ids or "none given",
            exc_info=failed[0][1],
        )


def _by_kind(batch: list[Request]) -> list[list[Request]]:
    """Split a batch: requests with and without a context run in different graphs."""
    ranking = [pending for pending in batch if _checked(pending).context is not None]
    if not ranking or len(ranking) == len(batch):
        return [batch] if batch else []
    return [[pending for pending in batch if _checked(pending).context is None], ranking]


def _checked(request: Request) -> CheckedRequest:
    assert request.checked is not None
    return request.checked


def collate(requests: Sequence[CheckedRequest]) -> tuple[Tensor, ...]:
    """Collate checked requests, in order.

    Args:
        requests: at least one, all checked against the same signature, all with a context or all without; one if
            the signature says ``by_request``.

    Returns:
        The arguments of the model's ``forward`` (``recsys.inputs.signature``), or, if the requests have contexts, of
        its ``forward_ranking`` (``recsys.artifact.batches.ranking``); on the CPU.
    """
    dense = [_rows([r.dense[i] for r in requests]) for i in range(len(requests[0].dense))]
    num_rows = [r.num_rows for r in requests]
    sparse = _sparse([r.sparse for r in requests], num_rows)
    contexts = [r.context for r in requests if r.context is not None]
    if not contexts:
        return (*dense, *sparse)
    assert len(contexts) == len(requests)
    row_context = np.repeat(np.arange(len(requests), dtype=np.int64), num_rows)
    return (*dense, *_sparse(contexts, [1] * len(contexts)), *sparse, torch.from_numpy(row_context))


def _rows(arrays: Sequence[npt.NDArray[np.float32]]) -> Tensor:
    """Concatenate into new memory: a request's arrays are read-only views of the message's bytes."""
    return torch.from_numpy(arrays[0].copy() if len(arrays) == 1 else np.concatenate(arrays))


def _sparse(parts: Sequence[SparseArrays], num_bags: list[int]) -> tuple[Tensor, ...]:
    """Return lengths, values and, if there are any, weights of all requests, key-major.

    Args:
        parts: one per request, each key-major, with ``num_bags`` bags per input.
        num_bags: bags per input of each request.
    """
    if len(parts) == 1:
        lengths, values = torch.from_numpy(parts[0].lengths), torch.from_numpy(parts[0].values)
        weights = None if parts[0].weights is None else torch.from_numpy(parts[0].weights)
    else:
        lengths = torch.from_numpy(np.concatenate([p.lengths for p in parts]))
        values = torch.from_numpy(np.concatenate([p.values for p in parts]))
        weights = None
        if parts[0].weights is not None:
            weights = torch.from_numpy(np.concatenate([p.weights for p in parts if p.weights is not None]))
        if lengths.numel() > 0:
            lengths, values, weights = _key_major(lengths, values, weights, num_bags)
    return (lengths, values) if weights is None else (lengths, values, weights)


def _key_major(
    lengths: Tensor, values: Tensor, weights: Tensor | None, num_bags: list[int]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Reorder from request-major (each request key-major) to key-major. There must be at least one bag."""
    row_offsets = np.zeros(len(num_bags) + 1, np.int32)
    np.cumsum(num_bags, out=row_offsets[1:])
    batch_offsets = torch.from_numpy(row_offsets)
    total_rows = int(row_offsets[-1])
    batch_lengths = fbgemm.reorder_batched_ad_lengths(lengths, batch_offsets, total_rows, False)
    offsets = fbgemm.asynchronous_complete_cumsum(lengths)
    batch_offsets_of_ids = fbgemm.asynchronous_complete_cumsum(batch_lengths)

    def reorder(per_id: Tensor) -> Tensor:
        reordered: Tensor = fbgemm.reorder_batched_ad_indices(
            offsets, per_id, batch_offsets_of_ids, batch_offsets, total_rows, False, -1
        )
        return reordered

    return batch_lengths, reorder(values), None if weights is None else reorder(weights)


def check_outputs(outputs: dict[str, Tensor], signature: Signature, num_rows: int) -> list[bytes]:
    """Return the batch's outputs as little-endian bytes, in the signature's order.

    Args:
        outputs: what ``forward`` returned.
        signature: names and shapes of the outputs.
        num_rows: B.

    Raises:
        RuntimeError: the model's outputs do not match its signature.
    """
    return [_output_bytes(outputs, output, num_rows) for output in signature.outputs]


def _output_bytes(outputs: dict[str, Tensor], output: Output, num_rows: int) -> bytes:
    tensor = outputs.get(output.name)
    expected = output.dims(num_rows)
    dtype = torch.int64 if output.is_integer else torch.float32
    if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != expected:
        got = "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
        raise RuntimeError(f"output {output.name!r}: got {got}, expected {output.dtype} {expected}")
    return tensor.detach().numpy().astype("<i8" if output.is_integer else "<f4", copy=False).tobytes()
