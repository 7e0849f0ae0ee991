"""A folder of deltas, looked through by listing it: a local directory, or a mounted bucket.

A delta counts once its header can be read: it lies at the file's end and names the file's size, so a file that
is being copied is not taken for one. ``recsys-export`` and ``FolderSink`` rename finished files into place.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from recsys.artifact.delta.file import DeltaFile
from recsys.artifact.delta.header import DeltaHeader
from recsys.base.files import remove_abandoned, replacing
from recsys.errors import ArtifactError
from recsys.streams.interface import SUFFIX, DeltaSink, DeltaSource, StreamedDelta, StreamError

_log = logging.getLogger(__name__)
#: Why a file is passed over whose name would break a log or a message.
UNPRINTABLE = "its name has characters that cannot be printed; rename it"


class FolderSource(DeltaSource):
    """Lists a folder, and reads the header of each file once.

    Args:
        path: the folder. It need not exist yet: it is empty then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, StreamedDelta] = {}
        self._told: set[str] = set()

    def check(self) -> str:
        """See ``DeltaSource``."""
        if not self._path.exists():
            return f"there is nothing at {str(self._path)!r} yet"
        if not (self._path.is_dir() and os.access(self._path, os.R_OK | os.X_OK)):
            raise StreamError(f"got {str(self._path)!r}, expected a folder that can be read")
        return ""

    def scan(self) -> list[StreamedDelta]:
        """See ``DeltaSource``."""
        try:
            files = [file for file in self._path.iterdir() if is_delta(file.name)]
        except FileNotFoundError:
            files = []
        known: dict[str, StreamedDelta] = {}
        unreadable: list[StreamedDelta] = []
        for file in files:
            about = self._looked_at(file)
            if about is None:
                continue
            stamp = (about.st_size, about.st_mtime_ns)
            before = self._known.get(file.name)
            if before is not None and before.stamp == stamp:
                known[file.name] = before
                continue
            try:
                known[file.name] = _read(file, stamp)
            except OSError as error:  # not the file's fault, so that it is read again at the next look
                unreadable.append(_unusable(file, stamp, str(error.strerror)))
        self._known = known
        return by_age([*known.values(), *unreadable])

    def fetch(self, delta: StreamedDelta) -> Path:
        """See ``DeltaSource``. The file is the folder's own; it is checked when it is applied."""
        return self._path / delta.name

    def _looked_at(self, file: Path) -> os.stat_result | None:
        """Return what the disk says of a file; None for anything else, which is passed over, and said once."""
        try:
            about = file.stat()
            if not file.name.isprintable():
                why = UNPRINTABLE
            elif stat.S_ISREG(about.st_mode):
                return about
            else:
                why = "it is not a file"
        except FileNotFoundError:  # removed since it was listed
            return None
        except OSError as error:
            why = str(error.strerror)
        if file.name not in self._told:
            self._told.add(file.name)
            _log.warning("deltas: %s is passed over: %s", shown(file.name), why)
        return None


class FolderSink(DeltaSink):
    """Copies deltas into a folder, each under its own name.

    Args:
        path: the folder. It is made if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_clean = False

    def publish(self, path: Path) -> None:
        """See ``DeltaSink``."""
        digest, target = checked(path), self._path / path.name
        self._path.mkdir(parents=True, exist_ok=True)
        if not self._is_clean:
            remove_abandoned(self._path, f".*{SUFFIX}.*.partial")
            self._is_clean = True
        if target.exists():
            with DeltaFile(target) as there:
                if there.digest != digest:
                    raise name_taken(path.name)
            return
        with replacing(target) as partial:
            shutil.copyfile(path, partial)


def is_delta(name: str) -> bool:
    """Return whether a file's name is that of a delta."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def shown(name: str) -> str:
    """Return a file's name for a line of a log, which nobody can break with it."""
    return name if name.isprintable() else ascii(name)


def by_age(deltas: Iterable[StreamedDelta]) -> list[StreamedDelta]:
    """Return deltas oldest first, in the same order for every reader."""
    return sorted(deltas, key=lambda delta: (delta.created_s, delta.name))


def checked(path: Path) -> str:
    """Return the digest of a delta that is to be published.

    Raises:
        ArtifactError: it is no whole delta.
        StreamError: its name is none of a delta.
    """
    if not is_delta(path.name):
        raise StreamError(f"delta: got {path.name!r}, expected a name that ends in {SUFFIX}; rename it")
    with DeltaFile(path) as file:
        return file.digest


def name_taken(name: str) -> StreamError:
    """Return the error of a delta whose name another delta of the stream has."""
    return StreamError(f"delta: got {name!r}, the name of another delta of the stream; rename it")


def _read(path: Path, stamp: tuple[int, int]) -> StreamedDelta:
    """Return a delta of a folder, or what is wrong with it.

    Raises:
        OSError: It cannot be read now.
    """
    path.open("rb").close()
    try:
        with DeltaFile(path) as file:
            return described(path.name, stamp, stamp[1] / 1e9, file.header, file.digest)
    except ArtifactError as error:
        return _unusable(path, stamp, str(error))


def _unusable(path: Path, stamp: tuple[int, int], why: str) -> StreamedDelta:
    return StreamedDelta(name=path.name, stamp=stamp, created_s=stamp[1] / 1e9, error=why)


def described(
    name: str, stamp: tuple[int, int | str], written_s: float, header: DeltaHeader, digest: str
) -> StreamedDelta:
    """Return a delta as its header describes it."""
    return StreamedDelta(
        name=name,
        stamp=stamp,
        created_s=header.created_s or written_s,
        digest=digest,
        artifact=header.artifact,
        base=header.base,
        replaces=header.replaces,
    )
