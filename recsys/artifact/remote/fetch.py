"""Artifacts in object stores: which are whole, and copies of them in the cache, checked by their manifests.

A store has no folders and no renaming, so that an artifact appears file by file. It counts once its manifest is there
with every part that this names, each of the right size. Parts are checked by the manifest's digests before they count
as fetched. A copy is named by its manifest's digest: what is written over an artifact later is another copy.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.artifact.manifest_file import MANIFEST_NAME, manifest_of_file
from recsys.artifact.remote.cache import ArtifactCache, Copy
from recsys.base.files import sync
from recsys.base.remote import (
    RemoteBucketNotFoundError,
    RemoteChangedError,
    RemoteEntry,
    RemoteFolder,
    RemoteNotFoundError,
    is_address,
    parse_address,
)
from recsys.base.terminal import size_text
from recsys.errors import ArtifactError, ArtifactNotFoundError, ForeignFileError, MissingPartError

if TYPE_CHECKING:  # whether there is an artifact is said without torch
    from recsys.artifact.manifest import Manifest

_log = logging.getLogger(__name__)
# What takes less is not worth a line of the log; then one line every so often.
_FIRST_LINE_S, _NEXT_LINES_S = 1.0, 10.0
_NAME_DIGITS = 32

Tell = Callable[[str], None]
# Copies that this process uses until it ends.
_held: list[Copy] = []


@dataclass(frozen=True, kw_only=True)
class StoredArtifact:
    """An artifact of a store, as it was listed.

    Attributes:
        name: its name below the folder that was listed.
        files: its files; of a single file, itself.
        manifest: its manifest, not yet checked; empty for a single file, which holds it.
        is_folder: whether it is a folder of parts.
        missing: what it lacks to be whole; empty if it is.
    """

    name: str
    files: tuple[RemoteEntry, ...]
    manifest: bytes = field(default=b"", repr=False)
    is_folder: bool
    missing: str = ""


class ArtifactStore:
    """The artifacts below an address. Its methods ask the store; any thread may call them.

    Args:
        folder: the address.
        cache: where copies lie.
    """

    def __init__(self, folder: RemoteFolder, cache: ArtifactCache) -> None:
        self.folder = folder
        self.cache = cache
        self._manifests: dict[str, _Listed] = {}

    def look(self, name: str = "") -> StoredArtifact:
        """Return the artifact of a name, whole or not.

        Raises:
            ArtifactNotFoundError: there is nothing of this name.
            ForeignFileError: it is a folder without a manifest.
            RemoteError: the store cannot be asked.
        """
        files = tuple(entry for entry in self.folder.entries(name) if not entry.is_folder)
        if not files:
            return self._single_file(name)
        listed = next((file for file in files if file.name == MANIFEST_NAME), None)
        if listed is None:
            raise ForeignFileError(
                f"artifact: got {self.shown(name)!r} without {MANIFEST_NAME}; expected a folder or file that "
                "recsys-export wrote; it may still be uploaded"
            )
        known = self._manifests.get(name)
        if known is None or known.file != listed:
            content = self.folder.read(_below(name, MANIFEST_NAME))
            known = self._manifests[name] = _Listed(listed, content, _read(content))
        return StoredArtifact(
            name=name,
            files=files,
            manifest=known.content,
            is_folder=True,
            missing=_missing(known.manifest, files),
        )

    def manifest_bytes(self, found: StoredArtifact) -> bytes:
        """Return the manifest of an artifact, not yet checked; of a single file, that part of it is read.

        Raises:
            ArtifactError: there is none, or it is damaged.
            RemoteError: the store cannot be asked.
        """
        if found.is_folder:
            return found.manifest
        (file,) = found.files
        reader = io.BufferedReader(_RemoteFile(self.folder, found.name, file.num_bytes), 1 << 16)
        return manifest_of_file(reader, file.name)

    def fetch(self, found: StoredArtifact, tell: Tell | None = None) -> Copy:
        """Return a copy of an artifact, whose parts are those of its manifest.

        Args:
            found: what ``look`` returned.
            tell: called with lines on the progress, where it takes longer than a second; None for the log.

        Raises:
            ArtifactError: a part is missing or damaged, or the manifest is.
            CacheError: there is no room.
            RemoteError: the store cannot be asked, or a file was replaced meanwhile.
        """
        num_bytes = sum(file.num_bytes for file in found.files)
        progress = _Progress(self.shown(found.name), num_bytes, tell or _log.info)
        make = (
            self._maker_of_folder(found, progress)
            if found.is_folder
            else self._maker_of_file(found, progress)
        )
        copy = self.cache.get(self.key(found), num_bytes, make)
        progress.end()
        return copy

    def fetch_file(self, name: str, tell: Tell | None = None) -> Copy:
        """Return a copy of another file, such as a delta. Whoever reads it checks it.

        Raises:
            CacheError: there is no room.
            RemoteError: the store cannot be asked, the file does not exist, or was replaced meanwhile.
        """
        return self.fetch(StoredArtifact(name=name, files=(self.folder.stat(name),), is_folder=False), tell)

    def _maker_of_file(self, found: StoredArtifact, progress: _Progress) -> Callable[[Path], None]:
        def make(path: Path) -> None:
            entry = self.folder.fetch(found.name, path, progress=progress.add)
            if (entry,) != found.files:
                raise RemoteChangedError(f"{self.shown(found.name)}: the file was replaced while it was read")
            sync(path)

        return make

    def _maker_of_folder(self, found: StoredArtifact, progress: _Progress) -> Callable[[Path], None]:
        from recsys.artifact.manifest import Manifest  # imports torch
        from recsys.artifact.parts import check_part, part_sizes

        manifest = Manifest.loads(found.manifest)
        sizes = part_sizes(manifest)

        def make(path: Path) -> None:
            path.mkdir(exist_ok=True)
            for part, num_bytes in sizes.items():
                if (path / part).exists():  # fetched and checked by an attempt that was cut short
                    progress.add(num_bytes)
                    continue
                hidden = path / f".{part}"
                try:
                    self.folder.fetch(_below(found.name, part), hidden, progress=progress.add)
                except RemoteNotFoundError:
                    raise MissingPartError(f"part {part!r}: missing in {self.shown(found.name)}") from None
                check_part(hidden, manifest, part)
                sync(hidden)
                hidden.rename(path / part)
            (path / MANIFEST_NAME).write_bytes(found.manifest)
            sync(path / MANIFEST_NAME)
            sync(path)

        return make

    def key(self, found: StoredArtifact) -> str:
        """Return the name of the copy of an artifact or file."""
        if found.is_folder:
            return hashlib.sha256(found.manifest).hexdigest()[:_NAME_DIGITS]
        (file,) = found.files
        text = f"{self.shown(found.name)} {file.num_bytes} {file.tag}"
        return hashlib.sha256(text.encode()).hexdigest()[:_NAME_DIGITS] + Path(file.name).suffix

    def shown(self, name: str) -> str:
        """Return the address of an artifact."""
        return str(self.folder.address / name if name else self.folder.address)

    def _single_file(self, name: str) -> StoredArtifact:
        try:
            file = self.folder.stat(name)
        except RemoteNotFoundError as error:
            if isinstance(error, RemoteBucketNotFoundError):
                raise
            file = None
        if file is None or file.is_folder:
            raise ArtifactNotFoundError(
                f"artifact: got {self.shown(name)!r}, which does not exist; expected a folder or file that "
                "recsys-export wrote"
            )
        return StoredArtifact(name=name, files=(file,), is_folder=False)


@dataclass(frozen=True)
class _Listed:
    """A manifest, with what the listing said of its file, and None if it is damaged."""

    file: RemoteEntry
    content: bytes
    manifest: Manifest | None


def _below(name: str, part: str) -> str:
    return f"{name}/{part}" if name else part


def _missing(manifest: Manifest | None, files: tuple[RemoteEntry, ...]) -> str:
    """Return what a listing lacks of the parts of a manifest; empty if it has all, or the manifest is damaged."""
    from recsys.artifact.parts import check_sizes  # imports torch

    if manifest is None:
        return ""  # said where it is loaded
    try:
        check_sizes({file.name: file.num_bytes for file in files}, manifest)
    except ArtifactError as error:
        return str(error)
    return ""


def _read(content: bytes) -> Manifest | None:
    from recsys.artifact.manifest import Manifest  # imports torch

    try:
        return Manifest.loads(content)
    except ArtifactError:
        return None


class _Progress:
    """Says how much of an artifact has been fetched. Any thread may call the methods."""

    def __init__(self, what: str, num_bytes: int, tell: Tell) -> None:
        self._what, self._total, self._tell = what, num_bytes, tell
        self._lock = threading.Lock()
        self._done = 0
        self._began_s = time.monotonic()
        self._next_s = self._began_s + _FIRST_LINE_S
        self._has_told = False

    def add(self, num_bytes: int) -> None:
        """Count bytes that were fetched."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if now < self._next_s or self._done >= self._total:
                return
            self._next_s, self._has_told = now + _NEXT_LINES_S, True
            rate = self._done / (now - self._began_s)
            text = f"{size_text(self._done)} of {size_text(self._total)} fetched, {size_text(rate)} a second"
        self._tell(f"{self._what}: {text}")

    def end(self) -> None:
        """Say how long it took, if that was long."""
        took_s = time.monotonic() - self._began_s
        if self._done and took_s > _FIRST_LINE_S:
            self._tell(f"{self._what}: {size_text(self._total)} fetched in {took_s:.1f} s")


