"""The log: a thread formats records and writes the lines to a stream.

No request waits for the stream: threads put records into a bounded queue and go on. If the reader is too
slow, records are dropped and counted, and the log reports how many.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Callable
from typing import Protocol

from serve.config.settings import LogConfig
from serve.engine.records import EndedRequest, trace_id_of
from serve.observe.log_format import JsonFormatter, TextFormatter
from serve.threads import Worker

# The logger of gRPC's own asyncio server, as of 1.85.
_GRPC = "grpc._cython.cygrpc"
_STDERR = 2
_MAX_WAITING = 10_000
# Grace period for writing the last records when the process ends.
_GRACE_S = 2.0
# Limit of lines of refused and failed requests: under overload there may be thousands per second.
_MAX_ERRORS_PER_S = 100
_requests = logging.getLogger("serve.requests")


class Stream(Protocol):
    """The target of lines."""

    def write(self, text: str, /) -> object:
        """Write all of ``text``."""
        ...

    def flush(self) -> object:
        """Flush buffered text."""
        ...


class DescriptorStream:
    """An unbuffered stream: a thread blocked in one of Python's buffers would block the interpreter's exit.

    Args:
        descriptor: a file descriptor; it stays open.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> None:
        """Write all of ``text``, as UTF-8.

        Raises:
            OSError: the other end is closed.
        """
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def flush(self) -> None:
        """Do nothing; there is no buffer."""


class LogWriter(logging.Handler):
    """A handler that takes records from any thread without blocking, and writes them in its own thread.

    Args:
        stream: the target of the lines.
        formatter: formats the records.
        max_waiting: maximum number of waiting records.
    """

    def __init__(self, stream: Stream, formatter: logging.Formatter, max_waiting: int = _MAX_WAITING) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._stream = stream
        self._records: Worker[logging.LogRecord] = Worker("log", self._write_all, max_waiting=max_waiting)
        # Each is written by one thread at a time: logging threads hold the handler's lock.
        self._num_refused = self._num_unwritten = self._num_told = 0

    @property
    def num_dropped(self) -> int:
        """Number of dropped records."""
        return self._num_refused + self._num_unwritten

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record."""
        if not self._records.put(_settled(record)):
            self._num_refused += 1

    def close(self) -> None:
        """Write the waiting records, for a few seconds at most; idempotent."""
        # If the stream is not read, the thread blocks; it then ends with the process.
        self._records.close(_GRACE_S)
        super().close()

    def _write_all(self, records: list[logging.LogRecord]) -> None:
        for record in records:
            self._write(record)
            if self.num_dropped > self._num_told:
                self._tell()

    def _tell(self) -> None:
        lost = self.num_dropped - self._num_told
        self._num_told += lost
        text = f"{lost} log records were lost: they came faster than they could be written"
        self._write(logging.LogRecord("serve.logs", logging.WARNING, "", 0, text, None, None))

    def _write(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except Exception:
            # The stream is closed, or a field cannot be formatted; there is no place to report it.
            self._num_unwritten += 1


def _settled(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy with formatted text: arguments may change later, and a traceback keeps requests alive."""
    settled = logging.LogRecord.__new__(logging.LogRecord)  # copy.copy takes four times as long
    vars(settled).update(vars(record))
    try:
        settled.msg = record.getMessage()
    except Exception:
        settled.msg = f"{record.msg!r} (its arguments do not fit: {type(record.args).__name__})"
    settled.args = None
    if record.exc_info:
        settled.exc_text = logging.Formatter().formatException(record.exc_info)
        settled.exc_info = None
    return settled


_present: LogWriter | None = None


def set_up_logging(config: LogConfig, stream: Stream | None = None) -> None:
    """Write every record of this process from INFO up as a line; replaces an earlier setup.

    Args:
        config: the format of the lines; ``config.requests`` is for ``RequestLog``.
        stream: the target; None for stderr.
    """
    global _present
    shut_down_logging()
    formatter = JsonFormatter() if config.as_json else TextFormatter()
    _present = LogWriter(stream or DescriptorStream(_STDERR), formatter)
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if (
            type(handler) is logging.StreamHandler
        ):  # logging.basicConfig's handler; others were added on purpose
            root.removeHandler(handler)
    _present.addFilter(_is_worth_a_line)
    root.addHandler(_present)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Return whether a record is not one of two kinds that other packages log.

    gRPC logs a traceback for each answer that could not be sent because its client disconnected: no error of the
    server, and any client could fill the log with it. FBGEMM tells the root logger of each of its libraries.
    """
    if record.name == "root" and record.levelno < logging.WARNING:
        return False
    return record.name != _GRPC or not record.getMessage().startswith("ExecuteBatchError")


def shut_down_logging() -> None:
    """Write the waiting records and restore Python's logging; idempotent. Runs at exit."""
    global _present
    if _present is not None:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(_present)
        _present.close()
        _present = None


atexit.register(shut_down_logging)


def log_counts() -> dict[str, int]:
    """Return the number of ``dropped`` records, for ``Metrics.watch``."""
    return {"dropped": 0 if _present is None else _present.num_dropped}


class RequestLog:
    """The log of requests, as ``LogConfig.requests`` sets. Belongs to one thread.

    At most a hundred lines of refused and failed requests per second; the next line counts those left out.

    Args:
        config: which requests get a line.
        clock: returns the present time in seconds, monotonic.
    """

    def __init__(self, config: LogConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._wants = config.requests
        self._clock = clock
        self._second_s = float("-inf")
        self._num_lines = 0
        self._num_left_out = 0

    def takes(self, outcome: str, num_left_out: int = 0) -> bool:
        """Return whether to log a request with this outcome. Call it once per request.

        Args:
            outcome: of the request.
            num_left_out: failed requests before it that the engine left out.
        """
        if outcome == "ok":
            return self._wants == "all"
        self._num_left_out += num_left_out
        return self._wants != "none" and self._has_turn()

    def write(self, request: EndedRequest) -> None:
        """Log the end of a request that ``takes`` accepted."""
        outcome = request.outcome
        is_ok = outcome == "ok"
        level = logging.INFO if is_ok else logging.ERROR if outcome == "failed" else logging.WARNING
        if not _requests.isEnabledFor(level):
            return
        # Made directly: logging's search for the caller would take most of the time.
        record = logging.LogRecord(_requests.name, level, "", 0, "request", None, None)
        duration_ms = round((request.ended_s - request.started_s) * 1e3, 3)
        fields = vars(record)
        fields.update(model=request.model, version=request.version, request_id=request.request_id)
        fields.update(protocol=request.protocol, outcome=outcome, code=request.code)
        fields.update(num_rows=request.num_rows, duration_ms=duration_ms, reason=request.reason)
        fields.update(trace_id=trace_id_of(request.trace_parent))
        if self._num_left_out and not is_ok:
            fields["left_out"] = self._num_left_out
            self._num_left_out = 0
        _requests.handle(record)

    def _has_turn(self) -> bool:
        now_s = self._clock()
        if now_s >= self._second_s + 1:
            self._second_s, self._num_lines = now_s, 0
        self._num_lines += 1
        if self._num_lines <= _MAX_ERRORS_PER_S:
            return True
        self._num_left_out += 1
        return False
