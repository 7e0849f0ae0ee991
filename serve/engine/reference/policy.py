"""The policy for the number of executors, without tensors, threads or a clock of its own.

A further executor starts only if that finishes the waiting requests sooner than letting the batch grow, and
free executors share the waiting requests. The durations of batches are learned from those that ran. The
native engine follows the same policy (``cpp_client/engine/core/queue/policy.h``), and also runs short batches in
the polling thread: here that would be the event loop, where no model may run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Initial costs of a model: per batch, per row, per ID. A few batches replace them.
_FIRST_COSTS_S = (300e-6, 20e-6, 0.05e-6)
# Standard deviation of the first costs, as a multiple of them.
_FIRST_DOUBT = 3.0
# Drift of a cost from batch to batch, as a share of it; more for the first batches after loading.
_DRIFT = 0.01
_FIRST_DRIFT = 0.3
# Spread of durations around their expectation, as a share of it, and as a constant.
_SCATTER = 0.2
_SCATTER_S = 5e-6
# One duration moves the costs by at most this many standard deviations: a thread may be preempted.
_MOST_DEVIATIONS = 3.0
# Number of batches before the costs are used.
_NUM_KNOWN = 4
# Weight of the last batch in the slowdown, and of a batch that ran alone in its decay.
_WEIGHT = 0.1
_FORGET = 0.002
_MOST_SLOWDOWN = 8.0
# Time to wake an executor: a condition variable, and a switch of the interpreter's lock.
_WAKE_S = 100e-6
# Expected duration of a batch for which a light client may wait, in seconds and as a multiple of a batch's fixed
# cost: longer ones compute a few percent more rows a second.
_LONGEST_BATCH_S = 1e-3
_MOST_FIXED_COSTS = 16.0
# A batch is checked again when it takes longer than expected by a quarter and by this.
_LOOK_AGAIN_S = 1e-3


class BatchCosts:
    """Durations of a model's batches: fixed + per row + per ID, a Kalman filter whose costs drift slowly."""

    def __init__(self) -> None:
        self._costs = list(_FIRST_COSTS_S)
        self._variance = [
            [(_FIRST_DOUBT * cost) ** 2 if i == j else 0.0 for j in range(3)]
            for i, cost in enumerate(_FIRST_COSTS_S)
        ]
        self._num_learned = 0

    @property
    def is_known(self) -> bool:
        """Whether enough batches ran to use the estimates."""
        return self._num_learned >= _NUM_KNOWN

    @property
    def fixed_s(self) -> float:
        """The fixed cost of a batch."""
        return self._costs[0]

    def seconds(self, num_rows: int, num_ids: int) -> float:
        """Return the expected duration of a batch."""
        return self._costs[0] + self._costs[1] * num_rows + self._costs[2] * num_ids

    def learn(self, num_rows: int, num_ids: int, seconds: float) -> None:
        """Update the costs with a batch's duration."""
        if not math.isfinite(seconds) or seconds < 0:
            return
        self._num_learned += 1
        drift = _DRIFT + _FIRST_DRIFT / self._num_learned
        size = (1, num_rows, num_ids)
        costs, variance = self._costs, self._variance
        for i, first in enumerate(_FIRST_COSTS_S):
            unit = max(costs[i], 0.01 * first)
            if variance[i][i] < (_FIRST_DOUBT * unit) ** 2:
                variance[i][i] += (drift * unit) ** 2
        spread = [sum(row[j] * size[j] for j in range(3)) for row in variance]
        expected_s = self.seconds(num_rows, num_ids)
        total = (
            sum(a * b for a, b in zip(size, spread, strict=True)) + (_SCATTER * expected_s + _SCATTER_S) ** 2
        )
        most_s = _MOST_DEVIATIONS * math.sqrt(total)
        error_s = min(max(seconds - expected_s, -most_s), most_s)
        for i in range(3):
            costs[i] = max(costs[i] + spread[i] / total * error_s, 0.0)
            for j in range(3):
                variance[i][j] -= spread[i] * spread[j] / total


@dataclass(slots=True)
class RunningBatch:
    """A running batch.

    Attributes:
        num_rows: rows of the batch.
        num_ids: IDs of the batch.
        began_s: start time on the caller's clock.
        expected_s: expected duration.
        has_company: whether others ran at the same time.
    """

    num_rows: int
    num_ids: int
    began_s: float
    expected_s: float
    has_company: bool