class _RemoteFile(io.RawIOBase):
    """A file of a store, of which ranges are read."""

    def __init__(self, folder: RemoteFolder, name: str, num_bytes: int) -> None:
        self._folder, self._name, self._num_bytes = folder, name, num_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._num_bytes - self._at)
        if wanted <= 0:
            return 0
        data = self._folder.read(self._name, offset=self._at, num_bytes=wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def local_artifact(location: str | os.PathLike[str], cache: ArtifactCache | None = None) -> Path:
    """Return the path of an artifact. One in a store is fetched first, and stays until this process ends.

    Args:
        location: a path, or an address such as ``s3://bucket/ranker.artifact``.
        cache: where copies lie; None for the user's folder.

    Raises:
        AddressError: the address cannot be read, or the package of its store is missing.
        ArtifactError: there is no artifact, or it is damaged; the subclass says why.
        CacheError: there is no room.
        RemoteError: the store cannot be asked.
    """
    if not is_address(location):
        return Path(location)
    store = ArtifactStore(RemoteFolder(parse_address(str(location))), cache or ArtifactCache())
    found = store.look()
    if found.missing:
        raise MissingPartError(f"artifact: {location}: {found.missing}; it may still be uploaded")
    copy = store.fetch(found)
    _held.append(copy)
    return copy.path
