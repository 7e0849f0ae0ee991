"""How many replicas Ray Serve should run, from the rows that wait: a policy for its autoscaler. Pure; knows no Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

#: What replicas report, under this name.
PENDING_ROWS = "pending_rows"


class Context(Protocol):
    """What Ray's autoscaler tells a policy."""

    @property
    def current_num_replicas(self) -> int: ...

    @property
    def total_num_requests(self) -> float: ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


class PendingRowsPolicy:
    """Replicas in proportion to the rows that wait, and never fewer than the requests under way need.

    Rows wait only where every executor is busy, so that an empty queue says nothing of how many replicas could go:
    that the requests under way say.

    Args:
        target_pending_rows: per replica.
        target_requests: under way per replica, waiting ones included.

    Raises:
        ValueError: a target is not above 0.
    """

    def __init__(self, *, target_pending_rows: float, target_requests: float) -> None:
        for name, value in (
            ("target_pending_rows", target_pending_rows),
            ("target_requests", target_requests),
        ):
            if not value > 0:
                raise ValueError(f"{name}: got {value}, expected more than 0")
        self._target_pending_rows = target_pending_rows
        self._target_requests = target_requests

    def __call__(self, context: Context) -> tuple[int, dict[str, Any]]:
        """How many replicas; Ray applies its bounds and delays to it. The second is a state, of which there is none."""
        pending = (context.aggregated_metrics or {}).get(PENDING_ROWS, {}).values()
        for_requests = math.ceil(context.total_num_requests / self._target_requests)
        # Of those replicas alone that have reported: a new one may not have yet.
        ratio = sum(pending) / len(pending) / self._target_pending_rows if pending else 0.0
        return max(for_requests, math.ceil(context.current_num_replicas * ratio)), {}
