"""A policy for Ray Serve's autoscaler: replicas by waiting rows. Does not import Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

#: The name of the replicas' statistic.
PENDING_ROWS = "pending_rows"


class Context(Protocol):
    """The argument that Ray's autoscaler passes to a policy."""

    @property
    def current_num_replicas(self) -> int: ...

    @property
    def total_num_requests(self) -> float: ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...


class PendingRowsPolicy:
    """Replicas in proportion to the waiting rows, but at least as many as the current requests need.

    Rows wait only while every executor is busy, so an empty queue does not show how many replicas could be
    removed; the number of current requests does.

    Args:
        target_pending_rows: waiting rows per replica.
        target_requests: requests per replica, including waiting ones.

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
        """Return the number of replicas, to which Ray applies its bounds and delays, and an empty state."""
        pending = (context.aggregated_metrics or {}).get(PENDING_ROWS, {}).values()
        for_requests = math.ceil(context.total_num_requests / self._target_requests)
        # Only of replicas that have reported; a new one may not have yet.
        ratio = sum(pending) / len(pending) / self._target_pending_rows if pending else 0.0
        return max(for_requests, math.ceil(context.current_num_replicas * ratio)), {}
