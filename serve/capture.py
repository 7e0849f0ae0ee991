"""Writes a sample of the requests to a file, to be played back by recsys-bench or to warm a model up with.

No request waits for the file: those that are sampled go into a bounded queue, and a thread writes them. Where it cannot
(the disk is full, say), requests are served all the same, and counted as not captured.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve.capture_file import CapturedRequest, header, record, serialized
from serve.config import CaptureConfig
from serve.raw import RawRequestLike

_log = logging.getLogger("serve.capture")
# What may wait for the file: a second of a busy server, and no more memory than a few large requests.
_MAX_WAITING = 1024
_MAX_WAITING_BYTES = 64 << 20


@dataclass(slots=True)
class _Waiting:
    raw: RawRequestLike
    model: str
    version: str
    time_us: int
    num_bytes: int


class Capture:
    """A capture that is being written. ``offer`` and ``counts`` may be called from any thread.

    Args:
        config: what to capture, and where to.
        draw: returns numbers from 0 to 1, evenly.

    Raises:
        OSError: the file cannot be made, or something that is no file has its name.
    """

    def __init__(self, config: CaptureConfig, draw: Callable[[], float] = random.random) -> None:
        self._share = config.share
        self._max_bytes = config.max_bytes
        self._draw = draw
        self._began_s = time.monotonic()
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self._counts = {"written": 0, "dropped": 0, "failed": 0}
        self._is_full = False
        self._has_told = False
        self._file = _made(config.path)
        self._end = 0
        try:
            self._append(header(time.time_ns() // 1000))
        except OSError:
            os.close(self._file)
            raise
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)
        self._thread.start()

    def offer(self, raw: RawRequestLike, model: str, version: str) -> None:
        """Capture the request, if it is among the sampled ones; never blocks and never raises.

        Args:
            raw: the request; must not change any more.
            model: who answers it.
            version: of the model.
        """
        if self._draw() >= self._share:
            return
        num_bytes = _num_bytes(raw)
        with self._changed:
            waiting_bytes = self._waiting_bytes + num_bytes
            has_room = len(self._waiting) < _MAX_WAITING and waiting_bytes <= _MAX_WAITING_BYTES
            if self._closed or self._is_full or not has_room:
                self._counts["dropped"] += 1
                return
            time_us = int((time.monotonic() - self._began_s) * 1e6)
            self._waiting.append(_Waiting(raw, model, version, time_us, num_bytes))
            self._waiting_bytes = waiting_bytes
            self._changed.notify()

    def counts(self) -> dict[str, int]:
        """Sampled requests so far: ``written``, ``dropped`` for want of room, ``failed`` because of the disk."""
        with self._changed:
            return dict(self._counts)

    def close(self) -> None:
        """Write what waits, and close the file; idempotent. Blocks for as long as the disk does."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    break
                waiting = self._waiting.popleft()
                self._waiting_bytes -= waiting.num_bytes
            result = self._write(waiting)
            with self._changed:
                self._counts[result] += 1
        os.close(self._file)

    def _write(self, waiting: _Waiting) -> str:
        """One record; returns what became of it."""
        if self._is_full:
            return "dropped"
        try:
            data = record(
                CapturedRequest(
                    time_us=waiting.time_us,
                    model=waiting.model,
                    version=waiting.version,
                    data=serialized(waiting.raw),
                )
            )
            if self._end + len(data) > self._max_bytes:
                self._is_full = True
                _log.info("the capture is complete: it has %d of %d bytes", self._end, self._max_bytes)
                return "dropped"
            self._append(data)
        except Exception as error:
            # Also where it is not the disk: a fault in here must not end the capture in silence.
            self._tell(error)
            return "failed"
        return "written"

    def _append(self, data: bytes) -> None:
        """All of ``data``, or nothing of it."""
        start = self._end
        try:
            while start < self._end + len(data):
                start += os.pwrite(self._file, data[start - self._end :], start)
        except OSError:
            # Readers forgive an incomplete last record; where it can go, it goes.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end = start

    def _tell(self, error: Exception) -> None:
        if not self._has_told:
            self._has_told = True
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            _log.error(
                "a request could not be captured: %s; serving goes on, further failures are only counted",
                reason,
            )


def _made(path: Path) -> int:
    """A new file that its owner alone can read: captured requests say what people did."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FileExistsError(f"capture: {path} is not a file, and stays as it is; name another path")
        path.unlink()
    except FileNotFoundError:
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _num_bytes(raw: RawRequestLike) -> int:
    dense = sum(len(one.values) for part in (raw.dense, raw.context_dense) for one in part)
    return dense + sum(
        len(one.lengths) + len(one.values) + len(one.weights)
        for part in (raw.sparse, raw.context_sparse)
        for one in part
    )
