"""How fast a queue has been draining, and so when a client that found it full should try again."""

from __future__ import annotations

# Weight of what was seen before the last batch: about ten batches count, so that one slow batch does not
# decide, and a change shows within tens of batches.
_MEMORY = 0.9
#: The hint where nothing has been measured yet: a queue that fills before its first batch has ended belongs to a
#: server that has just come up.
FIRST_RETRY_MS = 100
#: No hint is longer: a guess from a server in trouble should not keep clients away for good.
MAX_RETRY_MS = 60_000


class DrainRate:
    """What left the queue per second, while there was something to drain, smoothed over about ten batches.

    Everything that leaves counts, cancelled and expired requests too: all of it makes room. The time in which
    nothing waited does not count: an idle queue is not a slow one. Not thread-safe.

    Args:
        names: what is counted, such as rows and bytes.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._left = dict.fromkeys(names, 0.0)
        self._drained = dict.fromkeys(names, 0.0)
        self._seconds = 0.0
        self._since_s: float | None = None

    def left(self, **amounts: int) -> None:
        """Note what has left the queue, by name."""
        for name, amount in amounts.items():
            self._left[name] += amount

    def taken(self, now_s: float, *, is_empty: bool) -> None:
        """Note that a batch was taken.

        Args:
            now_s: the present time.
            is_empty: whether nothing waits any more, so that the time until the next batch says nothing.
        """
        if self._since_s is not None:
            self._seconds = _MEMORY * self._seconds + (now_s - self._since_s)
            for name, amount in self._left.items():
                self._drained[name] = _MEMORY * self._drained[name] + amount
        self._left = dict.fromkeys(self._left, 0.0)
        self._since_s = None if is_empty else now_s

    def retry_after_ms(self, name: str, amount: int, now_s: float) -> int:
        """When so much will have drained, as things went so far: 1 to ``MAX_RETRY_MS``.

        The time since the last batch counts as well, so that the hint grows while a batch takes longer than usual.
        """
        drained = self._drained[name]
        if drained <= 0 or self._seconds <= 0:
            return FIRST_RETRY_MS
        running_s = 0.0 if self._since_s is None else max(now_s - self._since_s, 0.0)
        ms = 1000 * amount * (self._seconds + running_s) / drained
        return min(max(round(ms), 1), MAX_RETRY_MS)
