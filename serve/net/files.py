"""Files with secrets: their error, and detection of changes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: State of files: for each the device, inode number, size and times of the last changes.
Stamp = tuple[tuple[int, ...], ...]


class SecurityError(ValueError):
    """A certificate, key or token file is unusable; the message names the setting, the file and the fix."""


def stamp(paths: Iterable[Path]) -> Stamp:
    """Return a value that changes with the files' contents, modes or owners; files may be missing."""
    stamps = []
    for path in paths:
        try:
            found = path.stat()
            # The change time also covers modes and owners.
            stamps.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError:
            stamps.append((0, 0, 0, 0, 0))
    return tuple(stamps)
