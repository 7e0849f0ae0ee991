"""Files: JSON that is read, and writes that survive a crash."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def parse_json(content: str | bytes, what: str, error: type[ValueError]) -> Any:
    """Parse untrusted JSON. The caller checks the contents.

    Args:
        content: The text.
        what: What it should hold, for messages.
        error: The error to raise.

    Raises:
        error: The content is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as wrong:
        raise error(f"{what}: not readable as JSON: {wrong}") from None


def read_json(path: Path, what: str, error: type[ValueError]) -> Any:
    """Read a JSON file. The caller checks the contents.

    Args:
        path: The file.
        what: What it should hold, for messages.
        error: The error to raise.

    Raises:
        error: The file cannot be read, or is not JSON.
    """
    try:
        content = path.read_bytes()
    except OSError as wrong:
        raise error(f"{what}: cannot read {path.name!r}: {type(wrong).__name__}") from None
    return parse_json(content, f"{what} {path.name!r}", error)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file atomically: readers find the old file, or the new one as a whole.

    Yields:
        The path of a file to write, in the same directory. On success it is synced and renamed to ``path``; on an error
        it is removed.

    Raises:
        OSError: The file cannot be written or renamed.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)
