"""What is known of each delta of a topic: which of its messages have come, and where they lie."""

from __future__ import annotations

import os
from pathlib import Path

from recsys.artifact.delta.file import DeltaFile
from recsys.base.files import write_all_at
from recsys.errors import ArtifactError, ChecksumError
from recsys.streams.cache import DeltaCache
from recsys.streams.interface import StreamedDelta
from recsys.streams.kafka.message import DeltaParts


class Assembly:
    """A file that is put together of chunks in any order, in the cache's folder.

    Args:
        parts: the delta.
        cache: has reserved its bytes.
    """

    def __init__(self, parts: DeltaParts, cache: DeltaCache) -> None:
        self._parts = parts
        self._cache = cache
        self._missing = set(range(parts.num_chunks))
        self._path = cache.partial()
        self._path.touch()

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is there."""
        return not self._missing

    def add(self, index: int, chunk: bytes) -> None:
        """Write a chunk that was checked.

        Raises:
            OSError: it cannot be written.
        """
        if index not in self._missing:
            return
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            write_all_at(descriptor, memoryview(chunk), index * self._parts.chunk_bytes)
        finally:
            os.close(descriptor)
        self._missing.discard(index)

    def finish(self) -> Path:
        """Check the whole file, and move it into the cache.

        Raises:
            ArtifactError: it is not the delta that its messages said.
            OSError: it cannot be moved.
        """
        check_header(self._path, self._parts)
        return self._cache.place(self._path, key_of(self._parts))

    def close(self) -> None:
        """Remove what was not finished, and give its room back. Call it once."""
        self._path.unlink(missing_ok=True)
        self._cache.release(self._parts.num_bytes)


class KnownDelta:
    """A delta of the topic.

    Args:
        parts: what its messages say of it.
        name: its name among the deltas of the topic.
        arrived_s: when its first message was sent, in seconds since the epoch.

    Attributes:
        spans: for each partition the first and the last offset of its messages.
        assembly: while its chunks are put together as they arrive.
        is_assembled: whether chunks are put together as they arrive; others are read again when they are wanted.
        replaces: see ``StreamedDelta``.
        error: why it is damaged.
    """

    def __init__(self, parts: DeltaParts, name: str, arrived_s: float) -> None:
        self.parts = parts
        self.name = name
        self.spans: dict[int, tuple[int, int]] = {}
        self.assembly: Assembly | None = None
        self.is_assembled = True
        self.replaces: tuple[str, ...] = ()
        self.error = ""
        self._arrived_s = arrived_s
        self._has = bytearray(parts.num_chunks)
        self._num_chunks = 0

    @property
    def is_whole(self) -> bool:
        """Whether each of its messages has come."""
        return self._num_chunks == self.parts.num_chunks

    def note(self, index: int, partition: int, offset: int) -> bool:
        """Note where a message lies; return whether it is the first of its chunk."""
        first, last = self.spans.get(partition, (offset, offset))
        self.spans[partition] = min(first, offset), max(last, offset)
        if self._has[index]:
            return False
        self._has[index] = 1
        self._num_chunks += 1
        return True

    def streamed(self) -> StreamedDelta:
        """Return it as the stream shows it."""
        parts, error = self.parts, self.error
        if not self.is_whole:
            error = (
                f"{self._num_chunks} of its {parts.num_chunks} messages have arrived whole; publish it again"
            )
        return StreamedDelta(
            name=self.name,
            stamp=(self._num_chunks, parts.id),
            created_s=parts.created_s or self._arrived_s,
            digest=parts.digest,
            artifact=parts.artifact,
            base=parts.base,
            replaces=self.replaces,
            error=error,
        )


def check_header(path: Path, parts: DeltaParts) -> tuple[str, ...]:
    """Check that a file is the delta that messages said; return what it replaces.

    Raises:
        ArtifactError: it is not.
    """
    try:
        with DeltaFile(path) as file:
            found = file.header.artifact, file.header.base, file.digest
            if found != (parts.artifact, parts.base, parts.digest):
                raise ChecksumError("its header is not what its messages say; it was published wrongly")
            return file.header.replaces
    except ArtifactError as error:
        raise type(error)(str(error).replace(path.name, parts.name)) from None


def key_of(parts: DeltaParts) -> str:
    """Return the key of a delta in the cache."""
    return f"{parts.id}/{parts.num_bytes}"
