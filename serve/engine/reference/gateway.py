"""Requests, and the common path of those of every protocol: route, check, queue, answer, count.

One ``Request`` object passes all stages: the port makes it, the gateway routes and checks it, the queue holds it, an
executor computes it and lets it encode its answer. Each protocol has a subclass for its messages.

The gateway belongs to the event loop, except ``deliver``, which is called from executors' threads.

Shape letters: B rows of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import grpc

from recsys.base.hashing import hash_text
from serve.config.models import Priority
from serve.engine.records import (
    TRACE_PARENT,
    BatchTimes,
    Captured,
    EndedRequest,
    Observer,
    ShadowPair,
    draw_of,
)
from serve.engine.reference.answers import AnswerCollector, Answered
from serve.engine.reference.batching import Pending
from serve.engine.reference.executor import Answer, AnsweredBatch
from serve.engine.reference.raw_request import RawRequestLike, serialized
from serve.engine.reference.request_check import CheckedRequest
from serve.engine.reference.servable import ReferenceServable
from serve.engine.routes import Route, Routes, RouteTable
from serve.errors import (
    DrainingError,
    ExecutionError,
    QueueFullError,
    RequestError,
    kind_of,
    status_of,
)
from serve.metrics.counters import OUTCOMES
from serve.protocols.calls import check_size

_log = logging.getLogger("serve")
# A client may hang up at its deadline slightly before the deadline passes on our clock.
_CLOCKS_APART_S = 0.02


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Pending):
    """One request, from its arrival to its answer.

    Attributes:
        PROTOCOL: the protocol's name in logs and traces.
        protocol: the same, unless the request came through another port.
        model: empty for the only model.
        version: empty to let the routing choose.
        drew_version: whether the routing chose ``version`` before.
        key: what decides between a canary and the version that serves; None if it is not known.
        request_id: the client's own name for it.
        remaining_s: seconds until the client's deadline, on arrival; None for none.
        trace_parent: the W3C ``traceparent`` header; empty if the client sent none.
        started_s: when it arrived, in seconds of ``time.monotonic``.
        servable: the servable that answers it; set by the routing.
        checked: its inputs, once checked.
        times: times of its batch, once taken.
        answer: the future that the port awaits; set on the event loop.
        shadow: the same request for the shadow version; None for none.
        answered_draw: see ``RequestColumns.draws``.
        keeps_answer: whether its answer leaves a record.
        message_kept: its inputs, serialized, where the record has them; None for most.
        outputs: values of each output, for that record.
    """

    PROTOCOL: ClassVar[str] = ""

    protocol: str = ""
    model: str = ""
    version: str = ""
    drew_version: bool = False
    key: int | None = None
    request_id: str = ""
    remaining_s: float | None = None
    trace_parent: str = ""
    started_s: float = field(default_factory=time.monotonic)
    servable: ReferenceServable | None = None
    checked: CheckedRequest | None = None
    times: BatchTimes | None = None
    answer: asyncio.Future[Answer] | None = None
    shadow: ShadowRequest | None = None
    answered_draw: float = 0.0
    keeps_answer: bool = False
    message_kept: bytes | None = None
    outputs: Sequence[bytes] = ()

    def read(self, servable: ReferenceServable) -> RawRequestLike:
        """Return the inputs under the servable's names.

        Raises:
            RequestError: the message does not fit this model.
        """
        raise NotImplementedError

    def encode(self, values: Sequence[bytes]) -> bytes:
        """Encode the answer, in an executor's thread. An exception becomes the answer.

        Args:
            values: the request's values of each output of the signature: little-endian float32 or int64,
                ``[B, *shape]``.
        """
        raise NotImplementedError

    def expect_within(self, remaining_s: float | None) -> None:
        """Apply the call's deadline in addition to the message's: the earlier counts. None for none."""
        if self.remaining_s is None or (remaining_s is not None and remaining_s < self.remaining_s):
            self.remaining_s = remaining_s

    def join(self, servable: ReferenceServable, checked: CheckedRequest) -> None:
        """Set the servable and the checked inputs, whose sizes the queue counts.

        Raises:
            RequestTooLargeError: it has more bytes than the queue may hold.
        """
        self.servable, self.checked = servable, checked
        self.num_rows, self.num_ids = checked.num_rows, checked.num_ids
        self.num_bytes = max(self.num_bytes, checked.spread_bytes)
        check_size(servable.settings.limits, 0, 0, self.num_bytes)

    def settle(self, answer: Answer) -> None:
        """Pass the answer to the port; called on the event loop."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(answer)


