"""Which failed calls are tried again, and when. ``cpp_client/client/calls/retry.h`` follows the same rules.

gRPC's own policy (1.85) retries messages that are too large, waits past the deadline, and never makes an attempt that a
server asks for at once.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import grpc

from serve.client.errors import PredictError

# Added to the server's time at most, so that rejected clients do not all return at once.
_PUSHBACK_SPREAD = 0.1
# An idle period saves up the shares of so many calls.
_MOST_SAVED_CALLS = 1000


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Which calls are tried again: those that end with UNAVAILABLE, or with RESOURCE_EXHAUSTED and a time to wait.

    Without a time, the message was too large. A time that the server names takes precedence over the waits below. No
    attempt begins behind the call's deadline. Streams are not tried again.

    Attributes:
        max_attempts: attempts per call, including the first; 1 for no retries.
        first_backoff_s: wait before the second attempt; doubled before each further one. The actual wait is random,
            between half of that and all of it.
        max_backoff_s: longest wait.
        budget_share: all retries of the client together are at most this share of its calls,
        budget_burst: plus this many, so that they do not multiply the load of a failing server.

    Raises:
        ValueError: a number is out of range.
    """

    max_attempts: int = 3
    first_backoff_s: float = 0.02
    max_backoff_s: float = 1.0
    budget_share: float = 0.1
    budget_burst: float = 10

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts: got {self.max_attempts!r}, expected at least 1")
        for name in ("first_backoff_s", "max_backoff_s", "budget_share", "budget_burst"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected at least 0")

    def wait_s(self, error: PredictError, remaining_s: float, draw: float) -> float | None:
        """Return how long to wait before the next attempt; None if the call has failed.

        Args:
            error: of the last attempt.
            remaining_s: time left until the call's deadline.
            draw: uniform in [0, 1).
        """
        is_full = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        if error.num_attempts >= self.max_attempts or error.retry_is_unwanted:
            return None
        if error.code is not grpc.StatusCode.UNAVAILABLE and not (
            is_full and error.retry_after_ms is not None
        ):
            return None
        if error.retry_after_ms is not None:
            wait_s = error.retry_after_ms * 1e-3 * (1 + _PUSHBACK_SPREAD * draw)
        else:
            doubled = self.first_backoff_s * 2.0 ** (error.num_attempts - 1)
            wait_s = min(doubled, self.max_backoff_s) * (0.5 + 0.5 * draw)
        # Else no time would be left for an answer.
        return wait_s if wait_s < remaining_s else None


class RetryBudget:
    """Limits the retries of all calls of a client. Thread-safe."""

    def __init__(self, retries: Retries) -> None:
        self._share, self._burst = retries.budget_share, retries.budget_burst
        self._tokens = float(self._burst)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Note that a call begins."""
        with self._lock:
            self._tokens = min(self._tokens + self._share, self._burst + _MOST_SAVED_CALLS * self._share)

    def spend(self) -> bool:
        """Return whether another retry is within the budget; if so, it is spent."""
        with self._lock:
            # Sums of shares such as 0.1 are slightly inexact.
            if self._tokens < 1 - 1e-6:
                return False
            self._tokens -= 1
            return True
