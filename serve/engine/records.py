"""Records of requests that engines report: for logs, traces, captures, answer logs and shadow comparisons.

Most requests leave no record; ``Sampling`` decides which do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import xxhash

from recsys.inputs.signature import Output
from serve.engine.answered import AnsweredBlock

# Version, trace ID, parent span ID, flags; versions above 00 may append fields, ff is forbidden.
_PATTERN = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?", re.ASCII)
_MAX_CHARS = 256
_SAMPLED = 0x01


class TraceParent(NamedTuple):
    """A parsed W3C ``traceparent`` header (Trace Context, level 1)."""

    trace_id: int
    span_id: int
    is_sampled: bool


TRACE_PARENT = "traceparent"


def read_traceparent(header: str) -> TraceParent | None:
    """Parse the header; return None if it is empty or malformed (the standard says to ignore it then)."""
    if not header or len(header) > _MAX_CHARS:
        return None
    match = _PATTERN.fullmatch(header)
    if match is None or (match[1] == "00" and len(header) != 55):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return TraceParent(trace_id, span_id, bool(int(match[4], 16) & _SAMPLED))


def trace_id_of(header: str) -> str:
    """Return the trace ID as 32 hexadecimal digits; empty if the header has none."""
    parent = read_traceparent(header)
    return "" if parent is None else f"{parent.trace_id:032x}"


def draw_of(request_id: str) -> float:
    """Return a number in [0, 1) by a request ID's hash: all servers that compare it with a share agree."""
    return float((xxhash.xxh64_intdigest(request_id.encode()) >> 11) * 2.0**-53)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Which requests leave records.

    Attributes:
        logged: ``none``, ``errors`` or ``all``.
        trace_share: share to trace of the requests whose client does not decide it; None for no traces at
            all.
        capture_share: share of the accepted requests to capture.
        answered_share: share of the answered requests with a request ID whose answers are recorded, by ``draw_of``.
        inputs_share: share of the answered requests whose answers are recorded with their inputs: by ``draw_of`` where
            they have an ID, at random where not.
        answers_wait_s: for how long records of answers may wait for others, with which they are reported.
    """

    logged: str = "none"
    trace_share: float | None = None
    capture_share: float = 0.0
    answered_share: float = 0.0
    inputs_share: float = 0.0
    answers_wait_s: float = 0.5

    def is_logged(self, outcome: str) -> bool:
        """Return whether to log a request with this outcome."""
        return self.logged == "all" or (self.logged == "errors" and outcome != "ok")

    def is_traced(self, trace_parent: str, draw: float) -> bool:
        """Return whether to trace a request: as its client says, or else by the share.

        Args:
            trace_parent: the ``traceparent`` header; empty if the client sent none.
            draw: evenly distributed over [0, 1).
        """
        if self.trace_share is None:
            return False
        parent = read_traceparent(trace_parent) if trace_parent else None
        return draw < self.trace_share if parent is None else parent.is_sampled


@dataclass(slots=True, kw_only=True)
class BatchTimes:
    """Times when a batch ended its stages, in seconds of ``time.monotonic``; 0 for stages not reached.

    Attributes:
        taken_s: when it left the queue.
        collated_s: when its requests were collated.
        executed_s: when the model had run.
        responded_s: when its answers were written.
        num_requests: requests of the batch.
        num_rows: rows of the batch.
    """

    taken_s: float
    collated_s: float = 0.0
    executed_s: float = 0.0
    responded_s: float = 0.0
    num_requests: int = 0
    num_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One request and its outcome. Times are in seconds of ``time.monotonic``.

    Attributes:
        trace_parent: the W3C ``traceparent`` header; empty if the client sent none.
        protocol: ``recsys``, ``kserve``, ``torchrec`` or ``rest``.
        model: the model that answered, or that the client named.
        version: version of the model.
        request_id: the client's own name for it.
        outcome: one of ``serve.metrics.counters.OUTCOMES``.
        code: name of the gRPC status code.
        reason: the error text that the client got; empty on success.
        num_rows: rows of the request; 0 if not known.
        num_ids: IDs of the request; 0 if not known.
        started_s: when it arrived.
        ended_s: when it was answered.
        enqueued_s: when it joined the queue; None or 0 if it did not.
        times: times of its batch; None if no batch with it ran.
        is_logged: whether to log it.
        is_traced: whether to trace it.
        num_left_out: failed requests before it that the engine left out of the log, because they came too fast.
    """

    trace_parent: str
    protocol: str
    model: str
    version: str
    request_id: str
    outcome: str
    code: str
    started_s: float
    ended_s: float
    reason: str = ""
    num_rows: int = 0
    num_ids: int = 0
    enqueued_s: float | None = None
    times: BatchTimes | None = None
    is_logged: bool = False
    is_traced: bool = False
    num_left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One accepted request to capture.

    Attributes:
        time_s: when it arrived, in seconds of ``time.monotonic``.
        model: the model that answers it.
        version: version of the model.
        message: a serialized ``recsys.v1.PredictRequest`` with its inputs, whatever its protocol was; without model,
            version and request ID.
    """

    time_s: float
    model: str
    version: str
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPair:
    """Outputs of two versions for one request. The values are copies, so they keep no batch in memory.

    Attributes:
        model: the model of both versions.
        version: the version that answered.
        shadow: the version in the shadow.
        request_id: the client's own name for the request; empty if it has none.
        num_rows: rows of the request, B.
        expected: values of each output of the answering version: little-endian, of its dtype, row-major.
        got: the same of the shadow.
        expected_outputs: outputs of the answering version's signature.
        got_outputs: outputs of the shadow's signature.
    """

    model: str
    version: str
    shadow: str
    request_id: str
    num_rows: int
    expected: Sequence[bytes]
    got: Sequence[bytes]
    expected_outputs: Sequence[Output]
    got_outputs: Sequence[Output]


class Observer(Protocol):
    """Takes records. Its methods are quick, never raise, and may be called from any thread."""

    @property
    def sampling(self) -> Sampling:
        """Return which requests leave records."""
        ...

    def ended(self, request: EndedRequest) -> None:
        """Take an ended request that is logged or traced."""
        ...

    def captured(self, request: Captured) -> None:
        """Take a request to capture."""
        ...

    def answered(self, block: AnsweredBlock) -> None:
        """Take answered requests of one version, many at a time."""
        ...

    def shadowed(self, pair: ShadowPair) -> None:
        """Take both versions' outputs for a shadowed request."""
        ...
