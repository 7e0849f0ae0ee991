"""The stream of deltas that a model follows: one for all of its versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from recsys.errors import ArtifactError
from recsys.streams.interface import DeltaSource, StreamedDelta


class Following:
    """A source that several threads use, one after the other.

    Args:
        source: the transport.

    Attributes:
        artifacts: digests of the artifacts that are versions of the model.
    """

    def __init__(self, source: DeltaSource) -> None:
        self.artifacts: set[str] = set()
        self._source = source
        self._lock = threading.Lock()

    def expect(self, artifact: str) -> None:
        """Note that an artifact is a version of the model."""
        self.artifacts.add(artifact)
        self._source.expect(artifact)

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """See ``DeltaSource``."""
        self._source.on_arrival(wake)

    def scan(self) -> Sequence[StreamedDelta]:
        """See ``DeltaSource``."""
        with self._lock:
            return self._source.scan()

    def use(self, delta: StreamedDelta, apply: Callable[[Path], None]) -> None:
        """Fetch a delta, and call ``apply`` with its local file; once more if a local copy was damaged.

        Raises:
            ArtifactError: it is damaged.
            OSError: it cannot be read now.
        """
        with self._lock:
            try:
                apply(self._source.fetch(delta))
            except ArtifactError:
                if not self._source.discard(delta):
                    raise
                apply(self._source.fetch(delta))

    def close(self) -> None:
        """End all connections; a running call ends early."""
        self._source.close()
