"""A queue's limits, and a clock that only moves when told to."""

from __future__ import annotations

from serve.config.models import BatchLimits

LIMITS = BatchLimits(
    max_batch_rows=10,
    max_batch_ids=100,
    max_request_rows=20,
    max_request_ids=200,
    max_queue_rows=30,
    max_queue_ids=300,
    max_queue_bytes=3000,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s
