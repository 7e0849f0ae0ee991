"""Files with secrets: errors about them, and whether they have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

#: How files looked: of each the device, the number, the size and the time of the last change.
Stamp = tuple[tuple[int, ...], ...]


class SecurityError(ValueError):
    """A certificate, a key or a token file cannot be used; the text names the setting, the file and the fix."""


def stamp(paths: Iterable[Path]) -> Stamp:
    """Changes when a file is written, replaced or opened to others; a missing one has a stamp too."""
    stamps = []
    for path in paths:
        try:
            found = path.stat()
            # The time of change is that of modes and owners too.
            stamps.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        except OSError:
            stamps.append((0, 0, 0, 0, 0))
    return tuple(stamps)
