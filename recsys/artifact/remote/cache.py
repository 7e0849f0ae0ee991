"""A folder of copies that processes of a machine share: each is made once, appears as a whole, and goes when it must.

```
FOLDER/<name>              a copy: a file, or a folder of files
FOLDER/.<name>.partial     one that is being made, or was when its process ended
FOLDER/.<name>.lock        held shared by who uses the copy, exclusively by who makes or removes it
```

The system lets go of a lock when its process ends, however it ends. So a copy is in use for as long as a process uses
it, and what a process left unfinished is gone on with, or removed.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from recsys.base.files import sync
from recsys.base.terminal import size_text

_log = logging.getLogger(__name__)
_PARTIAL, _LOCK, _REMOVED = ".partial", ".lock", ".removed"
_LOOK_AGAIN_S = 0.01  # after a look at which another process or thread looked, too


class CacheError(OSError):
    """A copy cannot be kept; ``strerror`` says why, and what to do."""

    def __init__(self, text: str, number: int = errno.EIO) -> None:
        super().__init__(number, text)

    def __str__(self) -> str:
        return str(self.strerror)


class Copy:
    """A copy in use: it is not removed until ``release``, or the end of the process.

    Attributes:
        path: the file or folder.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    def release(self) -> None:
        """Let the cache remove the copy when it needs room. Mapped files stay readable."""
        lock, self._lock = self._lock, None
        if lock is not None:
            _unlock(lock)


class ArtifactCache:
    """See the module. Any thread may call the methods.

    Args:
        folder: the folder; None for ``recsys-serving`` in the user's folder for caches. It is made when it is needed.
        max_bytes: size up to which it may grow; 0 for what the disk holds.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int = 0) -> None:
        self.folder = _default_folder() if folder is None else folder
        self._max_bytes = max_bytes

    def find(self, name: str) -> Copy | None:
        """Return a copy if there is one; wait while another process makes it.

        Raises:
            CacheError: the folder cannot be used.
        """
        lock = self._locked(name, fcntl.LOCK_SH)
        path = self.folder / name
        if path.exists():
            os.utime(path)
            return Copy(path, lock)
        _unlock(lock)
        return None

    def get(self, name: str, num_bytes: int, make: Callable[[Path], None]) -> Copy:
        """Return a copy; make it if there is none.

        Args:
            name: its name, which also says what it holds: copies are never changed.
            num_bytes: its size.
            make: called with a path, to write a file or a folder there. There may be one that an earlier call left
                unfinished, to go on with. What it writes is on the disk when it returns.

        Raises:
            CacheError: there is no room, or the folder cannot be used.
            Exception: what ``make`` raises.
        """
        while True:
            found = self.find(name)
            if found is not None:
                return found
            try:
                lock = self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Do not wait for the lock: another one may have made the copy just now, and hold it for long.
                time.sleep(_LOOK_AGAIN_S)
                continue
            try:
                if not (self.folder / name).exists():  # made since
                    self._make(name, num_bytes, make)
            finally:
                _unlock(lock)

    def remove(self, name: str) -> bool:
        """Remove a copy, and what is left of one; return whether it was not in use."""
        try:
            lock = self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            for path in (self.folder / name, self.folder / f".{name}{_PARTIAL}"):
                _remove(path)
            (self.folder / f".{name}{_LOCK}").unlink(missing_ok=True)
        finally:
            _unlock(lock)
        return True

    def _make(self, name: str, num_bytes: int, make: Callable[[Path], None]) -> None:
        partial = self.folder / f".{name}{_PARTIAL}"
        self._make_room(name, num_bytes, _size(partial))
        make(partial)
        partial.rename(self.folder / name)
        sync(self.folder)

    def _make_room(self, name: str, num_bytes: int, num_bytes_there: int) -> None:
        """Remove copies that nobody uses, least recently used first, until there is room for another one."""
        copies = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        unfinished = [path for path in self.folder.iterdir() if path.name.endswith(_PARTIAL)]
        for path in self.folder.iterdir():
            if path.name.endswith(_REMOVED):
                _remove(path)
        sizes = {path: _size(path) for path in (*unfinished, *copies)}
        order = [*unfinished, *sorted(copies, key=_used_s)]
        while True:
            total = sum(sizes.values()) - num_bytes_there
            free = shutil.disk_usage(self.folder).free + num_bytes_there
            is_over = bool(self._max_bytes) and total + num_bytes > self._max_bytes
            if not is_over and free >= num_bytes:
                return
            if not order:
                break
            path = order.pop(0)
            other = path.name.removeprefix(".").removesuffix(_PARTIAL)
            if other != name and self.remove(other):
                _log.info("cache: %s is removed: %s", other[:12], size_text(sizes.pop(path)))
        if is_over:
            raise CacheError(
                f"cache: {size_text(num_bytes)} are needed beside {size_text(total)} in use, expected at most "
                f"{size_text(self._max_bytes)} in all; raise artifact_cache_bytes, or unload versions",
                errno.ENOSPC,
            )
        raise CacheError(
            f"cache: {size_text(num_bytes)} are needed, {size_text(free)} are free on its disk; free space there, or "
            "choose another folder (artifact_cache)",
            errno.ENOSPC,
        )

    def _locked(self, name: str, kind: int) -> int:
        """Return a descriptor that holds a copy's lock.

        Raises:
            BlockingIOError: another one holds it, and ``kind`` does not wait.
        """
        path = self.folder / f".{name}{_LOCK}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    _lock(lock, kind, name)
                    if _is_at(lock, path):  # else removed while this waited
                        return lock
                except BaseException:
                    os.close(lock)
                    raise
                os.close(lock)
        except BlockingIOError:
            raise
        except OSError as error:
            raise CacheError(
                f"cache: cannot use {str(self.folder)!r}: {error.strerror}; choose another folder (artifact_cache)",
                error.errno or errno.EIO,
            ) from error


def _default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "recsys-serving" / "artifacts"


def _lock(lock: int, kind: int, name: str) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if kind & fcntl.LOCK_NB:
            raise
        _log.info("cache: %s is being written by another process or thread; waiting for it", name[:12])
        fcntl.flock(lock, kind)


def _unlock(lock: int) -> None:
    """Let go of a lock, also where a child of ``fork`` has the descriptor, too."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.fstat(lock).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove a file or a folder; a folder that is half removed is never taken for a copy."""
    removed = path.with_name(f".{path.name.removeprefix('.')}{_REMOVED}")
    if path.name.endswith(_REMOVED):
        removed = path
    else:
        try:
            path.rename(removed)
        except FileNotFoundError:
            return
        except OSError:  # left by a process that ended meanwhile
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)
    if removed.is_dir():
        shutil.rmtree(removed, ignore_errors=True)
    else:
        removed.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        files = [*path.iterdir()] if path.is_dir() else [path]
        return sum(about.st_size for about in map(os.lstat, files) if stat.S_ISREG(about.st_mode))
    except FileNotFoundError:
        return 0


def _used_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
