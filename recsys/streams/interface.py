"""What a transport of deltas does. It moves whole files; ``next_delta`` says which one comes next.

A source shows everything that its transport holds, in any order, with whatever is wrong with it, and hands out only
deltas that are whole. So loss, duplicates, reordering and damage look alike for all transports.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: Ends the names of deltas. Other files of a folder are left alone, such as markers that tools for buckets write.
SUFFIX = ".delta"


class StreamError(OSError):
    """A transport cannot be used now, or refuses a delta. The text is for operators: no paths, no secrets."""


@dataclass(frozen=True, kw_only=True)
class StreamedDelta:
    """A delta of a stream, without its rows.

    Attributes:
        name: its name, for operators.
        stamp: changes when its bytes do, such as a file's size and time.
        created_s: when it was made, in seconds since the epoch; of headers that do not say it, when it was sent.
        digest: the state of the rows after it; empty if its header cannot be read.
        artifact: digest of the artifact that it was made for; empty if that is not known.
        base: the state of the rows before it.
        replaces: of a compacted chain, the states that its deltas lead to, in order; ``digest`` is the last.
        error: why it cannot be read, or not yet.
    """

    name: str
    stamp: tuple[int, int | str]
    created_s: float
    digest: str = ""
    artifact: str = ""
    base: str = ""
    replaces: tuple[str, ...] = ()
    error: str = ""

    def leads_on(self, artifact: str, state: str, passed: Container[str]) -> bool:
        """Return whether it can be applied to an artifact's rows in a state, after which they are in a new one.

        Args:
            artifact: the artifact's digest.
            state: the state of the rows.
            passed: the states that the rows were in, this one included.
        """
        fits = self.base == state or state in self.replaces
        return fits and self.artifact == artifact and self.digest not in passed


def next_delta(
    found: Sequence[StreamedDelta], artifact: str, state: str, passed: Container[str]
) -> StreamedDelta | None:
    """Return the delta to apply next; None if there is none.

    Of several, the longest compacted chain is taken, else the oldest, so that all who follow a stream take the same
    one. A chain that begins before the present state repeats what is applied: it is taken only if nothing else follows.

    Args:
        found: the deltas of a stream, oldest first.
        artifact: the artifact's digest.
        state: the state of the rows.
        passed: the states that the rows were in, this one included.
    """
    fitting = [d for d in found if not d.error and d.leads_on(artifact, state, passed)]
    following = [delta for delta in fitting if delta.base == state]
    return max(following or fitting, key=lambda delta: len(delta.replaces), default=None)


class DeltaSource:
    """A stream to read deltas from. Its methods block; no two of ``scan``, ``fetch`` and ``discard`` may overlap."""

    def expect(self, artifact: str) -> None:
        """Say that deltas of an artifact are wanted.

        Args:
            artifact: its digest.
        """

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, from any thread, when something has arrived. Only some transports do so."""

    def check(self) -> str:
        """Look whether the stream can be read, before it is followed.

        Returns:
            A remark, such as that there is nothing yet; empty for none.

        Raises:
            OSError: it cannot be read.
        """
        raise NotImplementedError

    def scan(self) -> Sequence[StreamedDelta]:
        """Return the deltas of the stream, oldest first.

        Raises:
            OSError: the stream cannot be read now.
        """
        raise NotImplementedError

    def fetch(self, delta: StreamedDelta) -> Path:
        """Return a delta as a local file, which stays until the next call.

        Raises:
            ArtifactError: it is damaged.
            OSError: it cannot be read now.
        """
        raise NotImplementedError

    def discard(self, delta: StreamedDelta) -> bool:  # noqa: ARG002
        """Remove a local copy that has turned out to be damaged; return whether there was one to replace."""
        return False

    def close(self) -> None:
        """End all connections. A call that runs in another thread ends early."""


class DeltaSink:
    """A stream to publish deltas to; a context manager."""

    def publish(self, path: Path) -> None:
        """Publish a finished delta, wholly or not at all; return once readers find it.

        A delta that is there already is no error.

        Raises:
            ArtifactError: the file is no whole delta.
            OSError: the stream cannot be written to now, or refuses the delta.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
