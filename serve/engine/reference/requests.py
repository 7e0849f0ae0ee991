"""Requests, from the parsed message to the answer.

One ``Request`` object passes all stages: the port makes it, the gateway routes and checks it, the queue holds
it, an executor computes it and lets it encode its answer. Each protocol has a subclass for its messages.

Shape letters: B rows of a request, N number of IDs of one input.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from serve.engine.records import BatchTimes, Observer, ShadowPair
from serve.engine.reference.batching import Pending
from serve.errors import QueueFullError
from serve.wire import predict_pb2 as wire

if TYPE_CHECKING:
    from serve.engine.reference.request_check import CheckedRequest
    from serve.engine.reference.servable import ReferenceServable

Answer = bytes | Exception


class RawDenseLike(Protocol):
    """``values``: little-endian float32, row-major ``[B, width]``."""

    @property
    def name(self) -> str: ...

    @property
    def values(self) -> bytes: ...


class RawSparseLike(Protocol):
    """One sparse input.

    ``lengths``: little-endian int32 ``[B]``; ``values``: int64 ``[N]``, or ``strings`` in their place: N texts;
    ``weights``: float32 ``[N]``, or empty.
    """

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> bytes: ...

    @property
    def values(self) -> bytes: ...

    @property
    def weights(self) -> bytes: ...

    @property
    def strings(self) -> Sequence[bytes]: ...


class RawRequestLike(Protocol):
    """Named inputs as unchecked bytes. Context inputs have one row for all B.

    A parsed ``recsys.v1.PredictRequest`` is one; the other protocols make ``RawRequest``s.
    """

    @property
    def num_rows(self) -> int: ...

    @property
    def dense(self) -> Sequence[RawDenseLike]: ...

    @property
    def sparse(self) -> Sequence[RawSparseLike]: ...

    @property
    def context_dense(self) -> Sequence[RawDenseLike]: ...

    @property
    def context_sparse(self) -> Sequence[RawSparseLike]: ...


@dataclass(slots=True)
class RawDense:
    """One dense input."""

    name: str
    values: bytes


@dataclass(slots=True)
class RawSparse:
    """One sparse input."""

    name: str
    lengths: bytes
    values: bytes
    weights: bytes = b""
    strings: Sequence[bytes] = ()


@dataclass(slots=True, kw_only=True)
class RawRequest:
    """The inputs of one request."""

    num_rows: int
    dense: Sequence[RawDense] = field(default_factory=list)
    sparse: Sequence[RawSparse] = field(default_factory=list)
    context_dense: Sequence[RawDense] = field(default_factory=list)
    context_sparse: Sequence[RawSparse] = field(default_factory=list)


def serialized(raw: RawRequestLike) -> bytes:
    """Return a request's inputs as a ``recsys.v1.PredictRequest``, without model, version and request ID."""
    message = wire.PredictRequest(num_rows=raw.num_rows)
    for dense, messages in ((raw.dense, message.dense), (raw.context_dense, message.context_dense)):
        for one in dense:
            messages.add(name=one.name, values=one.values)
    for sparse, inputs in ((raw.sparse, message.sparse), (raw.context_sparse, message.context_sparse)):
        for use in sparse:
            inputs.add(
                name=use.name,
                lengths=use.lengths,
                values=use.values,
                weights=use.weights,
                strings=use.strings,
            )
    data: bytes = message.SerializeToString()
    return data


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
        """Set the servable and the checked inputs, whose sizes the queue counts."""
        self.servable, self.checked = servable, checked
        self.num_rows, self.num_ids = checked.num_rows, checked.num_ids
        self.num_bytes = max(self.num_bytes, checked.spread_bytes)

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
            num_rows=self.num_rows,
            expected=self._expected,
            got=self._got,
            expected_outputs=self.primary.signature.outputs,
            got_outputs=self.servable.signature.outputs,
        )
        self.observer.shadowed(pair)
