"""Files: JSON that is read, and writes that survive a crash or a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

# What to do about each error that means that there is no room for a file.
_FIXES = {
    errno.ENOSPC: "free space there, or choose another disk",
    errno.EDQUOT: "free space there, have the quota raised, or choose another disk",
    errno.EFBIG: "have the limit on the size of files (ulimit -f) raised, or choose another disk",
}
# Nobody writes a file for so long without a pause shorter than that.
_ABANDONED_S = 3600.0


class DiskFullError(OSError):
    """A file cannot be written: its disk, a quota or a limit on the size of files is full."""


def is_utf8(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is UTF-8, as paths are that native libraries open."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def not_utf8(path: str | os.PathLike[str]) -> str:
    """Return what to say of a path that is not UTF-8."""
    shown = os.fsencode(path).decode(errors="backslashreplace")
    return f"got '{shown[:200]}', which is not UTF-8; rename it"


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
        DiskFullError: There is no room for it.
        OSError: The file cannot be written or renamed.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with naming_full_disk(repr(path.name)):
            yield partial
            sync(partial)
            partial.replace(path)
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove files that a process which was killed has left while it wrote them, an hour after its last write.

    Args:
        folder: Where they lie.
        pattern: Matches their names.
    """
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process has removed it, or it is somebody else's
            if time.time() - path.lstat().st_mtime > _ABANDONED_S:
                path.unlink()


def write_all_at(descriptor: int, data: Any, offset: int) -> None:
    """Write all bytes of a buffer at a place of a file: the system may write fewer at a time.

    Raises:
        OSError: They cannot be written.
    """
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


@contextmanager
def naming_full_disk(what: str) -> Iterator[None]:
    """Raise errors of a full disk as one that says what was not written, and what to do.

    Args:
        what: The file, as the user knows it.

    Raises:
        DiskFullError: There was no room for a file in the block.
    """
    try:
        yield
    except OSError as error:
        named = disk_full_error(what, error)
        if named is None:
            raise
        raise named from None


def disk_full_error(what: str, error: OSError) -> DiskFullError | None:
    """Return the error of ``naming_full_disk``; None if the error does not mean that a disk is full."""
    fix = _FIXES.get(error.errno or 0)
    return None if fix is None else DiskFullError(f"{what} cannot be written: {error.strerror}; {fix}")


def check_room(path: Path, num_bytes: int) -> None:
    """Check that the disk of a file that will be written has room for it.

    Raises:
        DiskFullError: Says how many bytes are needed and how many are free.
    """
    free = shutil.disk_usage(path.absolute().parent).free
    if num_bytes > free:
        text = f"{num_bytes:,} bytes are needed, {free:,} are free"
        raise DiskFullError(f"{path.name!r} cannot be written: {text}; {_FIXES[errno.ENOSPC]}")


def reserve(descriptor: int, num_bytes: int) -> None:
    """Allocate the blocks of a file, so that later writes to it, or to its mapping, find room.

    Raises:
        OSError: There is no room; the text says how many bytes are needed.
    """
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        text = f"{error.strerror}: {num_bytes:,} bytes are needed"
        if error.errno == errno.ENOSPC:
            disk = os.fstatvfs(descriptor)
            text += f", {disk.f_bavail * disk.f_frsize:,} are free"
        raise OSError(error.errno, text) from None


class _ErrorKeepingFile(io.FileIO):
    """A file whose writes never raise: the first error is kept, and what follows is dropped."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


@contextmanager
def open_for_torch(path: Path) -> Iterator[BinaryIO]:
    """Open a file for ``torch.save``, which ends the process where a write raises.

    Yields:
        The file.

    Raises:
        OSError: A write failed. It is raised after the block.
    """
    raw = _ErrorKeepingFile(path, "wb")
    with io.BufferedWriter(raw) as file:
        yield file
    if raw.error is not None:
        raise raw.error
