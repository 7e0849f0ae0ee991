"""The chain of deltas that a destination holds, and its end, from which a publisher goes on."""

from __future__ import annotations

from recsys.artifact.delta.apply import apply, prepare
from recsys.artifact.loaded_rows import LoadedRows
from recsys.errors import ExportError
from recsys.streams.interface import DeltaSource, StreamedDelta, next_delta


def follow(source: DeltaSource, held: LoadedRows) -> int:
    """Apply the deltas of a destination, so that the rows are those of servers that follow it.

    Args:
        source: The destination.
        held: The artifact's rows, as loaded or after deltas of this chain.

    Returns:
        The number of deltas that were applied.

    Raises:
        ExportError: The chain cannot be continued: a delta is missing or damaged, or leads somewhere else.
        ArtifactError: A delta does not fit the artifact.
        OSError: The destination cannot be read now.
    """
    found = [delta for delta in source.scan() if delta.artifact in ("", held.digest)]
    passed = {held.digest, held.state}
    num_applied = 0
    while (delta := next_delta(found, held.digest, held.state, passed)) is not None:
        apply(prepare(held, source.fetch(delta)))
        passed.add(held.state)
        passed.update(delta.replaces)
        num_applied += 1
    for delta in found:
        _check_passed(delta, held, passed)
    return num_applied


def has_moved(source: DeltaSource, held: LoadedRows) -> bool:
    """Return whether a destination has a delta after the last one, which somebody else has published.

    Raises:
        OSError: The destination cannot be read now.
    """
    return next_delta(source.scan(), held.digest, held.state, {held.state}) is not None


def _check_passed(delta: StreamedDelta, held: LoadedRows, passed: set[str]) -> None:
    """Check that a delta is part of the chain, or lies beside it where servers pass it over.

    Raises:
        ExportError: It is not.
    """
    if delta.error and delta.base in passed:
        return  # a training was killed while it sent it: not whole, and so nobody's
    if delta.error:
        raise ExportError(f"the destination has delta {delta.name!r}, which cannot be read: {delta.error}")
    if delta.digest not in passed and delta.base not in passed:
        raise ExportError(
            f"the destination has delta {delta.name!r}, which follows state {delta.base!r}, but no delta leads there "
            f"from {held.state!r}: bring the missing deltas back, or publish from a new artifact"
        )
