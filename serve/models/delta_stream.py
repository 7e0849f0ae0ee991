"""The stream of deltas of one loaded version: which file comes next, and why it goes no further.

The policy alone, without files, threads and clocks. A poll hands over what the transport holds; the stream names
the next delta of the version's chain until there is none, and then says in which state it is. It decides again
at every poll, so it goes on by itself once the right file is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from recsys.streams.interface import StreamedDelta, next_delta
from serve.metrics.streams import StreamState, StreamStatus


class DeltaStream:
    """See the module.

    Args:
        artifact: digest of the version's artifact.
        since_s: when the artifact's files were written, in seconds since the epoch. Deltas of other artifacts
            that are older belong to the past.

    Attributes:
        status: the present status.
    """

    def __init__(self, artifact: str, since_s: float) -> None:
        self.status = StreamStatus()
        self._artifact = artifact
        self._since_s = since_s
        self._state = artifact
        # Every state of the rows so far.
        self._passed = {artifact}
        # Files that could not be read when the last delta was there: the chain has gone on without them, perhaps.
        self._past: dict[str, tuple[int, int | str]] = {}
        # Files that could not be applied: their stamps, and why.
        self._failed: dict[str, tuple[tuple[int, int | str], StreamState, str]] = {}
        # Deltas that were waiting at the last poll that was due, and those that were at the one before, too.
        self._waiting: dict[str, tuple[int, int | str]] = {}
        self._overdue: dict[str, tuple[int, int | str]] = {}

    def next(self, found: Sequence[StreamedDelta]) -> StreamedDelta | None:
        """Return the delta to apply next, of those that have not failed; None if there is none."""
        usable = [delta for delta in found if not self._has_failed(delta)]
        following = next_delta(usable, self._artifact, self._state, self._passed)
        if following is not None:
            self._past = {delta.name: delta.stamp for delta in found if delta.error}
        return following

    def applied(self, delta: StreamedDelta, at_s: float = 0.0) -> None:
        """Note that a delta was applied.

        Args:
            delta: the delta.
            at_s: when, in seconds since the epoch.
        """
        self._state = delta.digest
        self._passed.update((delta.digest, *delta.replaces))
        self._failed.clear()
        self.status = replace(
            self.status,
            last=delta.name,
            last_created_s=delta.created_s,
            last_delay_s=max(0.0, at_s - delta.created_s),
        )

    def failed(self, delta: StreamedDelta, state: StreamState, reason: str) -> None:
        """Note that a delta could not be applied. It is tried again when its file changes.

        Args:
            delta: the delta.
            state: ``DAMAGED``, or ``FAILED`` where the file is not to blame; then it is tried again at the
                next poll.
            reason: why.
        """
        self._failed[delta.name] = (delta.stamp, state, reason)

    def settle(
        self, found: Sequence[StreamedDelta], artifacts: Collection[str], *, is_due: bool = True
    ) -> None:
        """Set the status at the end of a poll, when ``next`` returns None.

        Args:
            found: the deltas of the stream, oldest first.
            artifacts: digests of the artifacts that are versions of the model.
            is_due: whether the interval between polls has passed, and not just something arrived: what is missing
                may arrive next.
        """
        last_s = self.status.last_created_s
        ours = [d for d in found if self._is_ahead(d)]
        waiting = [d for d in ours if not d.error]
        unreadable = [d for d in found if d.error and self._is_new(d) and (not d.artifact or d in ours)]
        strange = [d for d in found if d.artifact and d.artifact not in artifacts]
        foreign = [d for d in strange if d.created_s > max(last_s, self._since_s)]
        now = {d.name: d.stamp for d in (*unreadable, *waiting, *foreign)}
        before = self._waiting if is_due else self._overdue
        self._overdue = {name: stamp for name, stamp in now.items() if before.get(name) == stamp}
        if is_due:
            self._waiting = now
        state, reason = self._judged(unreadable, waiting, foreign)
        self.status = replace(
            self.status, state=state, reason=reason, num_pending=len(unreadable) + len(waiting)
        )
        self._failed = {
            name: (stamp, kind, why)
            for name, (stamp, kind, why) in self._failed.items()
            if kind is StreamState.DAMAGED
        }

    def unreadable(self, reason: str) -> None:
        """Set the status at the end of a poll for which the stream could not be read."""
        self.status = replace(self.status, state=StreamState.FAILED, reason=reason)

    def _judged(
        self,
        unreadable: Sequence[StreamedDelta],
        waiting: Sequence[StreamedDelta],
        foreign: Sequence[StreamedDelta],
    ) -> tuple[StreamState, str]:
        for delta in waiting:
            if self._has_failed(delta):
                _, state, reason = self._failed[delta.name]
                return state, f"delta {delta.name} cannot be applied: {reason}"
        for delta in unreadable:
            if delta.name in self._overdue:  # else it may be being written
                return StreamState.DAMAGED, f"delta {delta.name} cannot be read: {delta.error}"
        there = {delta.digest for delta in waiting}
        for delta in waiting:
            if delta.base not in there and delta.name in self._overdue:
                return StreamState.GAP, (
                    f"delta {delta.name} follows state {delta.base}, which no delta of the stream leads to from "
                    f"{self._state}, the state of the rows"
                )
        for delta in foreign:
            if delta.name in self._overdue:
                return StreamState.FOREIGN, (
                    f"delta {delta.name} was made for artifact {delta.artifact}, which is no version of this model; "
                    f"expected {self._artifact}"
                )
        return StreamState.FOLLOWING, ""

    def _is_ahead(self, delta: StreamedDelta) -> bool:
        """Return whether a delta is applied next or later: others are applied, or lie beside those that were."""
        is_ours = delta.artifact == self._artifact and delta.digest not in self._passed
        leads_on = delta.leads_on(self._artifact, self._state, self._passed)
        return is_ours and (leads_on or delta.base not in self._passed)

    def _is_new(self, delta: StreamedDelta) -> bool:
        """Return whether a delta came after the last one that was applied; clocks may go wrong."""
        came_later = self._past.get(delta.name) != delta.stamp
        return came_later or delta.created_s >= self.status.last_created_s

    def _has_failed(self, delta: StreamedDelta) -> bool:
        failed = self._failed.get(delta.name)
        return failed is not None and failed[0] == delta.stamp
