"""What travels through the queue: a checked request, how its answer is written, and whom to give it to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recsys.signature import Signature
from serve.batching import Pending
from serve.model import ModelInfo
from serve.request_check import CheckedRequest


@dataclass(slots=True)
class Rows:
    """A request's own rows of a batch's outputs.

    Attributes:
        info: of the model that computed them.
        signature: names and shapes of the outputs.
        num_rows: B of the request.
        values: for each of the signature's outputs its little-endian float32, row-major ``[B, *shape]``.
    """

    info: ModelInfo
    signature: Signature
    num_rows: int
    values: Sequence[bytes]


@dataclass(slots=True, kw_only=True)
class BatchTimes:
    """When a batch passed its stages, in seconds on the executor's clock.

    Attributes:
        taken_s: it left the queue.
        collated_s: its requests were put together.
        executed_s: the model was done.
        responded_s: its answers were written.
        num_requests: of the batch.
        num_rows: of the batch.
    """

    taken_s: float
    collated_s: float = 0.0
    executed_s: float = 0.0
    responded_s: float = 0.0
    num_requests: int = 0
    num_rows: int = 0


Answer = bytes | Exception


@dataclass(eq=False, slots=True, kw_only=True)
class Work:
    """A checked request, and whom to answer.

    Attributes:
        checked: the request.
        encode: writes the answer, in an executor's thread; what it raises is the answer then.
        answer: takes the answer; called where answers are delivered.
        request_id: the client's own name for it; stands in the log where the batch fails.
        times: of its batch, once it has run.
    """

    checked: CheckedRequest
    encode: Callable[[Rows], bytes]
    answer: Callable[[Answer], None]
    request_id: str = ""
    times: BatchTimes | None = None


Answered = list[tuple[Pending[Work], Answer]]
