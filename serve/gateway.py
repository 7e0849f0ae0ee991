"""The one road that requests of every protocol take: route, check, queue, answer, count.

Belongs to the event loop; only ``deliver`` is called from executors' threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from serve.batching import Pending, Priority
from serve.errors import OUTCOME_OF, DrainingError, ExecutionError, RequestError, status_of
from serve.hosted import HostedModel
from serve.manager import ModelManager, Route
from serve.metrics import Metrics
from serve.raw import RawRequestLike
from serve.work import Answer, Answered, Rows, Work

_log = logging.getLogger("serve")
# A client whose deadline has passed may hang up a moment before our clock says so.
_CLOCKS_APART_S = 0.02
# Longer request IDs would only serve to fill the log.
MAX_REQUEST_ID_BYTES = 128


def checked_request_id(text: str, field: str = "request_id") -> str:
    """A client's name for its request, if it may stand in the log.

    Args:
        text: the name.
        field: where the protocol has it.

    Raises:
        RequestError: it is too long, or no text.
    """
    try:
        num_bytes = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:  # JSON can escape what UTF-8 cannot say
        raise RequestError(f"{field}: got half a surrogate pair, expected text in UTF-8") from None
    if num_bytes > MAX_REQUEST_ID_BYTES:
        raise RequestError(f"{field}: got {num_bytes} bytes, expected at most {MAX_REQUEST_ID_BYTES}")
    return text


@dataclass(slots=True, kw_only=True)
class Incoming:
    """A request on its way in.

    Attributes:
        read: the request's inputs, by name; may look at the model, and raises a RequestError.
        encode: writes the answer in the protocol's own form, in an executor's thread.
        model: empty for the only model.
        version: empty for the version that the routing chooses.
        request_id: the client's own name for it.
        priority: of its waiting.
        remaining_s: until the client's deadline; None for none.
        num_bytes: of the serialized request.
        protocol: ``recsys``, ``kserve``, ``torchrec`` or ``rest``; for the log and for traces.
        trace_parent: the W3C ``traceparent`` header; empty where the client sent none.
    """

    read: Callable[[HostedModel], RawRequestLike]
    encode: Callable[[HostedModel, Rows], bytes]
    model: str = ""
    version: str = ""
    request_id: str = ""
    priority: Priority = Priority.NORMAL
    remaining_s: float | None = None
    num_bytes: int = 0
    protocol: str = "recsys"
    trace_parent: str = ""


@dataclass(slots=True, kw_only=True)
class Call:
    """A request that is being answered.

    Attributes:
        incoming: the request.
        started_s: when it came, on the clock of ``time.monotonic``.
        hosted: who answers; None until it is known.
        pending: its place in the queue; None until it has one.
    """

    incoming: Incoming
    started_s: float
    hosted: HostedModel | None = None
    pending: Pending[Work] | None = None


class Watcher(Protocol):
    """Sees requests come and go: logs, traces, captures. Must be quick and must not raise."""

    def accepted(self, raw: RawRequestLike, hosted: HostedModel) -> None:
        """A request was checked and is to be computed."""
        ...

    def ended(self, call: Call, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """A request was answered, refused or given up.

        Args:
            call: the request.
            outcome: one of ``serve.model_metrics.OUTCOMES``.
            code: the status.
            reason: what the client was told.
        """
        ...


class Gateway:
    """Answers requests.

    Args:
        manager: knows which model answers.
        metrics: counts.
        watchers: see requests come and go.
        reads_trace: whether one of them wants the ``traceparent`` that a request carries.
    """

    def __init__(
        self,
        manager: ModelManager,
        metrics: Metrics,
        watchers: tuple[Watcher, ...] = (),
        *,
        reads_trace: bool = False,
    ) -> None:
        self.manager = manager
        self.metrics = metrics
        self.reads_trace = reads_trace
        self.num_active = 0
        self.is_draining = False
        self._watchers = watchers
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draw = random.Random().random

    def hosted(self, model: str = "", version: str = "") -> HostedModel:
        """The version that answers such a request, drawn by the canary's share where it names none.

        Raises:
            ModelNotFoundError: there is no such model or version.
            NotReadyError: none of the model's versions is ready.
        """
        return self._route(model, version).primary

    def _route(self, model: str, version: str) -> Route:
        return self.manager.route(model, version, self._draw())

    async def predict(self, incoming: Incoming) -> bytes:
        """Answer one request.

        Raises:
            Exception: what ``serve.errors.status_of`` has a status for.
            asyncio.CancelledError: the client gave up; its request leaves the queue.
        """
        self.num_active += 1
        self._idle.clear()
        try:
            return await self._predict(incoming)
        finally:
            self.num_active -= 1
            if self.num_active == 0:
                self._idle.set()

    def drain(self) -> None:
        """Refuse requests from now on, those of open streams too; what was accepted is answered."""
        self.is_draining = True

    async def wait_until_idle(self) -> None:
        """Until no request is being answered."""
        await self._idle.wait()

    async def _predict(self, incoming: Incoming) -> bytes:
        call = Call(incoming=incoming, started_s=time.monotonic())
        try:
            result = await self._accept(call)  # the wait for the batch
            if isinstance(result, Exception):
                raise result
        except asyncio.CancelledError:
            self._gave_up(call)
            raise
        except Exception as error:
            self._refused(call, error)
            raise
        assert call.hosted is not None
        call.hosted.metrics.answered(time.monotonic() - call.started_s)
        for watcher in self._watchers:
            watcher.ended(call, "ok", grpc.StatusCode.OK, "")
        return result

    def _accept(self, call: Call) -> asyncio.Future[Answer]:
        """Let a request join its model's queue. Nothing here awaits: a model that was routed to is still there."""
        incoming = call.incoming
        if self.is_draining:
            raise DrainingError("the server is stopping; send the request to another one")
        route = self._route(incoming.model, incoming.version)
        hosted = call.hosted = route.primary
        raw = incoming.read(hosted)
        checked = hosted.checker.check(raw)
        encode: Callable[[Rows], bytes] = functools.partial(incoming.encode, hosted)
        twin = None if route.shadow is None else route.shadow.twin(hosted.version, checked, encode)
        answer: asyncio.Future[Answer] = self._loop.create_future()
        remaining_s = incoming.remaining_s
        call.pending = Pending(
            payload=Work(
                checked=checked,
                encode=encode if twin is None else twin.encode,
                answer=functools.partial(_settle, answer),
                request_id=incoming.request_id,
            ),
            num_rows=checked.num_rows,
            num_ids=checked.num_ids,
            num_bytes=max(incoming.num_bytes, checked.spread_bytes),
            priority=incoming.priority,
            deadline_s=None if remaining_s is None else call.started_s + remaining_s,
        )
        hosted.executor.submit(call.pending)
        if twin is not None:
            twin.submit(raw, incoming.num_bytes)
        for watcher in self._watchers:
            watcher.accepted(raw, hosted)
        return answer

    def refused(self, error: Exception, protocol: str) -> None:
        """Count a request that could not be read, and so never came here; watchers see it end."""
        incoming = Incoming(read=_never, encode=_never, protocol=protocol)
        self._refused(Call(incoming=incoming, started_s=time.monotonic()), error)

    def _gave_up(self, call: Call) -> None:
        assert call.hosted is not None
        assert call.pending is not None
        call.hosted.executor.cancel(call.pending)
        deadline_s = call.pending.deadline_s
        if deadline_s is not None and deadline_s <= time.monotonic() + _CLOCKS_APART_S:
            self._count(call, "expired", grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline passed")
        else:
            self._count(call, "cancelled", grpc.StatusCode.CANCELLED, "the client gave up")

    def _refused(self, call: Call, error: Exception) -> None:
        code, text = status_of(error)
        if code is grpc.StatusCode.INTERNAL and not isinstance(error, ExecutionError):
            _log.error("a request failed outside the model", exc_info=error)
        self._count(call, OUTCOME_OF[code], code, text)

    def _count(self, call: Call, outcome: str, code: grpc.StatusCode, reason: str) -> None:
        """Count a request that was not answered well."""
        if call.hosted is None:
            self.metrics.unrouted(outcome)
        else:
            call.hosted.metrics.count(outcome)
        for watcher in self._watchers:
            watcher.ended(call, outcome, code, reason)


def _never(*_: object) -> Any:
    raise AssertionError("a request that could not be read is neither read nor answered")


def deliverer(loop: asyncio.AbstractEventLoop) -> Callable[[Answered], None]:
    """What executors hand their batches' answers to: one hop to the event loop for a whole batch."""

    def deliver(answered: Answered) -> None:
        # The loop is closed only where the drain time ran out; nobody waits then.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_answer_all, answered)

    return deliver


def _answer_all(answered: Answered) -> None:
    for pending, answer in answered:
        pending.payload.answer(answer)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
