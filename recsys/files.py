"""Files on their way in and out: JSON that is read, names that must survive a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_json(path: Path, what: str, error: type[ValueError]) -> Any:
    """A JSON file. What is in it is the caller's to check.

    Args:
        path: the file.
        what: it should hold, for messages.
        error: raised where it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as wrong:
        raise error(f"{what}: cannot read {path.name!r}: {type(wrong).__name__}") from None
    except (ValueError, RecursionError) as wrong:
        raise error(f"{what}: {path.name!r} is not readable as JSON: {wrong}") from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk: before anything counts on them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
