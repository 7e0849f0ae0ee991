"""A folder of deltas that were downloaded, bounded in bytes. Several processes may share it."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from recsys.base.remote import RemoteError
from recsys.streams.interface import SUFFIX, StreamError

_PARTIAL = ".partial"
# Files of a process that ended while it wrote them are removed at this age.
_ABANDONED_S = 3600.0


class DeltaCache:
    """Files by key, the least recently used removed first.

    Args:
        folder: is made when the first file comes.
        max_bytes: bytes of all files, those that are being written included.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._writing_bytes = 0
        # Bytes of the files, as far as this process knows; None before it has looked.
        self._used_bytes: int | None = None

    def get(self, key: str) -> Path | None:
        """Return the file of a key; None if there is none."""
        path = self._path(key)
        try:
            os.utime(path)
        except OSError:
            return None
        return path

    def remove(self, key: str) -> bool:
        """Remove the file of a key; return whether there was one."""
        try:
            num_bytes = self._path(key).stat().st_size
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        if self._used_bytes is not None:
            self._used_bytes -= num_bytes
        return True

    def reserve(self, num_bytes: int, *, keep: frozenset[str] = frozenset()) -> bool:
        """Make room for a file that will be written, until ``release``.

        Args:
            num_bytes: its size.
            keep: keys whose files must stay.

        Returns:
            Whether there is room; if not, nothing is reserved.
        """
        if self._used_bytes is None or self._free_bytes() < num_bytes:
            found = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
            self._used_bytes = sum(about.st_size for _, about in found)
            kept = {self._path(key).name for key in keep}
            removable = [(path, about.st_size) for path, about in found if path.name not in kept]
            if self._free_bytes() + sum(size for _, size in removable) < num_bytes:
                return False
            for path, size in removable:
                if self._free_bytes() >= num_bytes:
                    break
                path.unlink(missing_ok=True)
                self._used_bytes -= size
        self._writing_bytes += num_bytes
        return True

    def release(self, num_bytes: int) -> None:
        """End a reservation: the file is in place, or was given up."""
        self._writing_bytes -= num_bytes

    def partial(self) -> Path:
        """Return the path of a new file to write, which ``place`` takes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f".{secrets.token_hex(8)}{_PARTIAL}"

    def place(self, partial: Path, key: str) -> Path:
        """Move a finished file into its place, in one step."""
        path = partial.replace(self._path(key))
        self._used_bytes = (self._used_bytes or 0) + path.stat().st_size
        return path

    @contextmanager
    def writing(self, key: str, num_bytes: int, name: str) -> Iterator[Path]:
        """Write a file that takes its place at the end of the block, in one step; or is removed after an error.

        Raises:
            StreamError: it is larger than all the files may be, or the folder cannot be written to.
        """
        with self.naming_folder(name):
            if not self.reserve(num_bytes):
                raise self.too_large(name, num_bytes)
            try:
                partial = self.partial()
                try:
                    yield partial
                    self.place(partial, key)
                finally:
                    partial.unlink(missing_ok=True)
            finally:
                self.release(num_bytes)

    @contextmanager
    def naming_folder(self, name: str) -> Iterator[None]:
        """Raise errors of the disk as one that names the setting.

        Args:
            name: the delta.

        Raises:
            StreamError: a file of the folder could not be written or read.
        """
        try:
            yield
        except (StreamError, RemoteError):
            raise
        except OSError as error:
            raise StreamError(
                f"delta {name}: it cannot be kept in the folder of downloaded deltas ({error.strerror}): free space "
                "there, or choose another folder (delta_cache)"
            ) from None

    def too_large(self, name: str, num_bytes: int) -> StreamError:
        """Return the error of a delta for which there is no room."""
        return StreamError(
            f"delta {name}: got {num_bytes:,} bytes, expected at most the {self._max_bytes:,} that downloaded deltas "
            "may take (delta_cache_bytes): raise it"
        )

    def _free_bytes(self) -> int:
        return self._max_bytes - self._writing_bytes - (self._used_bytes or 0)

    def _path(self, key: str) -> Path:
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + SUFFIX)

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield whole files, and remove partial ones that nobody writes any more."""
        with suppress(FileNotFoundError):
            for path in [*self.folder.iterdir()]:
                with suppress(FileNotFoundError):  # another process has removed it
                    about = path.stat()
                    if path.suffix == SUFFIX:
                        yield path, about
                    elif path.suffix == _PARTIAL and time.time() - about.st_mtime > _ABANDONED_S:
                        path.unlink()