@dataclass(eq=False, slots=True, kw_only=True)
class ShadowRequest(Request):
    """The same request for the version in the shadow.

    Both versions' outputs are reported as one pair. The shadow's metrics count ``failed`` if it refused the
    request (it does not fit its signature) or failed on it, and ``dropped`` if its queue was full. If the
    answering version failed, nothing is compared or counted.

    Attributes:
        observer: receives the pair.
        primary: the version that answers.
    """

    observer: Observer
    primary: ReferenceServable
    _expected: Sequence[bytes] | None = None
    _got: Sequence[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def encode(self, values: Sequence[bytes]) -> bytes:
        """Keep the shadow's outputs; no answer is sent."""
        with self._lock:
            self._got = values
            is_whole = self._expected is not None
        if is_whole:
            self._leave()
        return b""

    def answered(self, values: Sequence[bytes]) -> None:
        """Keep the outputs of the answering version."""
        with self._lock:
            self._expected = values
            is_whole = self._got is not None
        if is_whole:
            self._leave()

    def settle(self, answer: Answer) -> None:
        """Count a failure."""
        assert self.servable is not None
        if isinstance(answer, QueueFullError):
            self.servable.counters.shadow("dropped")
        elif isinstance(answer, Exception):
            self.servable.counters.shadow("failed")

    def _leave(self) -> None:
        assert self.servable is not None
        assert self._expected is not None
        assert self._got is not None
        pair = ShadowPair(
            model=self.servable.info.name,
            version=self.primary.info.version,
            shadow=self.servable.info.version,
            request_id=self.request_id,
            num_rows=self.num_rows,
            expected=self._expected,
            got=self._got,
            expected_outputs=self.primary.signature.outputs,
            got_outputs=self.servable.signature.outputs,
        )
        self.observer.shadowed(pair)


class Gateway:
    """Answers requests.

    Args:
        observer: takes records of requests.

    Attributes:
        num_active: number of requests in progress.
        is_draining: whether requests are refused because the server is stopping.
        answers: collects records of answers.
    """

    def __init__(self, observer: Observer) -> None:
        self.num_active = 0
        self.is_draining = False
        self._observer = observer
        self._routes = Routes()
        # By model: versions whose checks give the same result for every request as the shadow's.
        self._like_shadow: dict[str, frozenset[str]] = {}
        self._unrouted = dict.fromkeys(OUTCOMES, 0)
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draw = random.Random().random
        self.answers = AnswerCollector(observer.answered)

    def publish(self, table: RouteTable) -> None:
        """Replace a model's route table."""
        self._like_shadow[table.model] = _like_shadow(table)
        self._routes.publish(table)

    def withdraw(self, model: str) -> None:
        """Remove a model's route table."""
        self._like_shadow.pop(model, None)
        self._routes.withdraw(model)

    @property
    def reads_headers(self) -> bool:
        """Whether traces or the routing of a model need headers."""
        return bool(self._routes.key_headers) or self._observer.sampling.trace_share is not None

    def read_headers(self, request: Request, headers: Mapping[str, str]) -> None:
        """Take from the headers what traces and the routing need."""
        if self._observer.sampling.trace_share is not None:
            request.trace_parent = headers.get(TRACE_PARENT, "")
        key = headers.get(self._routes.key_header(request.model), "")
        request.key = hash_text(key) if key else None

    async def predict(self, request: Request) -> bytes:
        """Answer one request.

        Raises:
            Exception: any error that ``serve.errors.status_of`` maps to a status.
            asyncio.CancelledError: the client cancelled; the request leaves the queue.
        """
        self.num_active += 1
        self._idle.clear()
        try:
            return await self._predict(request)
        finally:
            if request.servable is not None:
                request.servable.counters.end_request()
            self.num_active -= 1
            if self.num_active == 0:
                self._idle.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is in progress."""
        await self._idle.wait()

    def unrouted(self) -> dict[str, int]:
        """Return the number of requests that named no known model or could not be parsed, by outcome."""
        return dict(self._unrouted)

    def deliver(self, answered: AnsweredBatch) -> None:
        """Take a batch's answers in an executor's thread and pass them to the event loop in one call."""
        # The loop is closed only after the drain time has passed; no caller waits for the answers then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, answered)

    def refused(self, error: Exception, protocol: str) -> None:
        """Count a request that could not be parsed."""
        self._refused(Request(protocol=protocol), error)

    async def _predict(self, request: Request) -> bytes:
        try:
            answer = await self._accept(request)  # waits for the batch
            if isinstance(answer, Exception):
                raise answer
        except asyncio.CancelledError:
            self._gave_up(request)
            raise
        except Exception as error:
            self._refused(request, error)
            raise
        assert request.servable is not None
        request.servable.counters.answered(time.monotonic() - request.started_s)
        self._ended(request, "ok", grpc.StatusCode.OK, "")
        self._record_answer(request)
        return answer

    def _accept(self, request: Request) -> asyncio.Future[Answer]:
        """Add a request to its model's queue. Nothing awaits, so the routed version stays loaded."""
        if self.is_draining:
            raise DrainingError("the server is stopping; send the request to another one")
        draw = self._draw()
        route = self._route(request, draw)
        servable = cast(ReferenceServable, route.primary)
        raw, checked = _examine(request, servable)
        if route.key_feature:
            request.key = servable.checker.first_id(checked, route.key_feature)
            route = self._route(request, draw)
            if route.primary is not servable:
                servable = cast(ReferenceServable, route.primary)
                raw, checked = _examine(request, servable)
        request.join(servable, checked)
        if request.remaining_s is not None:
            request.deadline_s = request.started_s + request.remaining_s
        request.answer = self._loop.create_future()
        if route.shadow is not None:
            request.shadow = ShadowRequest(
                servable=cast(ReferenceServable, route.shadow),
                request_id=request.request_id,
                num_bytes=request.num_bytes,
                priority=Priority.LOW,
                observer=self._observer,
                primary=servable,
                # A model may write to the sparse inputs of its batch, and a batch of one request uses these
                # arrays. The shadow's own check takes a hundred times as long as the copy, and both run in
                # the event loop.
                checked=checked.copy() if self._is_like_shadow(servable) else None,
            )
        self._keep_message(request, raw)
        servable.executor.submit(request)
        if request.shadow is not None:
            _submit_shadow(request.shadow, raw)
        self._capture(request, raw)
        return request.answer

    def _route(self, request: Request, draw: float) -> Route:
        return self._routes.route(
            request.model, request.version, draw, drew_version=request.drew_version, key=request.key
        )

    def _is_like_shadow(self, servable: ReferenceServable) -> bool:
        return servable.info.version in self._like_shadow.get(servable.info.name, ())

    def _capture(self, request: Request, raw: RawRequestLike) -> None:
        share = self._observer.sampling.capture_share
        if share and self._draw() < share:
            assert request.servable is not None
            info = request.servable.info
            self._observer.captured(
                Captured(
                    time_s=request.started_s,
                    model=info.name,
                    version=info.version,
                    message=serialized(raw),
                )
            )

    def _keep_message(self, request: Request, raw: RawRequestLike) -> None:
        """Serialize the inputs of a request whose answer is to be recorded, before a model may write to them."""
        sampling = self._observer.sampling
        if not sampling.answered_share and not sampling.inputs_share:
            return
        request.answered_draw = draw_of(request.request_id) if request.request_id else self._draw()
        if request.answered_draw < sampling.inputs_share:
            request.message_kept = serialized(raw)
        request.keeps_answer = request.message_kept is not None or (
            bool(request.request_id) and request.answered_draw < sampling.answered_share
        )

    def _record_answer(self, request: Request) -> None:
        if not request.keeps_answer:
            return
        assert request.servable is not None
        info = request.servable.info
        record = Answered(
            time_s=time.time(),
            protocol=request.protocol,
            model=info.name,
            version=info.version,
            request_id=request.request_id,
            num_rows=request.num_rows,
            draw=request.answered_draw,
            message=request.message_kept,
            outputs=request.outputs,
            signature=request.servable.signature,
        )
        self.answers.add(record)

    def _gave_up(self, request: Request) -> None:
        assert request.servable is not None
        request.servable.executor.cancel(request)
        deadline_s = request.deadline_s
        if deadline_s is not None and deadline_s <= time.monotonic() + _CLOCKS_APART_S:
            self._count(request, "expired", grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
        else:
            self._count(request, "cancelled", grpc.StatusCode.CANCELLED, "the client gave up")

    def _refused(self, request: Request, error: Exception) -> None:
        code, text = status_of(error)
        if code is grpc.StatusCode.INTERNAL and not isinstance(error, ExecutionError):
            _log.error("a request failed outside the model", exc_info=error)
        self._count(request, kind_of(error).outcome, code, text)

    def _count(self, request: Request, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """Count a request that ended with an error."""
        if request.servable is None:
            self._unrouted[outcome] += 1
        else:
            request.servable.counters.count(outcome)
        self._ended(request, outcome, code, reason)

    def _ended(self, request: Request, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """Report the request's record if it is to be logged or traced."""
        sampling = self._observer.sampling
        is_logged = sampling.is_logged(outcome)
        is_traced = sampling.is_traced(request.trace_parent, self._draw())
        if not is_logged and not is_traced:
            return
        info = None if request.servable is None else request.servable.info
        self._observer.ended(
            EndedRequest(
                trace_parent=request.trace_parent,
                protocol=request.protocol,
                model=request.model if info is None else info.name,
                version=request.version if info is None else info.version,
                request_id=request.request_id,
                outcome=outcome,
                code=code.name,
                reason=reason,
                num_rows=request.num_rows,
                num_ids=request.num_ids,
                started_s=request.started_s,
                ended_s=time.monotonic(),
                enqueued_s=request.enqueued_s or None,
                times=request.times,
                is_logged=is_logged,
                is_traced=is_traced,
            )
        )


def _examine(request: Request, servable: ReferenceServable) -> tuple[RawRequestLike, CheckedRequest]:
    """Read and check a request for a version, which stays open for it in place of an earlier one."""
    if request.servable is not None:
        request.servable.counters.end_request()
    request.servable = servable
    servable.counters.begin_request()
    raw = request.read(servable)
    return raw, servable.checker.check(raw)


def _submit_shadow(shadow: ShadowRequest, raw: RawRequestLike) -> None:
    """Add a request to the shadow's queue; never raises."""
    servable = shadow.servable
    assert servable is not None
    try:
        checked: CheckedRequest = shadow.checked or servable.checker.check(raw)
        shadow.join(servable, checked)
        servable.executor.submit(shadow)
    except (QueueFullError, DrainingError):
        servable.counters.shadow("dropped")
    except RequestError:
        servable.counters.shadow("failed")


def _like_shadow(table: RouteTable) -> frozenset[str]:
    shadow = table.servables.get(table.plan.shadow)
    if shadow is None:
        return frozenset()
    checker = cast(ReferenceServable, shadow).checker
    return frozenset(
        version
        for version, servable in table.servables.items()
        if cast(ReferenceServable, servable).checker.is_like(checker)
    )


def _settle(answered: AnsweredBatch) -> None:
    for request, answer in answered:
        request.settle(answer)
