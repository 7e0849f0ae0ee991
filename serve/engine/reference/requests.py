"""One request on its way from the wire to its answer.

``Request`` is the one object that travels: the port makes it, the gateway routes and checks it, the queue holds it, an
executor computes it and has it write its answer. Each protocol has a subclass that knows its messages.

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
    """``lengths``: little-endian int32 ``[B]``; ``values``: int64 ``[N]``; ``weights``: float32 ``[N]``, or empty."""

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> bytes: ...

    @property
    def values(self) -> bytes: ...

    @property
    def weights(self) -> bytes: ...


class RawRequestLike(Protocol):
    """Named inputs as bytes, nothing of them checked. Context inputs have one row, which stands for all B.

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


@dataclass(slots=True, kw_only=True)
class RawRequest:
    """The inputs of one request."""

    num_rows: int
    dense: Sequence[RawDense] = field(default_factory=list)
    sparse: Sequence[RawSparse] = field(default_factory=list)
    context_dense: Sequence[RawDense] = field(default_factory=list)
    context_sparse: Sequence[RawSparse] = field(default_factory=list)


def serialized(raw: RawRequestLike) -> bytes:
    """Return the inputs of a request as a ``recsys.v1.PredictRequest``; who sent it and for whom is left out."""
    message = wire.PredictRequest(num_rows=raw.num_rows)
    for dense, messages in ((raw.dense, message.dense), (raw.context_dense, message.context_dense)):
        for one in dense:
            messages.add(name=one.name, values=one.values)
    for sparse, inputs in ((raw.sparse, message.sparse), (raw.context_sparse, message.context_sparse)):
        for use in sparse:
            inputs.add(name=use.name, lengths=use.lengths, values=use.values, weights=use.weights)
    data: bytes = message.SerializeToString()
    return data


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Pending):
    """One request, from its arrival to its answer.

    Attributes:
        PROTOCOL: what logs and traces call the protocol.
        protocol: the same, unless the request came through another door.
        model: empty for the only model.
        version: empty for the version that the routing chooses.
        drew_version: whether ``version`` was chosen by the routing before.
        request_id: the client's own name for it.
        remaining_s: until the client's deadline, at its arrival; None for none.
        trace_parent: the W3C ``traceparent`` header; empty where the client sent none.
        started_s: when it came, on the clock of ``time.monotonic``.
        servable: answers it; set by the routing.
        checked: its inputs, once they have been checked.
        times: of its batch, once that was taken.
        answer: what the port waits for; set on the event loop.
        shadow: the same request for the shadow version; None for none.
    """

    PROTOCOL: ClassVar[str] = ""

    protocol: str = ""
    model: str = ""
    version: str = ""
    drew_version: bool = False
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
        """Return the inputs, as the servable names them.

        Raises:
            RequestError: the message cannot be one for this model.
        """
        raise NotImplementedError

    def encode(self, values: Sequence[bytes]) -> bytes:
        """Write the answer, in an executor's thread; what it raises is the answer then.

        Args:
            values: for each output of the signature the request's own little-endian float32, ``[B, *shape]``.
        """
        raise NotImplementedError

    def expect_within(self, remaining_s: float | None) -> None:
        """Take the call's deadline, beside one in the message: the earlier counts. None for none."""
        if self.remaining_s is None or (remaining_s is not None and remaining_s < self.remaining_s):
            self.remaining_s = remaining_s

    def join(self, servable: ReferenceServable, checked: CheckedRequest) -> None:
        """Take the checked inputs; the queue counts by them."""
        self.servable, self.checked = servable, checked
        self.num_rows, self.num_ids = checked.num_rows, checked.num_ids
        self.num_bytes = max(self.num_bytes, checked.spread_bytes)

    def settle(self, answer: Answer) -> None:
        """Hand the answer to the port; called on the event loop."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(answer)


@dataclass(eq=False, slots=True, kw_only=True)
class ShadowRequest(Request):
    """The same request on its second way, to the version in the shadow.

    Both versions' outputs leave as one pair. The shadow's metrics count ``failed`` where it refused the request (as
    wrong for its signature) or failed on it, and ``dropped`` where its queue was full. Where the version that answers
    failed there is nothing to compare, and nothing is counted.

    Attributes:
        observer: takes the pair.
        primary: the version that answers.
    """

    observer: Observer
    primary: ReferenceServable
    _expected: Sequence[bytes] | None = None
    _got: Sequence[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def encode(self, values: Sequence[bytes]) -> bytes:
        """Keep the shadow's outputs; nobody gets an answer."""
        with self._lock:
            self._got = values
            is_whole = self._expected is not None
        if is_whole:
            self._leave()
        return b""

    def answered(self, values: Sequence[bytes]) -> None:
        """Keep the outputs of the version that answered."""
        with self._lock:
            self._expected = values
            is_whole = self._got is not None
        if is_whole:
            self._leave()

    def settle(self, answer: Answer) -> None:
        """Count a failure."""
        assert self.servable is not None
        if isinstance(answer, Exception):
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
