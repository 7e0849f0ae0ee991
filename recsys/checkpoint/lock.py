"""The lock on the directory of a run: one job trains into it at a time.

The system holds the lock for the process, and releases it when the process ends, however it ends. On file systems
without locks the file's contents decide, as far as they can: a process of this host that is gone blocks nothing, and
one of another host cannot be told from a running one and is only warned of.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recsys.errors import CheckpointError

LOCK_NAME = "lock"
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run's directory, which is created. One process of a job does so, for all of its ranks.

    Raises:
        CheckpointError: Another job holds it; the message names its host and process.
        OSError: The directory or the file cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    file = os.open(run / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(file, run)
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now(UTC).isoformat()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(owner).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)  # and with it the lock


def check_free(run: Path) -> None:
    """Check that no job holds the lock, before the data is read for a job that could not begin.

    Raises:
        CheckpointError: One does.
    """
    try:
        file = os.open(run / LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        _take(file, run)
    finally:
        os.close(file)


def _take(file: int, run: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise _taken(run, _owner(file)) from None
        if error.errno not in _UNSUPPORTED:
            raise
        _check_owner(run, _owner(file))


def _check_owner(run: Path, owner: dict[str, Any]) -> None:
    """Judge a lock on a file system without locks by what its file says."""
    if not owner or owner["pid"] == os.getpid():
        return
    if owner["host"] != socket.gethostname():
        warnings.warn(
            f"checkpoint-dir: the file system of {run.name!r} has no locks, and {_named(owner)} has not left it: make "
            "sure that it has ended",
            stacklevel=2,
        )
    elif _is_running(owner["pid"]):
        raise _taken(run, owner)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _taken(run: Path, owner: dict[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"checkpoint-dir: {run.name!r} is in use by {_named(owner)}; expected no other job: wait for it to end, or "
        "give another directory"
    )


def _named(owner: dict[str, Any]) -> str:
    if not owner:
        return "another job"
    return f"process {owner['pid']} on {owner['host']} since {owner['since']}"


def _owner(file: int) -> dict[str, Any]:
    """Return what the file says of its owner; nothing if it is empty or damaged."""
    try:
        owner = json.loads(os.pread(file, 4096, 0))
        return {"host": str(owner["host"])[:80], "pid": int(owner["pid"]), "since": str(owner["since"])[:40]}
    except (ValueError, TypeError, KeyError, OverflowError):
        return {}