@dataclass(slots=True)
class BatchPolicy:
    """The policy of one loaded version. Not thread-safe: the caller holds a lock.

    Attributes:
        costs: expected durations of batches.
        slowdown: factor by which a batch takes longer while others run.
    """

    costs: BatchCosts = field(default_factory=BatchCosts)
    slowdown: float = 1.0
    _running: list[RunningBatch] = field(default_factory=list)

    @property
    def num_running(self) -> int:
        """Number of running batches."""
        return len(self._running)

    def pays(self, num_rows: int, num_ids: int, now_s: float, *, is_awake: bool = False) -> bool:
        """Return whether one more executor computes the waiting requests sooner than the running ones would.

        Args:
            num_rows: rows that wait.
            num_ids: IDs that wait.
            now_s: the present time.
            is_awake: whether the executor has just ended a batch, so that no thread has to be woken.
        """
        if not self._running or not self.costs.is_known:
            return True
        remaining_s = min(_remaining_s(batch, now_s) for batch in self._running)
        alone_s = self.costs.seconds(num_rows, num_ids)
        lost_s = (self.slowdown - 1) * (alone_s + min(remaining_s, alone_s))
        return (0.0 if is_awake else _WAKE_S) + lost_s < remaining_s

    def share(self, num_rows: int, num_ids: int, num_free: int, *, is_short: bool = False) -> int:
        """Return the maximum rows of the next batch, so that free executors get their share.

        Args:
            num_rows: rows that wait.
            num_ids: IDs that wait.
            num_free: executors that may start besides the calling one.
            is_short: whether the batch should be over before long, because light clients wait for it.
        """
        if not self.costs.is_known:
            return num_rows
        fixed_s = self.costs.fixed_s
        work_s = self.costs.seconds(num_rows, num_ids) - fixed_s
        num = self._num_shares(work_s, num_free)
        if is_short:
            num = max(num, work_s / max(_LONGEST_BATCH_S, _MOST_FIXED_COSTS * fixed_s))
        return math.ceil(num_rows / num)

    def _num_shares(self, work_s: float, num_free: int) -> float:
        """Return how many executors share requests that take ``work_s``."""
        fixed_s = self.costs.fixed_s
        least_s = (fixed_s + _WAKE_S) * self.slowdown
        if num_free <= 0 or work_s < 2 * least_s:
            return 1.0
        num = min(num_free + 1, work_s // least_s)
        return 1.0 if (2 - self.slowdown) * (fixed_s + work_s / num) < _WAKE_S else num

    def looks_again_s(self, now_s: float) -> float:
        """Return when to check again the requests that were left to the running batches."""
        ends_s = min((batch.began_s + 1.25 * batch.expected_s for batch in self._running), default=now_s)
        return max(ends_s, now_s) + _LOOK_AGAIN_S

    def began(self, num_rows: int, num_ids: int, now_s: float) -> RunningBatch:
        """Record the start of a batch; pass the result to ``ended``."""
        has_company = bool(self._running)
        for other in self._running:
            other.has_company = True
        expected_s = self.costs.seconds(num_rows, num_ids) * (self.slowdown if has_company else 1)
        batch = RunningBatch(num_rows, num_ids, now_s, expected_s, has_company)
        self._running.append(batch)
        return batch

    def ended(self, batch: RunningBatch, now_s: float) -> None:
        """Record the end of a batch. A batch without rows does not update the costs."""
        self._running = [other for other in self._running if other is not batch]
        if not batch.num_rows:
            return
        seconds = now_s - batch.began_s
        if batch.has_company:
            ratio = seconds / max(self.costs.seconds(batch.num_rows, batch.num_ids), 1e-9)
            self.slowdown += _WEIGHT * (min(max(ratio, 1.0), _MOST_SLOWDOWN) - self.slowdown)
            self.costs.learn(batch.num_rows, batch.num_ids, seconds / self.slowdown)
        else:
            self.slowdown += _FORGET * (1 - self.slowdown)
            self.costs.learn(batch.num_rows, batch.num_ids, seconds)


def _remaining_s(batch: RunningBatch, now_s: float) -> float:
    """Return the expected remaining time; the longer a batch is overdue, the longer it is."""
    return abs(batch.began_s + batch.expected_s - now_s)
