"""A folder of deltas in an object store: listed, headers read by ranges, each delta downloaded once.

Stores show an object once it is whole, so one that cannot be read is damaged.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from recsys.artifact.delta.file import DeltaFile, read_header
from recsys.base.remote import RemoteEntry, RemoteFolder, RemoteNotFoundError
from recsys.errors import ArtifactError
from recsys.streams.cache import DeltaCache
from recsys.streams.folder import UNPRINTABLE, by_age, checked, described, is_delta, name_taken, shown
from recsys.streams.interface import DeltaSink, DeltaSource, StreamedDelta

_log = logging.getLogger(__name__)


class BucketSource(DeltaSource):
    """Lists a folder of a store, and reads the header of each delta once.

    Args:
        folder: the folder. It need not exist yet: it is empty then.
        cache: where deltas are downloaded to.
    """

    def __init__(self, folder: RemoteFolder, cache: DeltaCache) -> None:
        self._folder = folder
        self._cache = cache
        self._known: dict[str, StreamedDelta] = {}
        self._told: set[str] = set()

    def check(self) -> str:
        """See ``DeltaSource``."""
        return "" if self._folder.entries() else f"there is nothing at '{self._folder.address}' yet"

    def scan(self) -> list[StreamedDelta]:
        """See ``DeltaSource``."""
        known = {}
        for entry in self._folder.entries():
            if entry.is_folder or not is_delta(entry.name):
                continue
            if not entry.name.isprintable():
                if entry.name not in self._told:
                    self._told.add(entry.name)
                    _log.warning("deltas: %s is passed over: %s", shown(entry.name), UNPRINTABLE)
                continue
            before = self._known.get(entry.name)
            if before is None or before.stamp != _stamp(entry):
                before = self._read(entry)
            if before is not None:
                known[entry.name] = before
        self._known = known
        return by_age(known.values())

    def fetch(self, delta: StreamedDelta) -> Path:
        """See ``DeltaSource``."""
        found = self._cache.get(_key(delta))
        if found is not None:
            return found
        num_bytes = int(delta.stamp[0])
        with self._cache.writing(_key(delta), num_bytes, delta.name) as partial_file:
            self._folder.fetch(delta.name, partial_file)
            with DeltaFile(partial_file) as file:
                if (file.digest, file.header.base) != (delta.digest, delta.base):
                    raise ArtifactError(f"delta {delta.name!r}: it was replaced while it was read")
        return self._cache.get(_key(delta)) or self.fetch(delta)

    def discard(self, delta: StreamedDelta) -> bool:
        """See ``DeltaSource``."""
        return self._cache.remove(_key(delta))

    def _read(self, entry: RemoteEntry) -> StreamedDelta | None:
        """Return a delta as its header describes it; None if it was removed since it was listed."""
        read = partial(_read_range, self._folder, entry)
        try:
            header, digest = read_header(read, entry.num_bytes, entry.name)
        except RemoteNotFoundError:
            return None
        except ArtifactError as error:
            return StreamedDelta(
                name=entry.name, stamp=_stamp(entry), created_s=time.time(), error=str(error)
            )
        return described(entry.name, _stamp(entry), time.time(), header, digest)


class BucketSink(DeltaSink):
    """Copies deltas into a folder of a store, each under its own name.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: RemoteFolder) -> None:
        self._folder = folder

    def publish(self, path: Path) -> None:
        """See ``DeltaSink``."""
        digest = checked(path)
        try:
            there = self._folder.stat(path.name)
            read = partial(_read_range, self._folder, there)
            if read_header(read, there.num_bytes, path.name)[1] != digest:
                raise name_taken(path.name)
        except RemoteNotFoundError:
            self._folder.put(path, path.name)


def _read_range(folder: RemoteFolder, entry: RemoteEntry, offset_bytes: int, num_bytes: int) -> bytes:
    wanted = min(num_bytes, entry.num_bytes - offset_bytes)
    # Stores refuse ranges without a byte.
    return folder.read(entry.name, offset=offset_bytes, num_bytes=wanted) if wanted > 0 else b""


def _stamp(entry: RemoteEntry) -> tuple[int, str]:
    return entry.num_bytes, entry.tag


def _key(delta: StreamedDelta) -> str:
    return "/".join((delta.name, *map(str, delta.stamp), delta.digest))
