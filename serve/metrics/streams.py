"""The status of a stream of deltas, as metrics and operators see it; ``serve.models.delta_stream`` decides it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class StreamState(StrEnum):
    """The state of a stream.

    ``FOLLOWING``: every delta that fits is applied. ``DAMAGED``: a delta is not whole, or does not fit what
    it says it fits. ``GAP``: the predecessor of a delta is missing. ``FOREIGN``: the newest deltas are for
    another artifact. ``FAILED``: the folder or a file cannot be read, or memory is short; tried again at each
    poll.
    """

    FOLLOWING = "following"
    DAMAGED = "damaged"
    GAP = "gap"
    FOREIGN = "foreign"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
    """A stream.

    Attributes:
        state: its state.
        reason: why it does not follow; else empty.
        num_pending: deltas of the version that are not applied, and those that cannot be read.
        last: name of the last applied delta; empty for none.
        last_created_s: when that was made, in seconds since the epoch; 0 for none.
        last_delay_s: seconds from then until it was applied.
    """

    state: StreamState = StreamState.FOLLOWING
    reason: str = ""
    num_pending: int = 0
    last: str = ""
    last_created_s: float = 0.0
    last_delay_s: float = 0.0
