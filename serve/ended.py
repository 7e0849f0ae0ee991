"""What is said of a request that has ended: in the log, and in its trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve.work import BatchTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One request, and how it ended. Times are on the clock of ``time.monotonic``, in seconds.

    Attributes:
        trace_parent: the W3C ``traceparent`` header; empty where the client sent none.
        protocol: ``recsys``, ``kserve``, ``torchrec`` or ``rest``.
        model: that answered, or that the client asked for.
        version: of the model.
        request_id: the client's own name for it.
        outcome: one of ``serve.model_metrics.OUTCOMES``.
        code: name of the gRPC status code.
        reason: what the client was told, where it did not go well.
        num_rows: of the request; 0 where that is not known.
        num_ids: of the request; likewise.
        started_s: when it came.
        ended_s: when it was answered.
        enqueued_s: when it joined the queue; None or 0 where it did not.
        times: of its batch; None where it was in none that ran.
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
