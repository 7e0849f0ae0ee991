"""A folder of deltas, looked through by listing it: a local directory, or a mounted bucket.

A delta counts once its header can be read: it lies at the file's end and names the file's size, so a file that
is being copied is not taken for one. ``recsys-export`` renames finished files into place.
"""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from recsys.artifact.delta.file import DeltaFile
from recsys.errors import ArtifactError

_log = logging.getLogger("serve")
#: Other files of the folder are left alone, such as markers that tools for buckets write.
SUFFIX = ".delta"


@dataclass(frozen=True, kw_only=True)
class FolderDelta:
    """A file of the folder.

    Attributes:
        path: the file.
        stamp: its size in bytes and its time in nanoseconds; they change when it is written to.
        digest: the state of the rows after it; empty if its header cannot be read.
        artifact: digest of the artifact that it was made for.
        base: the state of the rows before it.
        created_s: when it was made, in seconds since the epoch; of headers that do not say it, the file's time.
        error: why its header cannot be read.
    """

    path: Path
    stamp: tuple[int, int]
    created_s: float
    digest: str = ""
    artifact: str = ""
    base: str = ""
    error: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name


class DeltaFolder:
    """Lists a folder, and reads the header of each file once.

    Args:
        path: the folder. It need not exist yet: it is empty then.

    Attributes:
        artifacts: digests of the artifacts that are versions of the model.
    """

    def __init__(self, path: Path) -> None:
        self.artifacts: set[str] = set()
        self._path = path
        self._known: dict[str, FolderDelta] = {}
        self._told: set[str] = set()

    def scan(self) -> list[FolderDelta]:
        """Return the deltas of the folder, oldest first. Blocks.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            files = [file for file in self._path.iterdir() if _is_delta(file.name)]
        except FileNotFoundError:
            files = []
        known: dict[str, FolderDelta] = {}
        for file in files:
            about = self._looked_at(file)
            if about is None:
                continue
            stamp = (about.st_size, about.st_mtime_ns)
            before = self._known.get(file.name)
            known[file.name] = before if before and before.stamp == stamp else _read(file, stamp)
        self._known = known
        return sorted(known.values(), key=lambda delta: (delta.created_s, delta.name))

    def _looked_at(self, file: Path) -> os.stat_result | None:
        """Return what the disk says of a file; None for anything else, which is passed over, and said once."""
        try:
            about = file.stat()
            if stat.S_ISREG(about.st_mode):
                return about
            why = "it is not a file"
        except FileNotFoundError:  # removed since it was listed
            return None
        except OSError as error:
            why = str(error.strerror)
        if file.name not in self._told:
            self._told.add(file.name)
            _log.warning("deltas: %s is passed over: %s", file.name, why)
        return None


def _is_delta(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


def _read(path: Path, stamp: tuple[int, int]) -> FolderDelta:
    written_s = stamp[1] / 1e9
    try:
        with DeltaFile(path) as file:
            header = file.header
            return FolderDelta(
                path=path,
                stamp=stamp,
                created_s=header.created_s or written_s,
                digest=file.digest,
                artifact=header.artifact,
                base=header.base,
            )
    except ArtifactError as error:
        why = str(error)
    except OSError as error:
        why = str(error.strerror)
    return FolderDelta(path=path, stamp=stamp, created_s=written_s, error=why)
