"""Capture of a sample of the requests to a file, for replay by recsys-bench and for warm-ups.

No request waits for the file: sampled requests go into a bounded queue, and a thread writes them. If writing
fails, such as on a full disk, requests are still served, and counted as not captured.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
from pathlib import Path

from serve.config.settings import CaptureConfig
from serve.engine.records import Captured
from serve.observe.capture_file import CapturedRequest, header, record
from serve.threads import Worker

_log = logging.getLogger("serve.capture")
# Bounds of the queue: a second of a busy server, and the memory of a few large requests.
_MAX_WAITING = 1024
_MAX_WAITING_BYTES = 64 << 20


class Capture:
    """A capture in progress. ``offer`` and ``counts`` may be called from any thread.

    Args:
        config: what to capture, and the file.

    Raises:
        OSError: the file cannot be created, or the path exists and is not a file.
    """

    def __init__(self, config: CaptureConfig) -> None:
        self._max_bytes = config.max_bytes
        self._began_s = time.monotonic()
        self._lock = threading.Lock()
        self._counts = {"written": 0, "dropped": 0, "failed": 0}
        self._is_full = False
        self._was_reported = False
        self._file: int | None = _made(config.path)
        self._end = 0
        try:
            self._append(header(time.time_ns() // 1000))
        except OSError:
            os.close(self._file)
            raise
        self._requests: Worker[Captured] = Worker(
            "capture", self._write_all, max_waiting=_MAX_WAITING, max_waiting_bytes=_MAX_WAITING_BYTES
        )

    def offer(self, request: Captured) -> None:
        """Queue a request for the capture; never blocks and never raises."""
        if self._is_full or not self._requests.put(request, len(request.message)):
            self._count("dropped")

    def counts(self) -> dict[str, int]:
        """Return the sampled requests: ``written``, ``dropped`` (queue full), ``failed`` (write error)."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Write the waiting requests and close the file; idempotent. Blocks as long as the disk does."""
        self._requests.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_all(self, requests: list[Captured]) -> None:
        for request in requests:
            self._count(self._write(request))

    def _count(self, result: str) -> None:
        with self._lock:
            self._counts[result] += 1

    def _write(self, request: Captured) -> str:
        """Write one record and return the result."""
        if self._is_full:
            return "dropped"
        try:
            data = record(
                CapturedRequest(
                    time_us=max(int((request.time_s - self._began_s) * 1e6), 0),
                    model=request.model,
                    version=request.version,
                    data=request.message,
                )
            )
            if self._end + len(data) > self._max_bytes:
                self._is_full = True
                _log.info("the capture is complete: it has %d of %d bytes", self._end, self._max_bytes)
                return "dropped"
            self._append(data)
        except Exception as error:
            # Any exception: a bug here must not end the capture silently.
            self._report(error)
            return "failed"
        return "written"

    def _append(self, data: bytes) -> None:
        """Append all of ``data`` or nothing."""
        assert self._file is not None
        start = self._end
        try:
            while start < self._end + len(data):
                start += os.pwrite(self._file, data[start - self._end :], start)
        except OSError:
            # Readers accept an incomplete last record; it is truncated if possible.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end = start

    def _report(self, error: Exception) -> None:
        if not self._was_reported:
            self._was_reported = True
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            _log.error(
                "a request could not be captured: %s; serving goes on, further failures are only counted",
                reason,
            )


def _made(path: Path) -> int:
    """Create a file that only its owner can read, because captured requests are personal data."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise FileExistsError(f"capture: {path} is not a file, and stays as it is; name another path")
        path.unlink()
    except FileNotFoundError:
        pass
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
